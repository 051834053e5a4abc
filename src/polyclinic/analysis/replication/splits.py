"""splits: two columns of one fit that are one phenotype, cut in two along one mode.

More columns than phenotypes make a fit cut some of them: (f, g) becomes (f, g1) and (f, g2). Both parts agree between halves and
both are linked, so both would be called replicated, and neither is the phenotype. Two columns are one if three things are true.

1. All their parts except those of one mode are alike (cosine at least 0.9).

2. Each has a held-out association of its modes by itself (z at least 3, :mod:`polyclinic.analysis.link`).

3. On patients that the fit did not see, the score of g1 is associated with the score of g2 inside hospitals, given the size of
the record and the scores of the shared parts (z at least 3). The fit on all patients is tested on all patients.

Two phenotypes that share their procedures and are had by different patients fail the last test: whoever has the shared part and the
one's diagnoses has the other's less often. Columns that are one become the best single column of their sum
(rank-1 approximation of sum_r w_r f_r (x) g_r), w_r being the root of their energy. Four numbers a column, four a pair that is alike.

Planted, 8 true, rank 12 (splits everywhere; three seeds, four backgrounds): 29 pairs at .9 or more that belong to one phenotype,
22 of which pass; DE-SynPUF has one such pair of ten columns, diabetes-130 (where every column has the same drugs, and diagnoses
exclude each other) none to one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyclinic.analysis.base import PATIENTS, Analysis, AnalysisParams, NoMemory
from polyclinic.analysis.link import partial, residuals, scored
from polyclinic.analysis.replication.consensus import BACK
from polyclinic.privacy.facts import MethodFacts, StepMeaning
from polyclinic.protocol.interfaces import Contribution, Schema, Step, Total
from polyclinic.records.sites.site import Site
from polyclinic.tensors import deterministic as ordered
from polyclinic.tensors.matching import cosines

if TYPE_CHECKING:
    from polyclinic.methods.rounds.factorization import FactorPublic

Array = NDArray[np.float64]
ALIKE: Final = 0.9  # cosine of every part but one
# definition: three standard errors, as for a phenotype that holds together
TOGETHER: Final = 3.0
AS_STRONG: Final = 1 / 3  # correlation of the parts that differ, beside that of the weaker column's own parts
# limit: iterations
TURNS: Final = 20  # of the power method that joins columns


def alike_pairs(factors: Sequence[Array]) -> list[tuple[int, int, int]]:
    """(r, s, mode): columns that are alike in all modes but (at most) this one.

    >>> f, g = np.array([[1.0, 1.0], [0.0, 0.1]]), np.eye(2)
    >>> alike_pairs([f, g])
    [(0, 1, 1)]
    """
    unit = [ordered.unit(np.abs(np.asarray(f, np.float64)))[0] for f in factors]
    cosine = np.stack([ordered.transposed_product(u, u) for u in unit])  # (modes, R, R)
    out = []
    for r, s in combinations(range(cosine.shape[1]), 2):
        mode = int(cosine[:, r, s].argmin())
        if len(cosine) > 1 and np.delete(cosine[:, r, s], mode).min() >= ALIKE:
            out.append((r, s, mode))
    return out


class SplitsParams(AnalysisParams):
    """Parameters of splits."""

    half: int | None = Field(None, description="The half that is looked at (the model saw the other); None: everybody.")


@dataclass(frozen=True)
class SplitsPublic:
    """Sums of residuals: of every column's own modes (pairs of modes, R, 4), and of the parts of pairs (pairs, 4)."""

    done: bool
    own: Array
    between: Array


