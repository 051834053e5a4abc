"""paid link: whether phenotypes hold together in patients who did not make them, as ONE sum with noise.

Of a phenotype with parts f (mode 1) and g (mode 2), both of length 1 and of the half that a patient is NOT in:

    u = f'x / |x| - e_f(|x|^2),   v = g'y / |y| - e_g(|y|^2),   e_f(n) = sum_j p_j(n) f_j / sqrt(n)

with x, y the patient's 0/1 codes and p_j(n) = 1 - exp(-t_n q_j), sum_j p_j(n) = n, the chance that one of n different codes that are
drawn by their paid frequencies q is j. So u is what the patient has of f beyond what a record of this size has by chance, and no
regression on sizes is needed, which no bounded row could pay for. Permuted codes (DE-SynPUF, diabetes-130, planted; 120 columns,
without noise): z between -2.2 and 2.4.

The sum is of (1; u, v; u^2, v^2; u v) over patients with codes of all modes: 5 R + 1 numbers for two modes. From it

    S = sum u v - sum u sum v / n,   rho = S / (n s_u s_v),   z = S / sqrt(n s_u^2 s_v^2 + noise^2)

**One patient moves it by at most 1.** Every kind of entries p of a row (:mod:`.private.unit_rows`) is cut to length sqrt(most_p), multiplied by at
most sqrt(share_p / most_p), and truncated toward zero to the grid, so its squared length is at most share_p; the shares sum to 1. A row
is made of the patient's own codes and half and of paid, public numbers alone. So a patient more or less adds or takes away one row
of length at most 1, whatever the record, and changes no other.

Only phenotypes that come back are asked for: the others cannot become replicable, and each number more is more noise for all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyclinic.analysis.base import PATIENTS, Analysis, AnalysisParams, NoMemory
from polyclinic.analysis.designs import presence_by_mode
from polyclinic.analysis.private.unit_rows import CHUNK, GRID, Part, scaled, summed
from polyclinic.analysis.projection import Projector
from polyclinic.analysis.replication.consensus import BACK, COLUMNS, HELD_OUT, PARTLY, Matched, graded, matched
from polyclinic.analysis.replication.replicate_fits import ReplicateFits
from polyclinic.privacy.accounting.accountant import calibrate, gaussian_epsilon
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.facts import MethodFacts, StepMeaning
from polyclinic.privacy.guarantee import noisy
from polyclinic.protocol.aggregators import facts_of
from polyclinic.protocol.composition import Sequential
from polyclinic.protocol.interfaces import Contribution, Schema, Step, Total
from polyclinic.records.sites.site import Site
from polyclinic.util.table import Table

Array = NDArray[np.float64]
# docs/dev/decisions/0012-split-half-replication.md
PART: Final = 0.1  # of the fit's mu^2
SHARES: Final = {"n": 0.03, "means": 0.12, "squares": 0.15, "products": 0.7}
RHO, SPREAD, LEAST, USUAL = 0.2, 0.2, 3.0, 10  # it is bought where this correlation of scores of this spread has this z
# limit: bisection ends at double precision
HALVINGS: Final = 60  # of the search for t_n


@runtime_checkable
class WithMarginals(Protocol):
    """The public state of a fit that paid for how often every code occurs."""

    @property
    def factors(self) -> Sequence[Array]: ...

    @property
    def marginals(self) -> Sequence[Array]: ...


class Rank(Protocol):
    """A plan of releases, as far as it is asked here."""

    @property
    def rank(self) -> int: ...


@runtime_checkable
class Planned(Protocol):
    """The public state of a fit that planned what it buys."""

    @property
    def plan(self) -> Rank: ...


class PrivateLinkParams(AnalysisParams):
    """Parameters of the paid link."""

    halves: tuple[Any, ...] = Field((), description="Public states of the two half fits, column r of both phenotype r.")
    tested: tuple[int, ...] = Field((), description="Phenotypes that are asked for.")
    part: float = Field(PART, gt=0, le=1, description="Of the asked mu^2 that pays for it.")


@dataclass(frozen=True)
class PrivateLinkPublic:
    """Released sums in units of patients, and the noise of each kind."""

    done: bool
    sums: tuple[Array, ...] = ()
    noise: tuple[float, ...] = ()


class PrivateLink(Analysis):
    """Whether a phenotype's modes belong together, among patients that did not make it, for a part of the fit's budget."""

    name = "paid link"
    additive = True
    facts = MethodFacts(
        formal=True,
        attacks=(),
        assumptions=("the fits of the halves are public, or were paid for themselves",),
        steps={
            "link": StepMeaning(
                "how scores of two kinds of codes go together, summed over patients with noise", "little of one patient"
            )
        },
    )
    Params = PrivateLinkParams
    Public = PrivateLinkPublic
    params: PrivateLinkParams

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """All pairs of feature modes."""
        return list(combinations(range(len(self.placer.factors)), 2))

    @property
    def parts(self) -> tuple[Part, ...]:
        """The kinds of entries of a row."""
        return rows(len(self.placer.factors), len(self.params.tested))

    def init_public(self, setting: Schema, rng: np.random.Generator) -> PrivateLinkPublic:
        """Nothing is bought where no phenotype comes back."""
        return PrivateLinkPublic(not self.pairs or not self.params.tested)

    def next_step(self, public: PrivateLinkPublic) -> Step | None:
        """One release of rows of length at most 1."""
        p = self.params
        if public.done:
            return None
        assert noisy(p.privacy)
        multiplier = calibrate(p.privacy.epsilon, p.privacy.delta, shares=(p.part,))[0]
        shapes = {x.name: x.shape for x in self.parts}
        return Step(1, "link", shapes, bound=PATIENTS, sensitivity=1.0, multiplier=multiplier, grid=GRID, counts=False)

    def update_public(self, step: Step, public: PrivateLinkPublic, total: Total) -> PrivateLinkPublic:
        """value = total / scale with sd = noise_sd / scale."""
        parts = self.parts
        values = tuple(x.natural(total.arrays[x.name]) for x in parts)
        return replace(public, done=True, sums=values, noise=tuple(total.noise_sd / x.scale for x in parts))

    def contribute(
        self, step: Step, site: Site, private: NoMemory, public: PrivateLinkPublic, rng: np.random.Generator
    ) -> tuple[NoMemory, Contribution]:
        """sum_i (1; u_i, v_i; u_i^2, v_i^2; u_i v_i), every kind cut to its length: |row_i| <= 1."""
        parts = self.parts
        out = [np.zeros(x.shape) for x in parts]
        half = self.half(site)
        for h, seen in enumerate(self.params.halves):
            scores = self._scores(site, seen, half != h)
            for at in range(0, len(scores[0]), CHUNK):
                s = [x[at : at + CHUNK] for x in scores]
                columns = [np.ones((len(s[0]), 1)), np.hstack(s), np.hstack([x * x for x in s])]
                columns.append(np.hstack([s[i] * s[j] for i, j in self.pairs]))
                out = [o + summed(m, x) for o, m, x in zip(out, columns, parts)]
        return private, Contribution({x.name: o for x, o in zip(parts, out)})

    def _scores(self, site: Site, seen: WithMarginals, use: NDArray[np.bool_]) -> list[Array]:
        """Per mode (patients of ``use`` with codes of all modes, tested) what they have of each phenotype beyond chance."""
        presence = presence_by_mode(site.counts())
        size = [np.asarray(h.sum(1)).ravel().astype(np.int64) for h in presence]
        present = use & np.all([n > 0 for n in size], axis=0)
        out = []
        for h, n, f, q in zip(presence, size, seen.factors, seen.marginals, strict=True):
            loadings = np.abs(np.asarray(f, np.float64)[:, list(self.params.tested)])
            loadings = loadings / np.maximum(np.linalg.norm(loadings, axis=0), 1e-300)
            sizes, position = np.unique(n[present], return_inverse=True)
            chance = expected(loadings, q, sizes)[position] if len(sizes) else np.zeros((0, loadings.shape[1]))
            out.append(np.asarray(h[present] @ loadings) / np.sqrt(n[present])[:, None] - chance)
        return out

    def rho(self, public: PrivateLinkPublic) -> tuple[Array, Array]:
        """(tested,) correlation and z of each; with more than two modes the weakest pair. The z contains the noise."""
        tested, modes = len(self.params.tested), len(self.placer.factors)
        (count, means, squares, products), (_, about, _, between) = public.sums, public.noise
        n = max(float(count[0]), 1.0)
        mean = means.reshape(modes, tested) / n
        spread = np.maximum(squares.reshape(modes, tested) / n - mean**2, 0.0)
        moments = []
        for (i, j), uv in zip(self.pairs, products.reshape(len(self.pairs), tested)):
            together = uv - n * mean[i] * mean[j]
            noise = between**2 + about**2 * (mean[i] ** 2 + mean[j] ** 2)
            chance = n * spread[i] * spread[j]
            rho = together / np.sqrt(n * np.maximum(chance, noise))
            moments.append(np.stack([np.clip(rho, -1.0, 1.0), together / np.sqrt(chance + noise)]))
        stacked = np.stack(moments)
        weakest = stacked[:, 1].argmin(0)
        return stacked[weakest, 0, np.arange(tested)], stacked[weakest, 1, np.arange(tested)]


def rows(modes: int, tested: int) -> tuple[Part, ...]:
    """The kinds of entries and the length to which each is cut: who has one phenotype has about .6 of it in each mode, and a
    little (.2) of every other."""
    pairs, r = modes * (modes - 1) // 2, max(tested, 1)
    parts = (
        Part("n", (1,), 1.0, 1.0),
        Part("means", (modes * r,), modes * (0.4 + 0.03 * r), 1.0),
        Part("squares", (modes * r,), modes * (0.15 + 0.005 * r), 1.0),
        Part("products", (pairs * r,), pairs * (0.15 + 0.005 * r), 1.0),
    )
    return scaled(parts, SHARES)


def expected(columns: Array, frequencies: Array, sizes: NDArray[np.int64]) -> Array:
    """(sizes, R) e(n) = sum_j p_j(n) f_j / sqrt(n) of records of n different codes that go by their frequencies alone.

    >>> expected(np.eye(2), np.array([0.5, 0.5]), np.array([1, 2])).round(3).tolist()
    [[0.5, 0.5], [0.707, 0.707]]
    """
    q = np.maximum(np.asarray(frequencies, np.float64), 1e-12)
    q = q / q.sum()
    n = np.minimum(np.asarray(sizes, np.float64), len(q) * (1 - 1e-9))[:, None]
    low, high = np.full(n.shape, -10.0), np.full(n.shape, 60.0)  # log t_n
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        too_many = -np.expm1(-np.exp(middle) * q).sum(1, keepdims=True) > n
        low, high = np.where(too_many, low, middle), np.where(too_many, middle, high)
    presence = -np.expm1(-np.exp(low) * q)
    return np.asarray(presence @ columns / np.sqrt(np.asarray(sizes, np.float64))[:, None])


def reach(privacy: Privacy, patients: int | None, modes: int, rank: int | None, noisy_sites: int = 1) -> float:
    """The z that a correlation of .2 would have, by public numbers: below 3 nothing is bought.

    >>> round(reach(Privacy(1.0, 1e-6), 12_000, 2, 8), 1), round(reach(Privacy(1.0, 1e-6), 1_000, 2, 8), 1)
    (11.7, 1.1)
    """
    if patients is None or modes < 2:
        return 0.0
    products = rows(modes, min(rank or USUAL, USUAL))[-1]
    multiplier = calibrate(privacy.epsilon, privacy.delta, shares=(PART,))[0]
    noise = multiplier * privacy.max_sites_per_patient * math.sqrt(noisy_sites) / products.scale
    return RHO * SPREAD**2 * patients / math.sqrt(patients * SPREAD**4 + noise**2)


def bought(method: Any, modes: int, sites: int) -> bool:
    """Whether a fit on halves with privacy pays for the link: a function of public numbers, the same at every party."""
    p = method.params
    if not noisy(p.privacy) or p.privacy.level != "patient" or "planning_size" not in type(p).model_fields:
        return False
    seen_singly = facts_of(p.aggregation).reveals == "each"
    return reach(p.privacy, p.planning_size, modes, p.rank, sites if seen_singly else 1) >= LEAST


def left_for_fit(method: Any) -> Any:
    """The method with what the link leaves it: mu_fit^2 + mu_link^2 = mu^2 of the asked epsilon."""
    privacy: Privacy = method.params.privacy
    mu = 1.0 / calibrate(privacy.epsilon, privacy.delta)[0]
    epsilon = gaussian_epsilon(mu * math.sqrt(1.0 - PART), privacy.delta)
    return method.with_params(privacy=privacy.model_copy(update={"epsilon": epsilon}))


class Linked(Sequential):
    """Halves under a formal guarantee, and after them the paid link of what came back: one run, one epsilon.

    Parameters
    ----------
    method
        With the whole epsilon; nine tenths are the fit's, and one is the link's where it is bought.
    key
        Of the halves.
    modes, sites
        Public numbers of the kinds of codes and of the hospitals: they decide with the planning size whether it is bought.
    """

    def __init__(self, method: Any, key: str, modes: int, sites: int, repeats: int = 1) -> None:
        self.asked: Privacy = method.params.privacy
        self.buys = bought(method, modes, sites)
        self.rungs = ReplicateFits(left_for_fit(method) if self.buys else method, key, repeats)
        super().__init__(self.rungs, self._link, (PrivateLinkPublic, NoMemory))
        self.facts = MethodFacts.joined([method.facts, *([PrivateLink.facts] if self.buys else [])])  # type: ignore[misc]
        self.params = method.params

    @property
    def words(self) -> str:
        """Whether it is asked what holds together, before anything is read."""
        if self.buys:
            return f"{PART:.0%} of it asks whether a replicated phenotype also has a held-out association between its modes"
        return (
            "whether phenotypes hold together is not tested: with this budget and planning_size a correlation of "
            f"{RHO:g} could not be told from the noise"
        )

    def found(self, public: Any) -> Matched:
        """The two halves, matched."""
        return matched(self.rungs.chosen(public.first), True)

    def _link(self, public: object, setting: Schema) -> PrivateLink:
        pairing = matched(self.rungs.chosen(public), True)
        return self._act(pairing)

    def _act(self, found: Matched) -> PrivateLink:
        halves = tuple(found.half(i) for i in (0, 1))
        replicated = (found.columns >= 0).all(0) & (found.alike[0] >= BACK)
        private = self.buys and all(isinstance(p, WithMarginals) for p in halves) and not too_little(found.public)
        fit = self.rungs.method.params
        return PrivateLink(
            model=Projector(found.public.factors, _nowhere),
            key=self.rungs.key,
            seed=fit.seed,
            aggregation=fit.aggregation,
            privacy=self.asked,
            halves=halves,
            tested=tuple(int(r) for r in np.flatnonzero(replicated)) if private else (),
        )

    def table(self, public: Any, order: NDArray[np.int64], sites: int) -> Table:
        """One row a phenotype in the order of the published model; what was not asked for is not tested."""
        pairing = self.found(public)
        act, linked = self._act(pairing), {}
        if public.second is not None and public.second.sums:
            rho, z = act.rho(public.second)
            linked = {r: (float(z[k]), float(rho[k])) for k, r in enumerate(act.params.tested)}
        return judged(pairing, linked, order, sites)


def too_little(public: object) -> bool:
    """Whether the fit spent everything on how often codes occur: its one column is no phenotype."""
    return isinstance(public, Planned) and public.plan.rank == 0


def _nowhere(site: Site) -> Array:
    raise NotImplementedError("the link computes no patient loadings")


def judged(
    found: Matched,
    linked: Mapping[int, tuple[float, float]],
    order: NDArray[np.int64],
    sites: int,
    carried: Sequence[int] | None = None,
) -> Table:
    """One row a phenotype, in the order of the published model: agreement of the halves, and the link where it was tested.

    ``linked`` has z and rho of phenotypes that were tested, ``carried`` the hospitals with enough patients of each.
    """
    out, limits, alike = [], found.intervals(), np.median(found.alike, axis=0)
    usual = _usual(alike, linked)
    for place, r in enumerate(order):
        likeness = float(alike[r])
        words = "yes" if likeness >= BACK else "partly" if likeness >= PARTLY else "no"
        z, rho = linked.get(int(r), (None, None))
        holds = None if z is None else z >= LEAST
        low, high = (float(x) for x in limits[r])
        grade = graded(likeness, low, rho, holds, usual)
        where = None if carried is None else carried[r]
        out.append([place, likeness, low, high, words, z, rho, holds, where, sites, grade, grade == "replicated"])
    return Table(COLUMNS, out)


def _usual(alike: Array, linked: Mapping[int, tuple[float, float]]) -> float:
    """The median correlation of the phenotypes that pass; 0 where none does."""
    sure = [rho for r, (z, rho) in linked.items() if alike[r] >= BACK and z >= LEAST and rho >= HELD_OUT]
    return float(np.median(sure)) if sure else 0.0
