"""PARAFAC2: phenotypes as codes with a course over a patient's visits, between hospitals, after Kiers et al. 1999 and
Cohen and Bro 2018 (docs/howto/trajectories.md), both halves.

Minimises, over codes V and a matrix H that all hospitals share and over memberships w_k >= 0 and courses B_k >= 0 that stay,

    sum_k ||X_k - B_k diag(w_k) V'||^2 + mu_k ||B_k - Q_k H||^2 + a penalty on jumps between visits     with Q_k'Q_k = I

where X_k holds the visits (T_k, codes) of patient k. One round:

    hospital       w_k, B_k, Q_k by alternation, V and H being given    (:mod:`polyclinic.tensors.kernels.parafac2`)
    sums           M = sum_k X_k'B_k diag(w_k), G = sum_k diag(w_k) B_k'B_k diag(w_k), sum_k mu_k Q_k'B_k, four scores
    coordinator    V = argmin over V >= 0 of tr(V G V') - 2 tr(V'M), H = sum_k mu_k Q_k'B_k / sum_k mu_k

The last sum is the mean course of every phenotype on the public axis of visits or times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from polyclinic.errors import ConfigError
from polyclinic.methods.rounds.factorization import WeightedParams
from polyclinic.methods.rounds.facts import FACTORS, RARE, SETUP
from polyclinic.methods.rounds.phases import FitPublic, Phase, Phased, Setup
from polyclinic.methods.starts.random import start
from polyclinic.models.phenotypes.courses import Courses, by_visit
from polyclinic.privacy.facts import KnownAttack, MethodFacts, StepMeaning
from polyclinic.protocol.interfaces import Answer, Arrays, Contribution, Schema, Step, Total
from polyclinic.records.sites.site import Site
from polyclinic.tensors import cp
from polyclinic.tensors.kernels.parafac2 import course_sweep
from polyclinic.tensors.weighting import weighted

Array = NDArray[np.float64]
ORDERED_MODES = ("visit", "time")
LARGEST_SUM = 1e4  # limit: of a site's number, in units of ||X||^2, before the site refuses to send it
PATIENT_ALTERNATIONS = 2  # of w_k and B_k within a round
# limit: a share of a phenotype's usual presence at a visit, below which nothing is known of its course
LEAST_PRESENCE = 1e-3
STILL_ROUNDS = 2  # definition: the fit is at rest when so many rounds in a row gain less than `tol`
FACTS = MethodFacts(
    paper="PARAFAC2 by sums (this program), after Kiers et al. 1999 and Cohen and Bro 2018",
    attacks=(
        KnownAttack(
            "sum",
            "exact sums by code show a code that a single patient carries, as in alternating least squares by sums "
            "(not tried on this method by itself)",
        ),
    ),
    steps={
        "setup": SETUP,
        "courses": StepMeaning(f"{FACTORS} over their visits; and how courses of phenotypes overlap", RARE),
        "mean-course": StepMeaning(
            "the mean course of each phenotype over visits or times, and how much each phenotype carries",
            "the course of a patient who alone has so many visits",
        ),
    },
)


class PARAFAC2Params(WeightedParams):
    """Parameters of PARAFAC2."""

    rounds: int = Field(150, ge=1, le=100_000, description="Rounds at most, one sum each.")
    tol: float = Field(
        1e-5, ge=0, description="Stop when a round adds less than this share of the explained sum of squares."
    )
    order: str | None = Field(
        None, description='Name of the mode whose positions are visits or times in order; None: "visit" or "time".'
    )
    warmup: int = Field(
        10, ge=0, description="First rounds by projected gradient: exact solves from a random start merge phenotypes."
    )
    coupling: float = Field(
        1.0, gt=0, description="How strongly trajectories share their cross-products (mu, relative to mean w^2)."
    )
    smooth: float = Field(
        0.7, ge=0, description="How strongly a trajectory keeps to the visit before (relative to mean w^2)."
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


@dataclass(frozen=True, kw_only=True)
class CoursePublic(FitPublic):
    """What everybody sees: mean courses (T, R) and codes V (J, R) in the order of the modes, columns of length 1."""

    order: int  # feature mode of the visits or times
    common: Array  # (R, R) H, columns of length 1
    lengths: Array  # (2, R) what memberships and courses are multiplied by, because columns were brought to length 1
    square: float = 0.0
    still: int = 0

    @property
    def codes(self) -> Array:
        """(J, R) V."""
        return self.factors[2 - self.order]

    @property
    def course(self) -> Array:
        """(T, R) mean courses."""
        return self.factors[self.order - 1]

    def with_factors(self, course: Array, codes: Array) -> CoursePublic:
        """Put mean courses and codes in the order of the modes."""
        return replace(self, factors=(course, codes) if self.order == 1 else (codes, course))


@dataclass(frozen=True)
class CoursePrivate:
    """Patients with visits and their courses stay."""

    patients: Array
    courses: Array
    first: bool = True


class PARAFAC2(Phased[PARAFAC2Params, CoursePublic, CoursePrivate]):
    """Codes with a course over the visits, by sums."""

    name = "parafac2"
    version = 2
    whole_only = "it has one kind of codes: whether two kinds go together in unseen patients cannot be asked"
    facts = FACTS
    exact = 1e-6
    Params = PARAFAC2Params
    Public = CoursePublic
    Private = CoursePrivate
    params: PARAFAC2Params
    courses_: dict[str, Array]
    visits_: dict[str, NDArray[np.int64]]

    @property
    def phases(self) -> Mapping[str, Phase[CoursePublic, CoursePrivate]]:
        """Sizes, sweeps of courses, and the mean course."""
        return {"setup": Setup(self), "sweep": CourseSweep(self), "course": MeanCourse(self)}

    def init_public(self, setting: Schema, rng: np.random.Generator) -> CoursePublic:
        """V random, H = I, flat course."""
        p, names = self.params, [a.name for a in setting.axes]
        candidates = ORDERED_MODES if p.order is None else (p.order,)
        modes = [n for n, name in enumerate(names, start=1) if name in candidates]
        if len(names) != 2 or len(modes) != 1:
            raise ConfigError(
                f"PARAFAC2 has one mode of visits or times in order and one mode of codes, not {', '.join(names)}",
                hint='pc.from_frame(..., time="..."), [tensor] modes = ["diagnosis", "time"], or order="NAME OF THE MODE"',
            )
        order, rank = modes[0], p.rank
        (codes,) = start([setting.shape[2 - order]], rank, p.seed)
        times = setting.shape[order - 1]
        flat = np.full((times, rank), 1.0 / np.sqrt(max(times, 1)))
        bare = CoursePublic(
            factors=(), order=order, common=np.eye(rank), lengths=np.ones((2, rank)), saturation=p.public_saturation
        )
        return bare.with_factors(flat, codes)

    def round_metrics(self, public: CoursePublic) -> Mapping[str, float | None]:
        if public.objective is None:
            return {}
        sse = 2 * public.objective
        return {
            "objective": public.objective,
            "fit": 1.0 - float(np.sqrt(sse / public.square)) if public.square else 1.0,
        }

    def init_site(self, site: Site, public: CoursePublic, rng: np.random.Generator) -> CoursePrivate:
        return CoursePrivate(np.zeros((0, public.rank)), np.zeros((0, public.rank)))

    def finalize_site(self, site: Site, private: CoursePrivate, public: CoursePublic) -> Arrays:
        placing = self._way(public)
        w, B, _ = placing.found(site.counts(), public.factors)
        visits = placing.visits(site.counts())
        memberships = np.zeros((site.patients, public.rank))
        memberships[visits.rows] = w
        patient = np.repeat(visits.rows, np.diff(visits.first))
        placed_visits = np.column_stack([patient, visits.place]).astype(float)
        return {"memberships": memberships, "courses": B, "visits": placed_visits}

    # ---- results

    def _way(self, public: CoursePublic) -> Courses:
        p = self.params
        return Courses(public.common, public.order, p.coupling, p.smooth, public.saturation)


class CourseSweep(Phase[CoursePublic, CoursePrivate]):
    """A round: every patient's membership and course, then V and H from their sums."""

    fit: PARAFAC2

    def step(self, public: CoursePublic) -> Step:
        rank = public.rank
        shapes = {"codes": public.codes.shape, "gram": (rank, rank), "shape": (rank, rank), "scores": (4,)}
        return Step(public.round, "courses", shapes, bound=LARGEST_SUM, asides=("scores",))

    def contribute(self, step: Step, site: Site, private: CoursePrivate, public: CoursePublic) -> Answer[CoursePrivate]:
        """M = sum_p X_p'B_p diag(w_p), G = sum_p diag(w_p) B_p'B_p diag(w_p), for the site's own w_p and B_p = Q_p H (about)."""
        p = self.fit.params
        visits = by_visit(weighted(site.counts(), public.saturation), public.order)
        patients = None if private.first else private.patients * public.lengths[0]
        courses = None if private.first else private.courses * public.lengths[1]
        w, B, sums = course_sweep(
            visits,
            public.codes,
            public.common,
            patients,
            courses,
            coupling=p.coupling,
            smooth=p.smooth,
            steps=PATIENT_ALTERNATIONS,
        )
        arrays = {"codes": sums.codes, "gram": sums.gram, "shape": sums.shape, "scores": sums.scores}
        return CoursePrivate(w, B, False), Contribution({k: a / public.norm for k, a in arrays.items()})

    def combine(self, step: Step, public: CoursePublic, total: Total) -> CoursePublic:
        """V' = argmin_{V >= 0} tr(V G V') - 2 tr(V'M), H' = sum_p mu_p Q_p'B_p / sum_p mu_p; G, M summed over sites."""
        sums = {k: a * public.norm for k, a in total.arrays.items()}
        codes = self.codes(public, sums["gram"], sums["codes"])
        common = sums["shape"] / max(float(sums["scores"][2]), 1e-300)
        code_lengths, course_lengths = np.linalg.norm(codes, axis=0), np.linalg.norm(common, axis=0)
        alive = (code_lengths > 0) & (course_lengths > 1e-9)
        code_lengths, course_lengths = np.where(alive, code_lengths, 1.0), np.where(alive, course_lengths, 1.0)
        public = public.with_factors(public.course, np.where(alive, codes / code_lengths, public.codes))
        public = replace(
            public,
            common=np.where(alive, common / course_lengths, public.common),
            lengths=np.stack([code_lengths * course_lengths, 1.0 / course_lengths]),
        )
        return self.judge(public, square=float(sums["scores"][0]), sse=max(float(sums["scores"][1]), 0.0))

    def codes(self, public: CoursePublic, gram: Array, products: Array) -> Array:
        """V' by a projected gradient step in the first rounds, by coordinate descent afterwards."""
        if public.round > self.fit.params.warmup:
            return cp.hals(public.codes, gram, products, sweeps=5)
        slope = public.codes @ gram - products
        return np.maximum(public.codes - slope / max(float(np.linalg.norm(gram, 2)), 1e-300), 0.0)

    def judge(self, public: CoursePublic, square: float, sse: float) -> CoursePublic:
        """Go on with another round, or with the mean course once the rounds gain less than ``tol``."""
        p = self.fit.params
        gain = np.inf if public.objective is None else (public.objective - sse / 2) / max(square - sse, 1e-300)
        still = public.still + 1 if abs(gain) <= p.tol else 0
        at_rest = p.tol > 0 and still >= STILL_ROUNDS and public.round > p.warmup
        scored = replace(public, square=square, objective=sse / 2, still=still)
        if at_rest or public.round >= p.rounds:
            return self.fit.onward(scored)
        return replace(scored, round=public.round + 1)