class Splits(Analysis):
    """Which columns of a fit are one phenotype."""

    name = "splits"
    facts = MethodFacts(
        steps={"splits": StepMeaning("how scores of codes go together, summed over patients", "little of one patient")}
    )
    exact = None  # every hospital has its own regressions
    Params = SplitsParams
    Public = SplitsPublic
    params: SplitsParams

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        self.pairs = alike_pairs(self.placer.factors)
        self.modes = list(combinations(range(len(self.placer.factors)), 2))

    def init_public(self, setting: Schema, rng: np.random.Generator) -> SplitsPublic:
        """Moments 0 for every pair."""
        within = np.zeros((len(self.modes), self.placer.rank, 4))
        return SplitsPublic(not self.pairs, within, np.zeros((len(self.pairs), 4)))

    def next_step(self, public: SplitsPublic) -> Step | None:
        """One sum: four moments of each phenotype between its modes, and of pairs of phenotypes within one."""
        if public.done:
            return None
        shapes = {"own": public.own.shape, "between": public.between.shape}
        return Step(1, "splits", shapes, bound=2.0**10 * PATIENTS, counts=False)

    def update_public(self, step: Step, public: SplitsPublic, total: Total) -> SplitsPublic:
        """own, between = sum_k (u'u, u'v, v'v, free degrees)."""
        return SplitsPublic(True, total.arrays["own"], total.arrays["between"])

    def contribute(
        self, step: Step, site: Site, private: NoMemory, public: SplitsPublic, rng: np.random.Generator
    ) -> tuple[NoMemory, Contribution]:
        """(u'u, u'v, v'v, f): u = s - Z (Z'Z)^-1 Z's of a score s, v of the other, Z all other phenotypes' scores."""
        use = np.ones(site.patients, bool) if self.params.half is None else self.half(site) == self.params.half
        within, between = np.zeros(public.own.shape), np.zeros(public.between.shape)
        for k, (i, j) in enumerate(self.modes):
            basis, part = scored(site, self.placer.factors, (i, j), use)
            within[k] = _sums(residuals(basis, part[0]), residuals(basis, part[1]))
        basis, part = scored(site, self.placer.factors, tuple(range(len(self.placer.factors))), use)
        for k, (r, s, mode) in enumerate(self.pairs):
            u, v = (residuals(basis, part[mode][:, [c]]) for c in (r, s))
            between[k] = _sums(u, v)[0]
        return private, Contribution({"own": within, "between": between})

    def groups(self, public: SplitsPublic) -> list[list[int]]:
        """Columns that are one phenotype, in groups of two or more."""
        within = np.array([[partial(m) for m in row] for row in public.own]).min(
            axis=0
        )  # (R, 2) the weakest pair of modes
        top = np.arange(self.placer.rank)
        for (r, s, _), sums in zip(self.pairs, public.between):
            rho, z = partial(sums)
            linked = min(within[r, 1], within[s, 1], z) >= TOGETHER
            if linked and rho >= AS_STRONG * min(within[r, 0], within[s, 0]):
                top[top == top[s]] = top[r]
        members: dict[int, list[int]] = {}
        for column, group in enumerate(top):
            members.setdefault(int(group), []).append(column)
        return [g for g in members.values() if len(g) > 1]


def _sums(a: tuple[Array, int], b: tuple[Array, int]) -> Array:
    (u, free), (v, _) = a, b
    if free <= 0:
        return np.zeros((u.shape[1], 4))
    return np.column_stack([(u * u).sum(0), (u * v).sum(0), (v * v).sum(0), np.full(u.shape[1], float(free))])


def joined(public: FactorPublic, groups: Sequence[Sequence[int]]) -> FactorPublic:
    """A fit's public state with each group of columns as one; the others follow as they were."""
    if not groups:
        return public
    factors = [np.asarray(f, np.float64) for f in public.factors]
    unit, length = zip(*(ordered.unit(f) for f in factors))
    energy = np.ones(factors[0].shape[1]) if public.energy is None else np.maximum(np.asarray(public.energy), 0.0)
    weight = np.sqrt(energy)
    for n in length:
        weight = weight * n
    merged = {c for g in groups for c in g[1:]}
    merged_columns: Mapping[int, tuple[list[Array], float]] = {
        g[0]: _best([u[:, g] for u in unit], weight[g]) for g in groups
    }
    remaining = [c for c in range(len(weight)) if c not in merged]
    columns = [
        np.column_stack([merged_columns[c][0][n] if c in merged_columns else u[:, c] for c in remaining])
        for n, u in enumerate(unit)
    ]
    size = np.array([merged_columns[c][1] if c in merged_columns else weight[c] for c in remaining])
    return replace(public, factors=tuple(columns), energy=np.square(size))


