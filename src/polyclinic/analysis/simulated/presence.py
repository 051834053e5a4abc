"""Where is each phenotype found, in how many patients, and does it describe a crowd or single patients?

Everything here counts patients, so it is a simulation's own knowledge, or a site's, or it must be released and paid for.
Small counts are removed at the source, with the ones that would give them away: what is written down is what may be shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from polyclinic.models.mixtures.groups import Groups
from polyclinic.models.phenotypes.cohort import CARRIES, shares
from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.privacy.small_cells import effective_contributors, suppress
from polyclinic.records.sites.site import Site

__all__ = ["CARRIES", "MINIMUM", "Presence", "memberships_of", "presence"]

# definition: minimum cell size
MINIMUM: Final = 11  # counts from 1 to 10 are not shown

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
    contributors
        (R,) effective number of patients who carry the phenotype; None below the minimum.
    """

    minimum: int
    sites: Mapping[str, Count]
    carriers: tuple[tuple[Count, ...], ...]
    totals: tuple[Count, ...]
    contributors: tuple[float | None, ...]
    certainty: tuple[float | None, ...] = ()  # of a mixture: mean probability with which members belong to the group

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "minimum": self.minimum,
            "carries": CARRIES,
            "sites": dict(self.sites),
            "carriers": [list(r) for r in self.carriers],
            "totals": list(self.totals),
            "contributors": list(self.contributors),
            "certainty": list(self.certainty),
        }


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
    value = model.result_
    overlapping = isinstance(value, Phenotypes)
    if isinstance(value, Phenotypes):
        carries = [shares(value, a) >= CARRIES for a in loadings]
    else:  # a mixture: everybody belongs to the most probable group
        carries = [np.arange(a.shape[1]) == a.argmax(1)[:, None] for a in loadings]
    counts = np.array([h.sum(0) for h in carries]).T
    carriers, totals, patients = _suppressed(counts, [len(a) for a in loadings], overlapping, minimum)
    all_loadings = np.concatenate(loadings)
    crowd = effective_contributors(all_loadings)
    return Presence(
        minimum,
        dict(zip((s.name for s in sites), patients)),
        carriers,
        totals,
        tuple(None if n < minimum else float(np.round(n, 1)) for n in crowd),
        () if overlapping else _certainty(all_loadings, minimum),
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