class MeanCourse(Phase[CoursePublic, CoursePrivate]):
    """The last sum: the patients' courses on the public axis, each patient weighing by the membership."""

    fit: PARAFAC2

    def step(self, public: CoursePublic) -> Step:
        times = public.course.shape
        shapes = {"course": times, "present": times, "energy": (public.rank,), "scores": (4,)}
        return Step(public.round, "mean-course", shapes, bound=LARGEST_SUM, counts=False)

    def contribute(self, step: Step, site: Site, private: CoursePrivate, public: CoursePublic) -> Answer[CoursePrivate]:
        """x_k = (sum_p w_p B_p sqrt(T_p) and sum_p w_p at every visit, sum_p w_p^2, scores) / norm."""
        placing = self.fit._way(public)
        w, B, sums = placing.found(site.counts(), public.factors)
        visits = placing.visits(site.counts())
        number = np.diff(visits.first)
        patient = np.repeat(np.arange(len(w)), number)
        course, present = np.zeros(public.course.shape), np.zeros(public.course.shape)
        # a course has length 1 over the patient's visits, so a longer one is lower: brought to the mean of a visit
        np.add.at(course, visits.place, w[patient] * B * np.sqrt(number[patient])[:, None])
        np.add.at(present, visits.place, w[patient])
        arrays = {"course": course, "present": present, "energy": np.square(w).sum(0), "scores": sums.scores}
        return private, Contribution({k: a / public.norm for k, a in arrays.items()})

    def combine(self, step: Step, public: CoursePublic, total: Total) -> CoursePublic:
        """course = sum of courses / sum of memberships, phenotypes by falling energy."""
        sums = {k: a * public.norm for k, a in total.arrays.items()}
        # where hardly anybody of a phenotype has a visit nothing is known of its course: it fades to 0
        mean = sums["course"] / np.maximum(sums["present"] + LEAST_PRESENCE * sums["present"].mean(0), 1e-300)
        course = cp.unit_columns(mean, public.course)
        rank_order = np.argsort(-sums["energy"], kind="stable")  # the order in which the model is kept
        ordered = replace(
            public.with_factors(course[:, rank_order], public.codes[:, rank_order]),
            common=public.common[:, rank_order],
            energy=sums["energy"][rank_order],
            square=float(sums["scores"][0]),
            objective=max(float(sums["scores"][1]), 0.0) / 2,
        )
        return self.fit.onward(ordered)
