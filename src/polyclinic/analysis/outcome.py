"""outcome: which phenotypes go with the outcome, and what knowing them adds. Newton sums; site intercepts never leave.

Every patient's risk is predicted by the regression of the OTHER half, so nobody is judged by a regression that saw the
outcome. Tests are penalised likelihood-ratio tests (a phenotype whose carriers all die has a Wald test of no power).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyclinic.analysis.base import PATIENTS, Analysis, AnalysisParams, NoMemory
from polyclinic.analysis.designs import CHOSEN, CODES, WIDEST, Design, Designs, code_presence
from polyclinic.analysis.projection import Covariates, Projector, outcome_of
from polyclinic.analysis.statistics.regression import BOUND, Climbs, Cut, intercept, profile, shapes, unpacked
from polyclinic.analysis.statistics.roc import ranked
from polyclinic.privacy.facts import MethodFacts, StepMeaning
from polyclinic.protocol.interfaces import Contribution, Schema, Step, Total
from polyclinic.records.sites.site import Site

Array = NDArray[np.float64]
# limit: of the numbers sent; patients within a bin have one predicted risk in the ROC curve and the calibration
BINS: Final = 192
SCORED: Final = ("bins", "ranks", "levels")  # sums over predicted risks
PULL: Final = 50.0  # patients by whose weight a code is drawn to telling nothing
# limit: standard deviations of the predicted logit that bins reach; patients beyond are in the outer bins
SPREAD: Final = 4.0


class OutcomeParams(AnalysisParams):
    """Parameters of outcome."""

    covariates: Any = Field(None, description="What regressions are adjusted for.")
    halves: tuple[object, ...] = Field((), description="Models of the two halves; then placing is cross-fitted too.")
    groups: tuple[Any, ...] = Field((), description="Public variables by whose levels the prediction is judged, too.")
    baselines: bool = Field(True, description="Also covariates alone, sizes, random factors, raw codes.")


@dataclass(frozen=True)
class OutcomePublic:
    """Everything is a sum over patients of all sites."""

    stage: Literal["moments", "newton", "tests", "rest", "end"]
    round: int
    tally: Array  # (2, 3): by half, outcome 0, 1, unknown (outcome or a covariate)
    events: Array  # (R,) carriers with the outcome
    carriers: Array  # (R,) carriers whose outcome and covariates are known
    centre: tuple[Array, ...]  # per design (slots, width)
    unit: tuple[Array, ...]
    codes: NDArray[np.int64]  # (2, CODES) chosen raw codes of each half
    ratios: Array  # (2, all codes) log ratio of each code's shares with and without the outcome, in each half
    climbs: Climbs
    tests: Climbs  # without one phenotype each
    grid: Array  # (problems, 2) first and last edge of the score's bins
    bins: Array  # (2, 2, BINS): half, outcome, bin of the risk by phenotypes
    ranks: Array  # (2, designs + 1, 4): by half, :func:`~polyclinic.analysis.statistics.roc.ranked`
    levels: Array  # (2, levels, 3, 4): by half and level, ranks of the first score; events, patients, sum of risks


class OutcomeAnalysis(Analysis):
    """Odds ratios of carriers, and the cross-fitted AUC with and without phenotypes."""

    name = "outcome"
    version = 4
    facts = MethodFacts(
        steps={
            "moments": StepMeaning(
                "patients by outcome, and sums of the columns of the regressions",
                "whether a known patient is among few",
            ),
            "newton": StepMeaning(
                "slopes and curvatures of logistic regressions; the hospital's intercept stays", "little of one patient"
            ),
            "tests": StepMeaning(
                "the same without one phenotype each, ranks of predicted risks within hospitals, and a histogram of them",
                "a risk that one patient has",
            ),
            "rest": StepMeaning("regressions without one phenotype each", "little of one patient"),
        }
    )
    Params = OutcomeParams
    Public = OutcomePublic
    params: OutcomeParams

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        p = self.params
        placers = [self.placer, *(Projector.of(m) for m in p.halves)]
        self.covariates: Covariates = p.covariates if p.covariates is not None else Covariates()
        self.designs = Designs(placers, self.covariates, p.baselines, p.seed)

    # ---- problems: (design, slot), in a fixed order

    @property
    def problems(self) -> list[tuple[Design, int]]:
        """All regressions: a design learned from everybody (0) or from a half (1, 2)."""
        return [(d, s) for d in self.designs.all for s in d.slots]

    def _at(self, name: str, slot: int) -> int:
        return next(j for j, (d, s) in enumerate(self.problems) if d.name == name and s == slot)

    @property
    def judged(self) -> tuple[Design, ...]:
        """Designs that predict."""
        return self.designs.all[1:]

    # ---- coordinator

    def init_public(self, setting: Schema, rng: np.random.Generator) -> OutcomePublic:
        """Coefficients 0, designs not centred yet."""
        widths = [self.designs.width(d) for d, _ in self.problems]
        rank, d = self.placer.rank, self.designs
        return OutcomePublic(
            "moments",
            1,
            np.zeros((2, 3)),
            np.zeros(rank),
            np.zeros(rank),
            tuple(np.zeros((len(x.slots), d.width(x))) for x in d.all),
            tuple(np.ones((len(x.slots), d.width(x))) for x in d.all),
            np.zeros((2, CODES), np.int64),
            np.zeros((2, sum(len(f) for f in self.placer.factors))),
            Climbs.at([np.zeros(w) for w in widths]),
            Climbs.at([np.zeros(widths[0] - 1) for _ in range(rank)]),
            np.zeros((len(widths), 2)),
            np.zeros((2, 2, BINS)),
            np.zeros((2, len(self.judged) + 1, 4)),
            np.zeros((2, sum(len(v.words) for v in self.params.groups), 3, 4)),
        )

    def next_step(self, public: OutcomePublic) -> Step | None:
        """Moments of the designs, Newton rounds of all problems together, then tests without one phenotype each."""
        if public.stage == "end":
            return None
        arrays: dict[str, tuple[int, ...]] = {}
        if public.stage == "moments":
            arrays = {"tally": (2, 3), "events": (self.placer.rank,)}
            if self.params.baselines:
                arrays["codes"] = (2, 2, sum(len(f) for f in self.placer.factors))
            for i, d in enumerate(self.designs.all):
                if d.name not in CHOSEN:
                    arrays |= {f"{k}{i}": (len(d.slots), self.designs.width(d)) for k in ("sum", "square")}
            return Step(public.round, "moments", arrays, bound=2.0**8 * PATIENTS, counts=False)
        if public.stage == "newton":
            for j, base in enumerate(
                public.climbs.base
            ):  # all of them in every round: how many are left is a fact of data
                arrays |= shapes(f"p{j}", len(base)) | {f"p{j}.e": (2,)}
            return Step(public.round, "newton", arrays, bound=BOUND, counts=False)
        for r, base in enumerate(public.tests.base):
            arrays |= shapes(f"t{r}", len(base))
        if public.stage == "tests":  # the scores' ranks ride along with the first tests
            arrays |= {k: getattr(public, k).shape for k in SCORED}
        return Step(public.round, public.stage, arrays, bound=BOUND, counts=False)

    def update_public(self, step: Step, public: OutcomePublic, total: Total) -> OutcomePublic:
        """beta' = beta + H^-1 g, g = sum_k g_k, H = sum_k H_k (steps halved where l fell); p_r from 2 (l - l_without_r)."""
        state = replace(public, round=public.round + 1)
        a, n = total.arrays, self._patients(public)
        if step.name == "moments":
            return self._prepared(state, a)
        if step.name == "newton":
            sums = {j: unpacked(a, f"p{j}", n) for j in public.climbs.active}
            grid = public.grid.copy()
            for j in sums:
                size = max(float(public.tally[:, :2].sum()), 1.0)
                mean = float(a[f"p{j}.e"][0]) * n / size
                sd = max(np.sqrt(max(float(a[f"p{j}.e"][1]) * n / size - mean**2, 0.0)), 1e-3)
                grid[j] = np.round([mean - SPREAD * sd, mean + SPREAD * sd], 6)
            flags = {j: self.designs.penalised(self.problems[j][0]) for j in sums}
            climbs = public.climbs.seen(sums, flags)
            if climbs.active:
                return replace(state, climbs=climbs, grid=grid)
            full, common = climbs.base[0], self.designs.common
            starts = [np.delete(full, common + r) for r in range(self.placer.rank)]
            return replace(state, climbs=climbs, grid=grid, tests=Climbs.at(starts), stage="tests")
        flags0 = self.designs.penalised(self.problems[0][0])[:-1]
        tests = public.tests.seen(
            {r: unpacked(a, f"t{r}", n) for r in public.tests.active}, dict.fromkeys(public.tests.active, flags0)
        )
        if step.name == "tests":
            bins, ranks, levels = (a[k] * n for k in SCORED)
            state = replace(state, bins=np.rint(bins), ranks=ranks, levels=levels)
        return replace(state, tests=tests, stage="rest" if tests.active else "end")

    def _patients(self, public: OutcomePublic) -> float:
        """A power of two above the number of patients: sums are sent in units of it."""
        return float(2.0 ** np.ceil(np.log2(max(float(public.tally.sum()), 1.0))))

    def _prepared(self, after: OutcomePublic, a: Any) -> OutcomePublic:
        tally = np.rint(a["tally"])
        patients = {0: tally[:, :2].sum(), 1: tally[0, :2].sum(), 2: tally[1, :2].sum()}
        centre, unit = list(after.centre), list(after.unit)
        fixed = int(not self.covariates.site)
        for i, d in enumerate(self.designs.all):
            if d.name in CHOSEN:
                continue
            n = np.array([max(float(patients[s]), 1.0) for s in d.slots])[:, None]
            mean = a[f"sum{i}"] / n
            sd = np.sqrt(np.maximum(a[f"square{i}"] / n - mean**2, 0.0))
            # any public unit will do; round ones are the same whatever way the sums were taken
            c = np.where(np.arange(mean.shape[1]) < fixed, 0.0, np.round(mean, 2))
            use = (sd > 1e-3) & (np.arange(mean.shape[1]) >= fixed)
            u = np.where(use, 2.0 ** np.rint(np.log2(np.where(use, sd, 1.0))), 1.0)
            if d.plain:  # carriers are 0/1 and covariates are in public units
                u[:] = 1.0
            centre[i], unit[i] = c, u
        codes, ratios = after.codes, after.ratios
        if self.params.baselines:
            codes = np.stack([_strongest(a["codes"][h], tally[h, :2]) for h in (0, 1)])
            ratios = np.stack([_ratios(np.rint(a["codes"][h]), tally[h, :2]) for h in (0, 1)])
        enough = min(tally[:, 0].sum(), tally[:, 1].sum()) >= 1
        return replace(
            after,
            tally=tally,
            events=np.rint(a["events"]),
            carriers=np.rint(a["sum0"][0][self.designs.common :]),  # columns of the design "effects" are 0 and 1
            centre=tuple(centre),
            unit=tuple(unit),
            codes=codes,
            ratios=ratios,
            stage="newton" if enough else "end",
        )

    # ---- hospital

    def _rows(self, site: Site, public: OutcomePublic) -> tuple[Array, NDArray[np.bool_], NDArray[np.int64]]:
        y = outcome_of(site)
        usable = np.isfinite(y) & self.covariates.columns(site)[1]
        return y, usable, self.half(site)

    def _x(self, site: Site, public: OutcomePublic, j: int) -> Array:
        d, slot = self.problems[j]
        i, k = self.designs.all.index(d), d.slots.index(slot)
        raw = self.designs.columns(d, slot, site, public.codes, public.ratios)
        out: Array = np.clip((raw - public.centre[i][k]) / public.unit[i][k], -WIDEST, WIDEST)
        return out

    def contribute(
        self, step: Step, site: Site, private: NoMemory, public: OutcomePublic, rng: np.random.Generator
    ) -> tuple[NoMemory, Contribution]:
        """g_k = sum_i (y_i - s(x_i'beta)) x_i and H_k = sum_i s(1 - s) x_i x_i', the site's own intercept profiled out."""
        y, usable, half = self._rows(site, public)
        if step.name == "moments":
            return private, Contribution(self._moments(site, public, y, usable, half))
        n = self._patients(public)
        arrays: dict[str, Array] = {}
        slots = [usable, usable & (half == 0), usable & (half == 1)]
        if step.name == "newton":
            for j in range(len(self.problems)):
                if public.climbs.done[j]:
                    arrays |= _nothing(len(public.climbs.base[j]), f"p{j}") | {f"p{j}.e": np.zeros(2)}
                    continue
                x, beta, use = self._x(site, public, j), public.climbs.trial(j), slots[self.problems[j][1]]
                part = profile(x[use], y[use], beta, own=self.covariates.site)
                arrays |= _scaled(part, n).arrays(f"p{j}")
                eta = self._logits(x, y, use, beta)[usable]
                arrays[f"p{j}.e"] = np.array([eta.sum(), np.square(eta).sum()]) / n
            return private, Contribution(arrays)
        x0 = self._x(site, public, 0)[usable]
        for r in range(self.placer.rank):
            if public.tests.done[r]:
                arrays |= _nothing(len(public.tests.base[r]), f"t{r}")
            else:
                less = np.delete(x0, self.designs.common + r, axis=1)
                part = profile(less, y[usable], public.tests.trial(r), own=self.covariates.site)
                arrays |= _scaled(part, n).arrays(f"t{r}")
        if step.name == "tests":
            arrays |= {k: v / n for k, v in self._predicted(site, public, y, usable, half).items()}
        return private, Contribution(arrays)

    def _predicted(
        self, site: Site, public: OutcomePublic, y: Array, usable: NDArray[np.bool_], half: NDArray[np.int64]
    ) -> dict[str, Array]:
        """Histogram of the risk by phenotypes, ranks of all predictions, sums by level."""
        bins, levels = np.zeros(public.bins.shape), np.zeros(public.levels.shape)
        logits: list[list[Array]] = [[], []]
        for i, h, use, bin_, eta in self._scores(site, public, y, usable, half):
            if i == 0:
                np.add.at(bins[h], (y[use].astype(int), bin_), 1.0)
                levels[h] = self._by_level(site, use, 0.5 * (1 + np.tanh(eta / 2)), y[use])
            logits[h].append(eta)
        ranks = [ranked(np.array(logits[h]), y[usable & (half == h)]) for h in (0, 1)]
        return {"bins": bins, "ranks": np.stack(ranks), "levels": levels}

    def _by_level(self, site: Site, use: NDArray[np.bool_], risk: Array, y: Array) -> Array:
        """(levels, 3, 4): pairs of patients of one level alone, and how many had the outcome and were expected to."""
        out = []
        for v in self.params.groups:
            level = v.level(site)[use]
            for own in (level == k for k in range(len(v.words))):
                out.append([*ranked(risk[None, own], y[own]), [y[own].sum(), own.sum(), risk[own].sum(), 0.0]])
        return np.array(out).reshape(-1, 3, 4)

    def _moments(
        self, site: Site, public: OutcomePublic, y: Array, known: NDArray[np.bool_], half: NDArray[np.int64]
    ) -> dict[str, Array]:
        kind = np.where(known, np.where(y == 1, 1, 0), 2)
        tally = np.zeros((2, 3))
        np.add.at(tally, (half, kind), 1.0)
        arrays = {"tally": tally, "events": self.placer.has(site)[known & (y == 1)].sum(0).astype(np.float64)}
        slots = [known, known & (half == 0), known & (half == 1)]
        for i, d in enumerate(self.designs.all):
            if d.name in CHOSEN:
                continue
            columns = [self.designs.columns(d, s, site, public.codes, public.ratios)[slots[s]] for s in d.slots]
            arrays[f"sum{i}"] = np.stack([c.sum(0) for c in columns])
            arrays[f"square{i}"] = np.stack([np.square(c).sum(0) for c in columns])
        if self.params.baselines:
            presence = code_presence(site)
            arrays["codes"] = np.stack(
                [
                    np.stack([np.asarray(presence[known & (half == h) & (y == v)].sum(0)).ravel() for v in (0, 1)])
                    for h in (0, 1)
                ]
            ).astype(np.float64)
        return arrays

    def _logits(self, x: Array, y: Array, use: NDArray[np.bool_], beta: Array) -> Array:
        """Predicted logits with this hospital's own intercept, which is learned from ``use`` and never leaves."""
        eta = x @ beta
        if self.covariates.site:
            eta = eta + (intercept(eta[use], y[use], prior=1.0) if use.any() else 0.0)
        return np.clip(eta, -30.0, 30.0)

    def _scores(
        self, site: Site, public: OutcomePublic, y: Array, known: NDArray[np.bool_], half: NDArray[np.int64]
    ) -> Iterator[tuple[int, int, NDArray[np.bool_], NDArray[np.int64], Array]]:
        """Design, half, its known patients, their bins and logits by the regression of the OTHER half."""
        for i, d in enumerate(self.judged):
            for h in (0, 1):
                j = self._at(d.name, 2 - h)  # slot 2 - h learned from the half 1 - h
                x = self._x(site, public, j)
                eta = self._logits(x, y, known & (half == 1 - h), public.climbs.base[j])
                use = known & (half == h)
                low, high = public.grid[j]
                bin_index = np.floor((eta[use] - low) / max(high - low, 1e-9) * BINS)
                yield i, h, use, np.clip(bin_index, 0, BINS - 1).astype(np.int64), eta[use]


