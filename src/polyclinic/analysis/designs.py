"""What an outcome is regressed on: phenotypes, and the baselines that say what an AUC is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from polyclinic.analysis.projection import Covariates, Projector, sizes_of
from polyclinic.protocol.interfaces import seeds
from polyclinic.records.sites.site import Site
from polyclinic.tensors.cp import solve_memberships
from polyclinic.tensors.sparse import SparseTensor

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Array = NDArray[np.float64]
CODES: Final = 20  # of the ceiling: the codes that go most with the outcome in the half that is learned from
CHOSEN: Final = ("codes", "ratios")  # designs whose columns are made from the first sums
# limit: keeps every sum within its encoding
WIDEST: Final = 10.0  # a column is cut to so many units


@dataclass(frozen=True)
class Design:
    """One set of columns. ``slots``: 0 everybody, 1 and 2 the halves that a regression is learned from."""

    name: str
    width: int  # columns beside the covariates
    slots: tuple[int, ...]
    words: str
    plain: bool = False  # 0/1 columns keep their unit


class Designs:
    """The columns of every design at a site, made once."""

    def __init__(self, placers: Sequence[Projector], covariates: Covariates, baselines: bool, seed: int) -> None:
        self.placers, self.covariates, self.seed = tuple(placers), covariates, seed
        rank = self.placers[0].rank
        self._random: Projector | None = None
        self._kept: Any = WeakKeyDictionary()
        halves_only = (1, 2)
        designs = [
            Design("effects", rank, (0, 1, 2), "carriers of each phenotype", plain=True),
            Design("phenotypes", rank, halves_only, "phenotypes"),
            Design("covariates", 0, (0, 1, 2), "covariates alone"),
        ]
        if baselines:
            designs += [
                Design("size", 0 if covariates.size else 2, halves_only, "record size"),
                Design("random", rank, halves_only, "random factors"),
                Design("codes", CODES, halves_only, f"the {CODES} strongest codes"),
                Design("ratios", 1, halves_only, "all codes (naive Bayes)"),
            ]
        self.all = tuple(designs)

    @property
    def common(self) -> int:
        """Columns that all designs share: covariates, and an intercept where hospitals do not have their own."""
        return len(self.covariates.names) + (not self.covariates.site)

    def width(self, design: Design) -> int:
        """All columns of a design."""
        return self.common + design.width

    def penalised(self, design: Design) -> NDArray[np.bool_]:
        """Which coefficients have a prior: all but the intercept."""
        out = np.ones(self.width(design), bool)
        out[: int(not self.covariates.site)] = False
        return out

    def columns(self, design: Design, slot: int, site: Site, codes: NDArray[np.int64], ratios: Array) -> Array:
        """(patients, width) raw columns for one slot.

        ``codes`` (2, CODES) are the chosen raw codes of each half, ``ratios`` (2, all codes) what each code tells there.
        """
        cached = self._kept.setdefault(site, {})
        place = (design.name, slot if design.name in ("phenotypes", *CHOSEN) else 0)
        if place not in cached:
            common = [self.covariates.columns(site)[0]]
            if not self.covariates.site:
                common.insert(0, np.ones((site.patients, 1)))
            cached[place] = np.concatenate([*common, self._own(design, slot, site, codes, ratios)], axis=1)
        return cached[place]  # type: ignore[no-any-return]

    def _own(self, design: Design, slot: int, site: Site, codes: NDArray[np.int64], ratios: Array) -> Array:
        if design.name == "effects":
            return self.placers[0].has(site).astype(np.float64)
        if design.name == "phenotypes":
            return _logs(self.placers[min(slot, len(self.placers) - 1)], site)
        if design.name == "size" and design.width:
            return sizes_of(site)
        if design.name == "random":
            if self._random is None:
                sizes = [len(f) for f in self.placers[0].factors]
                self._random = random_placer(sizes, self.placers[0].rank, self.seed)
            return _logs(self._random, site)
        if design.name == "codes":
            return np.asarray(code_presence(site)[:, codes[slot - 1]].todense(), np.float64)
        if design.name == "ratios":
            return np.asarray(code_presence(site) @ ratios[slot - 1], np.float64)[:, None]
        return np.zeros((site.patients, 0))


def _logs(placer: Projector, site: Site) -> Array:
    """log(1 + expected events of each phenotype): the unit of prediction."""
    mass = np.prod([np.abs(f).sum(0) for f in placer.factors], axis=0)
    out: Array = np.log1p(placer.loads(site) * mass)
    return out


def random_placer(sizes: Sequence[int], rank: int, seed: int) -> Projector:
    """Factors that learned nothing: what a model must beat."""
    rng = seeds(seed, "random factors")
    factors = [rng.exponential(size=(n, rank)) for n in sizes]
    factors = [f / np.linalg.norm(f, axis=0) for f in factors]
    return Projector(factors, lambda site: solve_memberships(site.counts(), factors))


def presence_by_mode(t: SparseTensor) -> list[csr_matrix]:
    """Return per mode (patients, I_n) sparse 0/1: which codes a patient has."""
    from scipy.sparse import coo_matrix

    patient = np.repeat(t.rows, np.diff(t.indptr))
    out = []
    for c, size in zip(t.codes, t.shape[1:]):
        m = coo_matrix((np.ones(t.nnz), (patient, c)), (t.patients, size)).tocsr()
        m.data = np.ones_like(m.data)
        out.append(m)
    return out


def code_presence(site: Site) -> csr_matrix:
    """Return (patients, all codes of all modes) sparse 0/1: which codes a patient has."""
    from scipy.sparse import hstack

    return hstack(presence_by_mode(site.counts()), format="csr")
