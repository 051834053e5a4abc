"""What leaves a site: a contribution to one sum, described by public values before any data is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ProtocolMismatch
from polyclinic.privacy.facts import PLAIN, AggregatorFacts

Array = NDArray[np.float64]
Arrays = Mapping[str, Array]
Adjacency = Literal["patient", "entry"]
HIDES: Final = 0.1  # noise multiplier below which a sum counts as exact


@dataclass(frozen=True)
class Step:
    """ONE sum over sites.

    Everything here is public: it is known before a site reads its data, so a site can refuse it, a secure sum can
    take its fixed-point scale from it, and the ledger can charge it.

    Parameters
    ----------
    round
        The sweep of the method this step belongs to; 0 is set-up.
    name
        ``"setup"``, ``"factors"``, ``"statistics"``, ``"score"`` ...
    shapes
        Name and shape of every array that a site contributes.
    bound
        No entry of a contribution exceeds it in absolute value; a site refuses to send more.
    weight_bound
        The same for the weight.
    how
        ``"sum"``: contributions are only ever added. ``"gather"``: each is shown (the owner's policy must allow it).
    sensitivity
        Largest L2 norm, over all arrays together, by which ONE patient (or entry) can move the contribution. None:
        no bound is known, the step cannot be formal.
    multiplier
        Noise standard deviation over sensitivity of the noise that the TOTAL must carry. None: no noise.
    adjacency
        Whom the sensitivity protects.
    formal
        False where the sensitivity is the paper's claim and not a theorem (ERRATA E0.8).
    grid
        Contributions are whole multiples of it (exact integer pipeline), or None.
    counts
        True for model steps (they make up ``payload_bytes_up``), False for set-up and scores.
    asides
        Arrays of a model step that are scores and not the model (left out of ``payload_bytes_up``).
    sites_per_patient
        At how many sites one patient may appear: the total moves, and the noise grows, by that factor.
    patients
        Of how many patients the values must be at least, where another party sees a site's own; 0: of any number.
    """

    round: int
    name: str
    shapes: Mapping[str, tuple[int, ...]]
    bound: float
    weight_bound: float = 1.0
    how: Literal["sum", "gather"] = "sum"
    sensitivity: float | None = None
    multiplier: float | None = None
    adjacency: Adjacency = "patient"
    formal: bool = True
    grid: float | None = None
    counts: bool = True
    asides: tuple[str, ...] = ()
    sites_per_patient: int = 1
    patients: int = 0

    @property
    def noise_sd(self) -> float:
        """Standard deviation of the noise that the total must carry at least; 0 without privacy."""
        if self.multiplier is None or self.sensitivity is None:
            return 0.0
        return self.multiplier * self.sensitivity * self.sites_per_patient

    @property
    def hides(self) -> bool:
        """Whether the noise is worth its name: a sum with less is treated as exact, whatever it is booked as.

        At a multiplier of 0.1 one release alone has a patient-level epsilon of about 100 (delta 1e-6).
        """
        return self.noise_sd > 0 and (self.multiplier or 0.0) >= HIDES

    @property
    def reach(self) -> float:
        """Largest entry of a released contribution, noise included (20 standard deviations: never exceeded in practice)."""
        return self.bound + 20.0 * self.noise_sd

    @property
    def size(self) -> int:
        """Number of scalars in a contribution."""
        return sum(int(np.prod(s, dtype=np.int64)) for s in self.shapes.values())


@dataclass(frozen=True)
class Contribution:
    """What one site adds; not multiplied by its weight yet (robust rules need the value itself)."""

    arrays: Arrays
    weight: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrays", {k: np.asarray(a, np.float64) for k, a in self.arrays.items()})

    def check(self, step: Step, who: str) -> None:
        """Refuse a contribution that is not what the step announced, naming every fault."""
        faults = []
        if set(self.arrays) != set(step.shapes):
            faults.append(f"arrays {sorted(self.arrays)}, announced {sorted(step.shapes)}")
        for name, shape in step.shapes.items():
            a = self.arrays.get(name)
            if a is None:
                continue
            if a.shape != tuple(shape):
                faults.append(f"{name}: shape {a.shape}, announced {tuple(shape)}")
            elif a.size and not math.isfinite(worst := max(float(a.max()), -float(a.min()))):  # without a copy
                faults.append(f"{name}: holds NaN or infinity")
            elif a.size and worst > step.bound:
                faults.append(f"{name}: largest entry {worst:.6g} exceeds the announced bound {step.bound:.6g}")
        if not 0 <= self.weight <= step.weight_bound:
            faults.append(f"weight {self.weight!r} outside 0..{step.weight_bound!r}")
        if step.sensitivity is not None and self.weight != 1.0:
            faults.append(f"weight {self.weight!r}: a step with a sensitivity is not weighted")
        if faults:
            raise ProtocolMismatch(
                f"site {who!r}, round {step.round}, step {step.name!r}: contribution refused", faults=faults
            )


@dataclass(frozen=True)
class Total:
    """What the sum reveals: sum of weight times value, sum of weights, how many took part, and the realised noise."""

    arrays: Arrays
    weight: float
    members: int
    noise_sd: float = 0.0
    gathered: Mapping[str, Any] = field(default_factory=dict)  # site -> Contribution, only for how="gather"

    def mean(self, name: str) -> Array:
        """Weighted mean of one array; zeros where nobody contributed."""
        return self.arrays[name] / self.weight if self.weight else np.zeros_like(self.arrays[name])


@dataclass(frozen=True)
class Release:
    """One sum that was taken: what was asked, who was counted, by which way to add.

    Attributes
    ----------
    number
        0, 1, 2 ... in the order of the run.
    share
        Part of the total's noise variance that each site added.
    attempt
        How many attempts before this one failed; each may have been paid for.
    members
        The sites that were counted.
    by
        The way to add that really ran.
    leak
        ``mu`` of what the sum itself leaks of a contribution (masks of finite variance); infinite: not bounded.
    """

    number: int
    step: Step
    share: float = 1.0
    attempt: int = 0
    members: tuple[str, ...] = ()
    by: AggregatorFacts = PLAIN
    leak: float = 0.0