def _best(parts: Sequence[Array], weight: Array) -> tuple[list[Array], float]:
    """The unit columns and the size of the best rank-1 approximation of sum_r w_r f_r (x) g_r ..., by the power method.

    >>> f = np.array([[1.0, 1.0], [0.0, 0.0]])
    >>> columns, size = _best([f, np.eye(2)], np.array([3.0, 4.0]))
    >>> columns[1].round(3).tolist(), size
    ([0.6, 0.8], 5.0)
    """
    columns = [ordered.unit(ordered.product(p, weight[:, None]))[0][:, 0] for p in parts]
    size = 0.0
    for _ in range(TURNS):
        for n, p in enumerate(parts):
            w = np.array(weight)
            for q, other in enumerate(parts):
                if q != n:
                    w = w * ordered.transposed_product(other, columns[q][:, None])[:, 0]
            new, length = ordered.unit(ordered.product(p, w[:, None]))
            columns[n], size = new[:, 0], float(length[0])
    return columns, size


def accepted(fits: Sequence[FactorPublic], groups: Sequence[Sequence[list[int]]]) -> list[FactorPublic]:
    """The fit on everybody and the half fits with those groups joined that the other half confirms.

    A group is joined where its single column is in the other half, as a group there (cosine >= .8) or as a column (then closer to
    it than any of the group's own). Where structure is weak each half joins what the other does not; such groups stay apart.
    """
    out: list[FactorPublic] = []
    for a, b, in_a, in_b in zip(fits[1::2], fits[2::2], groups[1::2], groups[2::2]):
        in_first, theirs = _confirmed(a, b, in_a, in_b)
        out += [joined(a, in_first), joined(b, theirs)]
    keep = []
    for g in groups[0]:
        single = joined(fits[0], [g])
        column = min(g)
        for half in out:
            likeness = cosines([f[:, [column]] for f in single.factors], list(half.factors))[0]
            parts = cosines([np.asarray(f)[:, g] for f in fits[0].factors], list(half.factors))
            best = int(likeness.argmax())
            if likeness[best] >= BACK and likeness[best] > parts[:, best].max():
                keep.append(g)
                break
    return [joined(fits[0], keep), *out]


def _confirmed(
    a: FactorPublic, b: FactorPublic, in_a: Sequence[list[int]], in_b: Sequence[list[int]]
) -> tuple[list[list[int]], list[list[int]]]:
    """Of the groups of two halves those that the other half has, too."""
    sides = [_elements(a, in_a), _elements(b, in_b)]
    table = cosines(sides[0][0], sides[1][0])
    names = [s[1] for s in sides]
    candidates = []
    for i, x in enumerate(names[0]):
        for j, y in enumerate(names[1]):
            if len(x) == len(y) == 1 or table[i, j] < BACK:
                continue
            link = table[np.ix_(x, y)].max()
            if (len(x) > 1 and len(y) > 1) or table[i, j] > link:
                candidates.append((-min(len(x), len(y), 2), -float(table[i, j]), i, j))
    taken_columns: tuple[set[int], set[int]] = (set(), set())
    confirmed: tuple[list[list[int]], list[list[int]]] = ([], [])
    for _, _, i, j in sorted(candidates):
        pair = names[0][i], names[1][j]
        if any(u & set(m) for u, m in zip(taken_columns, pair)):
            continue
        for u, m, c in zip(taken_columns, pair, confirmed):
            u.update(m)
            c.extend([list(m)] if len(m) > 1 else [])
    return confirmed


def _elements(public: FactorPublic, groups: Sequence[list[int]]) -> tuple[list[Array], list[list[int]]]:
    """A fit's columns, and after them every group as one column; and what each consists of."""
    factors = [np.asarray(f, np.float64) for f in public.factors]
    names = [[c] for c in range(factors[0].shape[1])]
    for g in groups:
        single = joined(public, [g])
        first = min(g)
        factors = [np.column_stack([f, o[:, first]]) for f, o in zip(factors, single.factors)]
        names.append(list(g))
    return factors, names
