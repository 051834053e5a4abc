"""What the battery of a protocol finds, part by part, and the hospitals that it is tried on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.protocol.interfaces import seeds
from polyclinic.records.sites.site import Site
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor


@dataclass(frozen=True)
class BatteryPart:
    """One part of the battery and how it went."""

    number: int
    promise: str
    state: str  # "passed" | "failed" | "skipped"
    detail: str = ""
    name: str = ""


@dataclass(frozen=True)
class Battery:
    """How a protocol did."""

    method: str
    parts: tuple[BatteryPart, ...]

    @property
    def passed(self) -> bool:
        """No part failed."""
        return all(p.state != "failed" for p in self.parts)

    def __str__(self) -> str:
        lines = [
            f"{p.number:>2} {p.name:<10} {p.state:<7} {p.promise}" + (f": {p.detail}" if p.detail else "")
            for p in self.parts
        ]
        return "\n".join([f"contract checks of {self.method}", *lines])


class Skip(Exception):
    """A part that does not apply, with the reason."""


@dataclass(frozen=True)
class BatteryCheck:
    """A part: what it is called, what it promises, and a function that raises AssertionError, or :class:`Skip`."""

    name: str
    promise: str
    run: Callable[[Any], None]


def checks_of(kind: type, names: Iterable[str]) -> tuple[BatteryCheck, ...]:
    """The methods ``NAME_part`` of a class, each with its docstring as the promise."""
    parts = {name: getattr(kind, f"{name}_part") for name in names}
    return tuple(BatteryCheck(name, str(part.__doc__), part) for name, part in parts.items())


def run_checks(
    what: str, subject: object, checks: Sequence[BatteryCheck], asked: Sequence[int | str] | None = None
) -> Battery:
    """Run the checks that are asked for by name or number, all by default; AssertionError with all results if one fails."""
    numbered = dict(enumerate(checks, start=1))
    numbers = {check.name: number for number, check in numbered.items()}
    selection = [*numbered] if asked is None else [x if isinstance(x, int) else numbers.get(x, 0) for x in asked]
    unknown = [repr(x) for x, number in zip(asked or (), selection) if number not in numbered]
    if unknown:
        raise ConfigError(
            "the contract has no such check", faults=unknown, hint=f"known: {', '.join(c.name for c in checks)}"
        )
    battery = Battery(what, tuple(_ran(number, numbered[number], subject) for number in selection))
    if not battery.passed:
        raise AssertionError(str(battery))
    return battery


def _ran(number: int, check: BatteryCheck, subject: object) -> BatteryPart:
    """Whatever a stranger's code raises is this part's fault, and the others still run."""
    state, detail = "passed", ""
    try:
        check.run(subject)
    except Skip as e:
        state, detail = "skipped", str(e)
    except Exception as e:
        state, detail = "failed", f"{type(e).__name__}: {e}"
    return BatteryPart(number, check.promise, state, detail, check.name)


def example_sites(needs: str = "tensor", *, sites: int = 4, patients: int = 30, seed: int = 0) -> list[Site]:
    """Small hospitals for the battery: three planted groups of codes (or three clusters), one code at one site only."""
    out = []
    for k in range(sites):
        name = f"site{k}"
        rng = seeds(seed, "battery", name)
        n = patients + 5 * k
        kind = rng.integers(0, 3, n)
        labels = (kind == 0).astype(int)
        if needs == "features":
            centres = np.array([[0.0, 0.0, 0.0], [3.0, 0.0, 1.0], [0.0, 3.0, -1.0]])
            out.append(Site(name, features=centres[kind] + 0.5 * rng.standard_normal((n, 3)), labels=labels))
            continue
        patient = np.repeat(np.arange(n), 12)
        group = kind[patient]
        a = 3 * group + rng.integers(0, 3, len(patient))
        b = 4 * group + rng.integers(0, 4, len(patient))
        a[rng.random(len(patient)) < 0.1] = 8 if k else 9  # code 9 occurs at the first site only
        axes = [
            Axis(
                "patient", tuple(f"patient-{k}-{i}" for i in range(n))
            ),  # halves follow the patient, also where sites are pooled
            Axis("procedure", tuple(f"p{i}" for i in range(10)), vocabulary="public"),
            Axis("diagnosis", tuple(f"d{i}" for i in range(12)), vocabulary="public"),
        ]
        tensor = SparseTensor(np.column_stack([patient, a, b]), np.ones(len(patient)), (n, 10, 12), axes)
        out.append(Site(name, tensor, labels=labels))
    return out
