"""PARAFAC2: phenotypes as codes with a course over a patient's visits, between hospitals; both halves.

X_k ~ B_k diag(w_k) V', with B_k (T_k, R) near Q_k H (:mod:`polyclinic.tensors.kernels.parafac2`). Q_k, w_k and the course B_k stay
at the hospital. A round is one sum: of X_k'B_k diag(w_k) (codes, R), of diag(w_k) B_k'B_k diag(w_k), of mu_k Q_k'B_k (R, R each)
and of four scores. The last sum is the mean course of every phenotype on the public axis of visits or times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from polyclinic.errors import ConfigError
from polyclinic.methods import facts as known
from polyclinic.methods.factorization import FederatedFactorization, WeightedParams
from polyclinic.methods.rounds.setup import own_sizes, setup, sizes_of
from polyclinic.methods.starts.random import start
from polyclinic.models.phenotypes.courses import Courses, by_visit
from polyclinic.models.phenotypes.projection import Placing
from polyclinic.protocol.interfaces import Arrays, Contribution, Schema, Step, Total
from polyclinic.protocol.outcome import Outcome
from polyclinic.protocol.parameter_types import PARAFAC2Typed
from polyclinic.records.sites.site import Site
from polyclinic.tensors import cp
from polyclinic.tensors.kernels.parafac2 import course_sweep
from polyclinic.tensors.weighting import weighted

__all__ = ["PARAFAC2"]

Array = NDArray[np.float64]
ORDERED = ("visit", "time")
HEADROOM = 1e4
STEPS = 2  # alternations of a patient within a round
FADES = 1e-3  # of the usual presence of a phenotype at a visit
REST = 2  # rounds in a row that gain less than `tol`


class PARAFAC2Params(WeightedParams):
    """Parameters of PARAFAC2."""

    rounds: int = Field(150, ge=1, le=100_000, description="Rounds at most, one sum each.")
    tol: float = Field(1e-5, ge=0, description="Stop when a round gains less than this share of the explained energy.")
    order: str | None = Field(
        None, description='Name of the mode whose positions are visits or times in order; None: "visit" or "time".'
    )
    warmup: int = Field(
        10, ge=0, description="First rounds by projected gradient: exact solves from a random start merge phenotypes."
    )
    coupling: float = Field(
        1.0, gt=0, description="How strongly courses share their cross-products (mu, relative to mean w^2)."
    )
    smooth: float = Field(
        0.7, ge=0, description="How strongly a course keeps to the visit before (relative to mean w^2)."
    )

    @model_validator(mode="after")
    def _counted(self) -> Self:
        faults = [] if self.nonnegative else ["courses and weights are never negative: nonnegative=True"]
        faults += ["a code that a visit lacks is a zero: zeros='observed'"] if self.zeros == "missing" else []
        faults += (
            ["no noise is added: privacy=None (DPEM with a time mode is formal)"] if self.privacy is not None else []
        )
        if faults:
            raise ValueError("; ".join(faults))
        return self


@dataclass(frozen=True)
class CoursePublic:
    """What everybody sees."""

    stage: Literal["setup", "sweep", "course", "end"]
    round: int
    order: int  # feature mode of the visits or times
    codes: Array  # (J, R) V, columns of length 1
    shape: Array  # (R, R) H, columns of length 1
    lengths: Array  # (2, R) what memberships and courses are multiplied by, because columns were brought to length 1
    course: Array  # (T, R) mean courses, columns of length 1
    norm: float = 1.0
    square: float = 0.0
    objective: float | None = None
    still: int = 0
    energy: Array | None = None
    saturation: float | None = None

    @property
    def factors(self) -> tuple[Array, ...]:
        """In the order of the modes."""
        return (self.course, self.codes) if self.order == 1 else (self.codes, self.course)


@dataclass(frozen=True)
class CoursePrivate:
    """Patients with visits and their courses stay."""

    patients: Array
    courses: Array
    first: bool = True


class PARAFAC2(PARAFAC2Typed, FederatedFactorization[PARAFAC2Params, CoursePublic, CoursePrivate]):
    """Phenotypes with a course: what comes after what, for patients with different numbers of visits.

    Give sites whose tensor has a mode of visits in order (``pc.from_frame(..., time=...)``) or of relative time
    (``[time] bins``), and one mode of codes. ``factors_`` are the mean courses and the codes; every patient's own course
    is in ``courses_`` and never leaves. The start is random and public, with flat courses.

    Attributes
    ----------
    courses_
        Site -> (visits, R) courses of its patients, visit by visit.
    visits_
        Site -> (visits, 2) patient and position on the ordered axis of every row of ``courses_``.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.planted_courses(patients=90, sites=3, codes=20, phenotypes=2, seed=0)
    >>> m = pc.PARAFAC2(rank=2, rounds=20, seed=0).fit(sites)
    >>> [a.name for a in m.axes_], m.courses_["site 1"].shape[1]
    (['visit', 'code'], 2)
    """

    name = "parafac2"
    whole_only = "it has one kind of codes: whether two kinds go together in unseen patients cannot be asked"
    facts = known.PARAFAC2
    exact = 1e-6
    Params = PARAFAC2Params
    Public = CoursePublic
    Private = CoursePrivate
    params: PARAFAC2Params
    courses_: dict[str, Array]
    visits_: dict[str, NDArray[np.int64]]

    # ---- coordinator

    def init_public(self, setting: Schema, rng: np.random.Generator) -> CoursePublic:
        """V random, H = I, flat course."""
        p, names = self.params, [a.name for a in setting.axes]
        wanted = ORDERED if p.order is None else (p.order,)
        found = [n for n, name in enumerate(names, start=1) if name in wanted]
        if len(names) != 2 or len(found) != 1:
            raise ConfigError(
                f"PARAFAC2 has one mode of visits or times in order and one mode of codes, not {', '.join(names)}",
                hint='pc.from_frame(..., time="..."), [tensor] modes = ["diagnosis", "time"], or order="NAME OF THE MODE"',
            )
        order, rank = found[0], p.rank
        (codes,) = start([setting.shape[2 - order]], rank, p.seed)
        flat = np.full((setting.shape[order - 1], rank), 1.0 / np.sqrt(max(setting.shape[order - 1], 1)))
        one = np.ones((2, rank))
        return CoursePublic("setup", 0, order, codes, np.eye(rank), one, flat, saturation=p.public_saturation)

    def next_step(self, public: CoursePublic) -> Step | None:
        """Sizes, sweeps of courses, and the mean course."""
        rank = len(public.shape)
        if public.stage == "setup":
            return setup(self.params)
        if public.stage == "sweep":
            shapes = {"codes": public.codes.shape, "gram": (rank, rank), "shape": (rank, rank), "scores": (4,)}
            return Step(public.round, "courses", shapes, bound=HEADROOM, asides=("scores",))
        if public.stage == "course":
            times = public.course.shape
            shapes = {"course": times, "present": times, "energy": (rank,), "scores": (4,)}
            return Step(public.round, "mean-course", shapes, bound=HEADROOM, counts=False)
        return None

    def update_public(self, step: Step, public: CoursePublic, total: Total) -> CoursePublic:
        """V' = argmin_{V >= 0} tr(V G V') - 2 tr(V'M), H' = sum_p mu_p Q_p'B_p / sum_p mu_p; G, M summed over sites."""
        p = self.params
        if step.name == "setup":
            size = sizes_of(p, total)
            return replace(public, stage="sweep", round=1, norm=size.norm, saturation=size.saturation)
        sums = {k: a * public.norm for k, a in total.arrays.items()}
        square, sse = float(sums["scores"][0]), max(float(sums["scores"][1]), 0.0)
        if public.stage == "course":
            # where hardly anybody of a phenotype has a visit nothing is known of its course: it fades to 0
            mean = sums["course"] / np.maximum(sums["present"] + FADES * sums["present"].mean(0), 1e-300)
            course = cp.unit_columns(mean, public.course)
            by = np.argsort(
                -sums["energy"], kind="stable"
            )  # patients are placed in the order in which the model is kept
            return replace(
                public, stage="end", course=course[:, by], codes=public.codes[:, by], shape=public.shape[:, by],
                energy=sums["energy"][by], square=square, objective=sse / 2,
            )  # fmt: skip
        if public.round <= p.warmup:
            slope = public.codes @ sums["gram"] - sums["codes"]
            codes = np.maximum(public.codes - slope / max(float(np.linalg.norm(sums["gram"], 2)), 1e-300), 0.0)
        else:
            codes = cp.hals(public.codes, sums["gram"], sums["codes"], sweeps=5)
        heavy = np.linalg.norm(codes, axis=0)
        shape = sums["shape"] / max(float(sums["scores"][2]), 1e-300)
        long = np.linalg.norm(shape, axis=0)
        alive = (heavy > 0) & (long > 1e-9)
        heavy, long = np.where(alive, heavy, 1.0), np.where(alive, long, 1.0)
        gained = np.inf if public.objective is None else (public.objective - sse / 2) / max(square - sse, 1e-300)
        still = public.still + 1 if abs(gained) <= p.tol else 0
        ended = public.round >= p.rounds or (p.tol > 0 and still >= REST and public.round > p.warmup)
        return replace(
            public,
            stage="course" if ended else "sweep",
            round=public.round + (not ended),
            codes=np.where(alive, codes / heavy, public.codes),
            shape=np.where(alive, shape / long, public.shape),
            lengths=np.stack([heavy * long, 1.0 / long]),
            square=square,
            objective=sse / 2,
            still=still,
        )

    def round_metrics(self, public: CoursePublic) -> Mapping[str, float | None]:
        if public.objective is None:
            return {}
        sse = 2 * public.objective
        return {
            "objective": public.objective,
            "fit": 1.0 - float(np.sqrt(sse / public.square)) if public.square else 1.0,
        }

    # ---- hospital

    def init_site(self, site: Site, public: CoursePublic, rng: np.random.Generator) -> CoursePrivate:
        rank = len(public.shape)
        return CoursePrivate(np.zeros((0, rank)), np.zeros((0, rank)))

    def contribute(
        self, step: Step, site: Site, private: CoursePrivate, public: CoursePublic, rng: np.random.Generator
    ) -> tuple[CoursePrivate, Contribution]:
        """M = sum_p X_p'B_p diag(w_p), G = sum_p diag(w_p) B_p'B_p diag(w_p), for the site's own w_p and B_p = Q_p H (about)."""
        p = self.params
        if step.name == "setup":
            return private, own_sizes(p, site)
        if public.stage == "course":
            return private, Contribution({k: a / public.norm for k, a in self._mean_course(site, public).items()})
        visits = by_visit(weighted(site.counts(), public.saturation), public.order)
        before = None if private.first else private.patients * public.lengths[0]
        courses = None if private.first else private.courses * public.lengths[1]
        w, B, sums = course_sweep(
            visits, public.codes, public.shape, before, courses, coupling=p.coupling, smooth=p.smooth, steps=STEPS
        )
        arrays = {"codes": sums.codes, "gram": sums.gram, "shape": sums.shape, "scores": sums.scores}
        return CoursePrivate(w, B, False), Contribution({k: a / public.norm for k, a in arrays.items()})

    def _mean_course(self, site: Site, public: CoursePublic) -> dict[str, Array]:
        """Sums of the patients' courses on the public axis, each patient weighing by the membership."""
        placing = self._way(public)
        w, B, sums = placing.found(site.counts(), public.factors)
        visits = placing.visits(site.counts())
        number = np.diff(visits.first)
        each = np.repeat(np.arange(len(w)), number)
        course, present = np.zeros(public.course.shape), np.zeros(public.course.shape)
        # a course has length 1 over the patient's visits, so a longer one is lower: brought to the mean of a visit
        np.add.at(course, visits.place, w[each] * B * np.sqrt(number[each])[:, None])
        np.add.at(present, visits.place, w[each])
        return {"course": course, "present": present, "energy": np.square(w).sum(0), "scores": sums.scores}

    def finalize_site(self, site: Site, private: CoursePrivate, public: CoursePublic) -> Arrays:
        placing = self._way(public)
        w, B, _ = placing.found(site.counts(), public.factors)
        visits = placing.visits(site.counts())
        out = np.zeros((site.patients, len(public.shape)))
        out[visits.rows] = w
        patient = np.repeat(visits.rows, np.diff(visits.first))
        return {"memberships": out, "courses": B, "visits": np.column_stack([patient, visits.place]).astype(float)}

    # ---- results

    def _way(self, public: CoursePublic) -> Courses:
        p = self.params
        return Courses(public.shape, public.order, p.coupling, p.smooth, public.saturation)

    def _publish(self, outcome: Outcome) -> None:
        super()._publish(outcome)
        self._public = outcome.public
        self.courses_ = {s: np.ascontiguousarray(c["courses"][:, self.order_]) for s, c in outcome.closed.items()}
        self.visits_ = {s: c["visits"].astype(np.int64) for s, c in outcome.closed.items()}

    def _placing(self) -> Placing:
        way = self._way(self._public)
        return replace(way, shape=way.shape[:, self.order_])
