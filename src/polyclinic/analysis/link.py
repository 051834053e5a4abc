"""link: do patients whom nobody looked at, and who have a phenotype's codes of one mode, also have its codes of the other?

For a column with parts f and g, on patients that did not make it: a = f'x / |x|, b = g'y / |y| with x, y the 0/1 codes of two
modes. Every hospital regresses a and b on 1, log and squared log of the two numbers of codes and of the number of cells, by
itself, and gives of the residuals u, v: u'u, u'v, v'v and n_s - rank of that regression. With the sums rho = u'v / sqrt(u'u v'v)
and z = rho sqrt(free): 4 numbers a phenotype and pair of modes. A hospital with 7 patients or fewer tells nothing.

Why cells and hospitals: with permuted codes nothing may be linked, and two things were. A patient with more cells than its
numbers of distinct codes tell has the most frequent codes of both modes (diabetes-130: rho .034, z 4.4 given the two numbers
alone, 3.6 with their product, 3.0 with cubic terms, 1.3 given cells). And hospitals differ in what is frequent in both modes
(MIMIC demo, care units: 4 of 10 columns at z 3.9 to 5.0, none above 2.4 inside hospitals; where a frequency runs from .1 to .5
and codes are drawn apart, one slope for all hospitals leaves z 5 to 8, own slopes 1 to 4: not nothing). No least rho is asked
for: it would have to be chosen per kind of data.

Fresh keys new-a, new-b, new-c with seeds 201 to 203 (SumALS, rank 10, planted 12, 30 rounds), permuted: no column of 30 linked
in each of diabetes-130 (z at most 1.6) and MIMIC demo (1.9), none of 20 in DE-SynPUF (1.5), none of 36 in planted (1.6). Real,
replicable: diabetes-130 3 and 3 of 10, DE-SynPUF 6, 5 and 7 of 10 (linked 9, 8, 8: what is lost there are halves that disagree).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyclinic.analysis.base import PATIENTS, Analysis, AnalysisParams, NoMemory
from polyclinic.analysis.designs import presence_by_mode
from polyclinic.analysis.projection import CARRIES
from polyclinic.privacy.facts import MethodFacts, StepMeaning
from polyclinic.protocol.interfaces import Contribution, Schema, Step, Total
from polyclinic.records.sites.site import Site

Array = NDArray[np.float64]


class LinkParams(AnalysisParams):
    """Parameters of link."""

    half: int | None = Field(None, description="The half that is judged (the model saw the other); None: everybody.")


@dataclass(frozen=True)
class LinkPublic:
    """Sums of residuals (pairs of modes, R, 4) and in how many hospitals at least 11 patients carry each phenotype."""

    done: bool
    moments: Array
    carried: Array


class Link(Analysis):
    """Whether a phenotype's modes belong together, among patients that did not make it."""

    name = "link"
    facts = MethodFacts(
        steps={
            "link": StepMeaning(
                "how scores of two kinds of codes go together, summed over patients", "little of one patient"
            )
        }
    )
    exact = None  # whether a hospital carries a phenotype is a fact of hospitals
    Params = LinkParams
    Public = LinkPublic
    params: LinkParams

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """All pairs of feature modes."""
        return list(combinations(range(len(self.placer.factors)), 2))

    def init_public(self, setting: Schema, rng: np.random.Generator) -> LinkPublic:
        """Moments 0 for every pair of modes."""
        r = self.placer.rank
        return LinkPublic(not self.pairs, np.zeros((len(self.pairs), r, 4)), np.zeros(r))

    def next_step(self, public: LinkPublic) -> Step | None:
        """One sum: four moments per pair and phenotype, and who carries it."""
        if public.done:
            return None
        return Step(
            1,
            "link",
            {"moments": public.moments.shape, "carried": public.carried.shape},
            bound=2.0**10 * PATIENTS,
            counts=False,
        )

    def update_public(self, step: Step, public: LinkPublic, total: Total) -> LinkPublic:
        """moments = sum_k (u'u, u'v, v'v, free degrees): the correlation is u'v / sqrt(u'u v'v)."""
        return replace(public, done=True, moments=total.arrays["moments"], carried=np.rint(total.arrays["carried"]))

    def contribute(
        self, step: Step, site: Site, private: NoMemory, public: LinkPublic, rng: np.random.Generator
    ) -> tuple[NoMemory, Contribution]:
        """(u'u, u'v, v'v, f): u = s - Z (Z'Z)^-1 Z's of a phenotype's score s in one mode, v in the other, Z the others'."""
        use = np.ones(site.patients, bool) if self.params.half is None else self.half(site) == self.params.half
        out = np.zeros(public.moments.shape)
        for k, pair in enumerate(self.pairs):
            basis, part = scored(site, self.placer.factors, pair, use)
            u, free = residuals(basis, part[0])
            v, _ = residuals(basis, part[1])
            if free > 0:
                out[k] = np.column_stack([(u * u).sum(0), (u * v).sum(0), (v * v).sum(0), np.full(u.shape[1], free)])
        enough = (self.placer.shares(site) >= CARRIES).sum(0) >= 11
        return private, Contribution({"moments": out, "carried": enough.astype(np.float64)})

    def rho(self, public: LinkPublic) -> tuple[Array, Array]:
        """(R,) partial correlation and z; with more than two modes the weakest pair."""
        correlations = np.array([[partial(m) for m in row] for row in public.moments])  # (pairs, R, 2)
        if not len(correlations):
            return np.zeros(self.placer.rank), np.zeros(self.placer.rank)
        weakest = correlations[:, :, 1].argmin(0)
        weakest_rho = correlations[weakest, np.arange(self.placer.rank)]
        return weakest_rho[:, 0], weakest_rho[:, 1]


