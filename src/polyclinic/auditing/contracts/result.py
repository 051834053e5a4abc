"""What the battery of a protocol finds, part by part, and the hospitals that it is tried on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
        who = np.repeat(np.arange(n), 12)
        group = kind[who]
        a = 3 * group + rng.integers(0, 3, len(who))
        b = 4 * group + rng.integers(0, 4, len(who))
        a[rng.random(len(who)) < 0.1] = 8 if k else 9  # code 9 occurs at the first site only
        axes = [
            Axis(
                "patient", tuple(f"patient-{k}-{i}" for i in range(n))
            ),  # halves follow the patient, also where sites are pooled
            Axis("procedure", tuple(f"p{i}" for i in range(10)), vocabulary="public"),
            Axis("diagnosis", tuple(f"d{i}" for i in range(12)), vocabulary="public"),
        ]
        tensor = SparseTensor(np.column_stack([who, a, b]), np.ones(len(who)), (n, 10, 12), axes)
        out.append(Site(name, tensor, labels=labels))
    return out