def _nothing(width: int, name: str) -> dict[str, Array]:
    return Cut(0.0, np.zeros(width), np.zeros((width, width))).arrays(name)


def _scaled(part: Cut, n: float) -> Cut:
    return Cut(part.height / n, part.score / n, part.information / n)


def _strongest(have: Array, patients: Array) -> NDArray[np.int64]:
    """The codes that go most with the outcome: |z| of the difference of shares, from (2, codes) counts by outcome."""
    n = np.maximum(patients, 1.0)[:, None]
    share = have / n
    pooled = have.sum(0) / n.sum()
    sd = np.sqrt(np.maximum(pooled * (1 - pooled) * (1 / n).sum(), 1e-12))
    strongest = np.argsort(-np.abs(share[1] - share[0]) / sd, kind="stable")[:CODES]
    return np.resize(strongest, CODES).astype(np.int64)


def _ratios(have: Array, patients: Array) -> Array:
    """What having each code tells: log(share with the outcome / share without), drawn to 0 as by ``PULL`` patients more.

    Their sum over a patient's codes is naive Bayes' score: a ceiling over ALL codes from sums that are there anyway. A regression on
    600 codes would need 180,000 numbers a round.
    """
    n = np.maximum(patients, 1.0)[:, None]
    pooled = (have.sum(0) + 0.5) / (n.sum() + 1.0)
    share = (have + PULL * pooled) / (n + PULL)
    out: Array = np.log(share[1]) - np.log(share[0])
    return out