def scored(
    site: Site, factors: Sequence[Array], modes: Sequence[int], use: NDArray[np.bool_]
) -> tuple[Array, list[Array]]:
    """Of the patients of ``use`` who have codes of these modes: what every score is judged given (1, log and squared log of the
    numbers of codes and of cells), and per mode (patients, R) scores f'x / |x|."""
    t = site.counts()
    cells, presence = np.bincount(t.rows, np.diff(t.indptr), t.patients), presence_by_mode(t)
    size = [np.asarray(h.sum(1)).ravel() for h in presence]
    present = use & np.all([size[m] > 0 for m in modes], axis=0)
    logs = np.log(np.column_stack([*(size[m][present] for m in modes), cells[present]]))
    basis = np.column_stack([np.ones(len(logs)), logs, logs**2])
    part = [(presence[m] @ np.abs(factors[m]))[present] / np.sqrt(size[m][present])[:, None] for m in modes]
    return basis, part


def residuals(given: Array, values: Array) -> tuple[Array, int]:
    """What is left of the values' columns given these, and in how many dimensions; nothing where it is rounding alone."""
    if not len(given):
        return values, 0
    basis, size, _ = np.linalg.svd(given, full_matrices=False)
    basis = basis[:, size > 1e-9 * size[0]]
    remainder = values - basis @ (basis.T @ values)
    remainder[:, (remainder**2).sum(0) <= 1e-12 * (values**2).sum(0)] = 0.0
    return remainder, len(given) - basis.shape[1]


def partial(sums: Array) -> tuple[float, float]:
    """rho and z from u'u, u'v, v'v and the dimensions left; 0 where there is nothing to judge by.

    >>> rho, z = partial(np.array([4.0, 2.0, 4.0, 100.0]))
    >>> rho, z
    (0.5, 5.0)
    """
    uu, uv, vv, free = (float(x) for x in sums)
    if free <= 2 or uu <= 0 or vv <= 0:
        return 0.0, 0.0
    rho = float(np.clip(uv / np.sqrt(uu * vv), -1.0, 1.0))
    return rho, rho * float(np.sqrt(free))
