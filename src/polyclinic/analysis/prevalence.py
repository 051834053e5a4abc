"""carriers: how many patients have each phenotype, and how many of them have each of its codes. One sum."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyclinic.analysis.base import PATIENTS, Analysis, AnalysisParams, NoMemory
from polyclinic.analysis.statistics.intervals import wilson
from polyclinic.privacy.facts import MethodFacts, StepMeaning
from polyclinic.privacy.small_cells import hide_rest
from polyclinic.protocol.interfaces import Contribution, Schema, Step, Total
from polyclinic.records.sites.site import Site
from polyclinic.util.table import Table

Array = NDArray[np.float64]
# definition: the dominance rule for a code that may be shown
DOMINANT: Final = 0.5  # two patients may hold at most so much of a code's weight
# limit: of precision, the bound exceeds the heaviest patient by at most n^(1/8)
POWER: Final = 8  # (sum w^8)^(1/8) bounds the heaviest patient closely


class PrevalenceParams(AnalysisParams):
    """Parameters of carriers."""

    top: int = Field(80, ge=1, description="Codes of each phenotype and mode whose support is counted, heaviest first.")
    support: bool = Field(True, description="Count support per code; without it codes are shown by carriers alone.")


@dataclass(frozen=True)
class PrevalencePublic:
    """Counts over all sites; the small ones are not written down anywhere."""

    done: bool
    n: Array  # (2,) patients of each half
    carriers: Array  # (R,)
    halves: Array  # (2, R) carriers by half
    first: Array  # (R,) sum of shares
    second: Array
    support: tuple[Array, ...]  # per mode (top, R): patients who carry r and have the code
    weight: tuple[Array, ...]  # sum of share x count
    eighth: tuple[Array, ...]  # sum of (share x count)^8, in public units
    members: int = 0
    sites: tuple[str, ...] = ()
    hospitals: Array = field(
        default_factory=lambda: np.zeros((0, 0))
    )  # (sites, R + 1) counts + 1, last patients; 0: not shown


class Prevalence(Analysis):
    """Who has which phenotype: prevalence, effective size, and which codes enough of its carriers have.

    Examples
    --------
    >>> import polyclinic as pc
    >>> from polyclinic.protocol.loop import run
    >>> sites = pc.datasets.icu_network(patients=300, seed=0)
    >>> act = Prevalence(model=pc.SumALS(rank=4, rounds=5).fit(sites))
    >>> act.prevalence(run(act, sites).public)["patients"] == act.prevalence(run(act, sites[::-1]).public)["patients"]
    True
    """

    name = "carriers"
    facts = MethodFacts(
        steps={
            "carriers": StepMeaning(
                "how many patients have each phenotype, and how many of them each of its codes",
                "the total of a code that one patient has",
            )
        }
    )
    exact = 1e-9
    Params = PrevalenceParams
    Public = PrevalencePublic
    params: PrevalenceParams

    def codes(self) -> list[NDArray[np.int64]]:
        """Per mode (top, R) indices of each phenotype's heaviest codes: public."""
        return [np.argsort(-np.abs(f), axis=0, kind="stable")[: self.params.top] for f in self.placer.factors]

    # ---- coordinator

    def init_public(self, setting: Schema, rng: np.random.Generator) -> PrevalencePublic:
        """All counts 0."""
        r = self.placer.rank
        empty = tuple(np.zeros(c.shape) for c in self.codes()) if self.params.support else ()
        return PrevalencePublic(
            False,
            np.zeros(2),
            np.zeros(r),
            np.zeros((2, r)),
            np.zeros(r),
            np.zeros(r),
            empty,
            empty,
            empty,
            sites=setting.sites,
            hospitals=np.zeros((len(setting.sites), r + 1)),
        )

    def next_step(self, public: PrevalencePublic) -> Step | None:
        """One sum over patients p: (half(p)), (has_r(p)), share_r(p), share_r(p)^2, and the codes' support."""
        if public.done:
            return None
        r = self.placer.rank
        shapes: dict[str, tuple[int, ...]] = {"n": (2,), "halves": (2, r), "first": (r,), "second": (r,)}
        shapes["hospitals"] = public.hospitals.shape
        if self.params.support:
            for m, c in enumerate(self.codes(), start=1):
                shapes |= {f"{k}{m}": c.shape for k in ("support", "weight", "eighth")}
        return Step(1, "carriers", shapes, bound=PATIENTS, counts=False)

    def update_public(self, step: Step, public: PrevalencePublic, total: Total) -> PrevalencePublic:
        """carriers_r = sum_k sum_p has_r(p), first_r = sum share_r, second_r = sum share_r^2; counts rounded to whole ones."""
        a = total.arrays
        modes = range(1, len(self.placer.factors) + 1) if self.params.support else ()
        halves = np.rint(a["halves"])
        return replace(
            public,
            done=True,
            n=np.rint(a["n"]),
            halves=halves,
            carriers=halves.sum(0),
            first=np.maximum(a["first"], 0.0),
            second=np.maximum(a["second"], 0.0),
            support=tuple(np.rint(a[f"support{m}"]) for m in modes),
            weight=tuple(np.maximum(a[f"weight{m}"], 0.0) for m in modes),
            eighth=tuple(np.maximum(a[f"eighth{m}"], 0.0) for m in modes),
            members=total.members,
            hospitals=np.rint(a["hospitals"]),
        )

    # ---- hospital

    def contribute(
        self, step: Step, site: Site, private: NoMemory, public: PrevalencePublic, rng: np.random.Generator
    ) -> tuple[NoMemory, Contribution]:
        """sum_p has_r(p) by half, sum_p share_r(p)^m, m = 1, 2; per top code c: sum_p [c in p] has_r(p) and weights."""
        from scipy.sparse import coo_matrix

        share, carries, half = self.placer.shares(site), self.placer.has(site), self.half(site)
        arrays: dict[str, Array] = {
            "n": np.bincount(half, minlength=2).astype(np.float64),
            "halves": np.stack([carries[half == h].sum(0) for h in (0, 1)]).astype(np.float64),
            "first": share.sum(0),
            "second": np.square(share).sum(0),
            "hospitals": own_row(public.sites, site, carries.sum(0)),
        }
        if self.params.support:
            t = site.counts()
            patient = np.repeat(t.rows, np.diff(t.indptr))
            for m, top in enumerate(self.codes(), start=1):
                counts = coo_matrix((np.abs(t.values), (patient, t.codes[m - 1])), (t.patients, t.shape[m])).tocsr()
                # saturating: one patient's weight is at most 1, so the sums have a public bound and 8th powers fit them
                weighed = counts.copy()
                weighed.data = weighed.data / (1.0 + weighed.data)
                present = counts.copy()
                present.data = np.ones_like(present.data)
                component = np.arange(top.shape[1])
                arrays[f"support{m}"] = (present.T @ carries.astype(np.float64))[top, component]
                arrays[f"weight{m}"] = (weighed.T @ share)[top, component]
                arrays[f"eighth{m}"] = (weighed.power(POWER).T @ share**POWER)[top, component]
        return private, Contribution(arrays)

    # ---- results

    def prevalence(self, public: PrevalencePublic) -> Table:
        """Phenotype, patients who carry it, their share with Wilson's interval, effective number of contributors."""
        n = float(public.n.sum())
        effective = public.first**2 / np.maximum(public.second, 1e-300)
        rows = [
            [r, int(c), float(c) / n if n else 0.0, *wilson(float(c), n), float(e)]
            for r, (c, e) in enumerate(zip(public.carriers, effective))
        ]
        return Table(["phenotype", "patients", "share", "low", "high", "effective"], rows)

    def by_hospital(self, public: PrevalencePublic, minimum: int = 11) -> Table | None:
        """Patients with each phenotype at the hospitals whose owners show it; None where no owner does.

        With the totals, the hospitals that are left out of a phenotype are known together. Where they have few patients with it
        or without it, or are one hospital, the smallest other one is left out, too.
        """
        counts = np.where(public.hospitals > 0, public.hospitals - 1, np.nan)
        if np.isnan(counts).all():
            return None
        everybody = float(public.n.sum())
        sizes = counts[:, -1]

        def few(hidden: NDArray[np.bool_], carry: float) -> bool:
            return bool(0 < everybody - sizes[~hidden].sum() - carry < minimum)

        totals = (*public.carriers, everybody)
        counts = np.column_stack([hide_rest(c, float(n), minimum, few) for c, n in zip(counts.T, totals)])
        cells = [[None if np.isnan(x) else int(x) for x in row] for row in counts]
        rows = [[name, r, row[r], row[-1]] for name, row in zip(public.sites, cells) for r in range(len(row) - 1)]
        return Table(["hospital", "phenotype", "patients", "of"], rows)

    def shown(self, public: PrevalencePublic, minimum: int = 11) -> tuple[NDArray[np.bool_], ...]:
        """Per mode (I_n, R): codes that at least ``minimum`` carriers have and of which no two hold more than half."""
        return self._masks(public, minimum, dominated=False)

    def held(self, public: PrevalencePublic, minimum: int = 11) -> tuple[NDArray[np.bool_], ...]:
        """Per mode (I_n, R): codes that enough carriers have, but of which two hold more than half."""
        return self._masks(public, minimum, dominated=True)

    def _masks(self, public: PrevalencePublic, minimum: int, *, dominated: bool) -> tuple[NDArray[np.bool_], ...]:
        out = []
        for f, top, s, w, e in zip(
            self.placer.factors, self.codes(), public.support, public.weight, public.eighth, strict=True
        ):
            mask = np.zeros(f.shape, bool)
            enough = (s >= minimum) & (public.carriers >= minimum)
            mask[top, np.arange(f.shape[1])] = enough & ((two_hold(w, e) > DOMINANT) == dominated)
            out.append(mask)
        return tuple(out)


def two_hold(weight: Array, eighth: Array) -> Array:
    """At most this part of a sum of weights is held by any two patients, from the sum and the sum of 8th powers (Hoelder).

    >>> w = np.array([5.0, *[1.0] * 11])
    >>> float(two_hold(w.sum(), (w**8).sum()).round(2))
    0.57
    """
    return np.asarray(2 ** (1 - 1 / POWER) * eighth ** (1 / POWER) / np.maximum(weight, 1e-300))


def own_row(sites: tuple[str, ...], site: Site, carriers: NDArray[np.int64]) -> Array:
    """(sites, R + 1) this hospital's counts, and 1 for each, in its own row, where its owner shows them; small ones stay 0."""
    out, n, least = np.zeros((len(sites), len(carriers) + 1)), site.patients, site.counted
    if least and n >= least:
        counts = np.append(carriers, n)
        small = ((counts > 0) & (counts < least)) | ((counts < n) & (n - counts < least))
        out[sites.index(site.name)] = np.where(small, 0, counts + 1)
    return out
