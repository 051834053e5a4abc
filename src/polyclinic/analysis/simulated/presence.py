"""Where is each phenotype found, in how many patients, and does it describe a crowd or single patients?

Everything here counts patients, so it is a simulation's own knowledge, or a site's, or it must be released and paid for.
Small counts are removed at the source, with the ones that would give them away: what is written down is what may be shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from polyclinic.analysis.simulated.shown_codes import NAMED, CodeSums, kept_shares
from polyclinic.models.mixtures.groups import Groups
from polyclinic.models.phenotypes.cohort import CARRIES, shares
from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.privacy.small_cells import effective_contributors, suppress
from polyclinic.records.sites.site import Site
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.tensors.weighting import weighted

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

__all__ = ["CARRIES", "MINIMUM", "Presence", "memberships_of", "presence"]

# definition: minimum cell size
MINIMUM: Final = 11  # counts from 1 to 10 are not shown
# definition: of a phenotype that a site lacks
ABSENT: Final = 0.01  # a site lacks a phenotype whose loadings are below this part of the strongest site's

Array = NDArray[np.float64]
Count = int | None


class WithResult(Protocol):
    """Whatever was fitted: an estimator, or anything else with what it learned."""

    @property
    def result_(self) -> Any: ...


@dataclass(frozen=True, eq=False)
class Presence:
    """Counts of patients by site and phenotype (or group), small cells removed.

    Attributes
    ----------
    sites
        Site -> number of patients, or None where it is small.
    carriers
        Per phenotype the number of patients who have it, by site in the same order; None = not shown.
    totals
        Per phenotype over all sites.
    strength
        Per phenotype and site: root mean squared membership, relative to the strongest site; None where 1 to
        ``minimum`` - 1 patients have it (it is no count, so it may stand beside a cell that only hides another one).
    contributors
        (R,) effective number of patients who carry the phenotype; None below the minimum.
    few
        Per feature mode (I_n, R): True for codes that may not be shown (:mod:`polyclinic.analysis.simulated.shown_codes`).
    held
        The same, of these: enough patients have the code, but two of them hold most of its weight.
    carried
        (R,) whether at least the minimum of patients have the phenotype; otherwise none of its codes are shown.
    kept
        (R, modes) share of the phenotype's squared weight that its shown codes hold.
    """

    minimum: int
    sites: Mapping[str, Count]
    carriers: tuple[tuple[Count, ...], ...]
    totals: tuple[Count, ...]
    strength: tuple[tuple[float | None, ...], ...]
    contributors: tuple[float | None, ...]
    few: tuple[NDArray[np.bool_], ...] = ()
    held: tuple[NDArray[np.bool_], ...] = ()
    carried: tuple[bool, ...] = ()
    kept: tuple[tuple[float, ...], ...] = ()
    certainty: tuple[float | None, ...] = ()  # of a mixture: mean probability with which members belong to the group

    def to_json(self) -> dict[str, object]:
        """Plain values; ``few`` and ``held`` are kept apart."""
        return {
            "minimum": self.minimum,
            "carries": CARRIES,
            "sites": dict(self.sites),
            "carriers": [list(r) for r in self.carriers],
            "totals": list(self.totals),
            "strength": [list(r) for r in self.strength],
            "contributors": list(self.contributors),
            "carried": list(self.carried),
            "kept": [list(r) for r in self.kept],
            "certainty": list(self.certainty),
        }

    @property
    def named(self) -> int:
        """How many phenotypes have a name: their shown codes hold half of the squared weight in each mode."""
        return sum(min(k) >= NAMED for k in self.kept)


def memberships_of(model: object, site: Site) -> Array:
    """(patients, R) memberships of a fitted site: as the fit left them, else as the model places its patients."""
    memberships: Mapping[str, Array] = vars(model).get("memberships_") or {}
    if site.name in memberships:
        return np.asarray(memberships[site.name], np.float64)
    value = vars(model).get("result_")
    assert isinstance(value, Phenotypes | Groups)
    return np.asarray(value.transform(site), np.float64)


def presence(model: WithResult, sites: Sequence[Site], *, minimum: int = MINIMUM) -> Presence:
    """Count who has which phenotype of a fitted model (or who belongs to which group of a mixture).

    Parameters
    ----------
    model
        Fitted: phenotypes, groups or classes.
    sites
        The hospitals it was fitted on.
    minimum
        Smallest count that may be shown; the strictest of the owners' ``policy.min_cell``.
    """
    loadings = [np.abs(memberships_of(model, s)) for s in sites]
    factors: list[NDArray[np.float64]] = []
    value = model.result_
    match value:
        case Phenotypes():
            factors = list(value.factors)
            carries = [shares(value, a) >= CARRIES for a in loadings]
        case _:  # a mixture: everybody belongs to the most probable group
            carries = [np.arange(a.shape[1]) == a.argmax(1)[:, None] for a in loadings]
    counts = np.array([h.sum(0) for h in carries]).T
    carriers, totals, patients = _suppressed(counts, [len(a) for a in loadings], bool(factors), minimum)
    all_loadings = np.concatenate(loadings)
    crowd = effective_contributors(all_loadings)
    enough = counts.sum(1) >= minimum
    n0 = value.saturation if isinstance(value, Phenotypes) else None
    sums = [_sums(sites, loadings, carries, mode, n0) for mode in range(1, len(factors) + 1)]
    rare = [s.hidden(minimum) for s in sums]
    visible = value.shown if isinstance(value, Phenotypes) and value.shown else [f != 0 for f in factors]
    noise = [~np.asarray(t, bool) for t in visible]  # codes that the known noise explains are not shown, either
    size = np.array([np.sqrt((a**2).mean(0)) if len(a) else np.zeros(a.shape[1]) for a in loadings]).T
    relative = size / np.maximum(size.max(1, keepdims=True), 1e-300)
    strength = tuple(
        tuple(None if 0 < c < minimum else round(float(x), 3) for x, c in zip(row, has_row))
        for row, has_row in zip(relative, counts)
    )
    return Presence(
        minimum,
        dict(zip((s.name for s in sites), patients)),
        carriers,
        totals,
        strength,
        tuple(None if n < minimum else float(np.round(n, 1)) for n in crowd),
        tuple(rare),
        tuple(s.hidden(minimum) & (s.support >= minimum) for s in sums),
        tuple(bool(c) for c in enough) if factors else (),
        kept_shares(factors, [h | ~enough | n for h, n in zip(rare, noise)]) if factors else (),
        () if factors else _certainty(all_loadings, minimum),
    )


def _certainty(responsibilities: Array, minimum: int) -> tuple[float | None, ...]:
    """(k,) how sure the members of a group belong to it; None for groups of few."""
    group, sure = responsibilities.argmax(1), responsibilities.max(1)
    members = [sure[group == j] for j in range(responsibilities.shape[1])]
    return tuple(None if len(m) < minimum else round(float(m.mean()), 3) for m in members)


def _suppressed(
    counts: NDArray[np.int64], patients: Sequence[int], overlapping: bool, minimum: int
) -> tuple[tuple[tuple[Count, ...], ...], tuple[Count, ...], list[Count]]:
    """Counts (R, sites), totals (R,) and patients (sites) with small and complementary cells as None.

    Phenotypes overlap: each is a table of its own, with and without it, by site. Groups of a mixture add up to the
    site's patients: they are one table.
    """
    n = np.asarray(patients)
    visible: list[Count] = [None if h else int(x) for x, h in zip(n, suppress(n, minimum=minimum))]
    if overlapping:
        rows: list[tuple[tuple[Count, ...], Count]] = []
        for row in counts:
            hide = suppress(np.column_stack([row, n - row]), minimum=minimum)
            rows.append((_open(row, hide[:-1, 0]), _open([row.sum()], hide[-1:, 0])[0]))
        return tuple(c for c, _ in rows), tuple(t for _, t in rows), visible
    hide = suppress(counts, minimum=minimum)
    cells = tuple(_open(row, flags) for row, flags in zip(counts, hide[:-1, :-1]))
    return cells, _open(counts.sum(1), hide[:-1, -1]), list(_open(n, hide[-1, :-1]))


def _open(counts: Iterable[int], hide: NDArray[np.bool_]) -> tuple[Count, ...]:
    return tuple(None if h else int(c) for c, h in zip(counts, hide))


def _sums(
    sites: Sequence[Site], loadings: Sequence[Array], has: Sequence[NDArray[np.bool_]], mode: int, n0: float | None
) -> CodeSums:
    """The three sums over patients that decide which codes of one feature mode may be shown.

    Whether two patients make a code is asked of the cells as fitted: what is shown was made of those.
    """
    sums = []
    for site, a, h in zip(sites, loadings, has):
        codes = _by_patient(weighted(site.counts(), n0), mode)
        sums.append((codes.sign().T @ h.astype(np.float64), codes.T @ a, codes.power(8).T @ a**8))
    return CodeSums(*(np.sum(x, axis=0) for x in zip(*sums)))


def _by_patient(tensor: SparseTensor, mode: int) -> csr_matrix:
    """(patients, codes) counts of one feature mode."""
    from scipy.sparse import coo_matrix

    c = tensor.coords
    return coo_matrix((np.abs(tensor.values), (c[:, 0], c[:, mode])), (tensor.patients, tensor.shape[mode])).tocsr()
