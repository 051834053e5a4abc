"""The rows of paid releases: what one patient adds to each part, whatever the record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polyclinic.analysis.private.forecast import BINS, PRODUCT
from polyclinic.analysis.private.unit_rows import CHUNK, Part, summed
from polyclinic.analysis.projection import outcome_of
from polyclinic.analysis.statistics.survival_curves import step_of
from polyclinic.records.sites.site import Site

if TYPE_CHECKING:
    from polyclinic.analysis.private.moments import PrivateFindings, PrivateFindingsPublic

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Records:
    """A site's patients as rows are made of them. ``carried`` has at most K ones a row, ``z`` is in [-1, 1]."""

    site: Site
    carried: NDArray[np.bool_]  # (patients, R) among the K strongest
    over: NDArray[np.bool_]  # (patients,) carries more than K
    z: Array  # (patients, c); of every variable at most one entry is not 0
    y: Array  # (patients,) 0, 1, NaN
    known: NDArray[np.bool_]

    @classmethod
    def of(cls, act: PrivateFindings, site: Site) -> Records:
        """Of a site; an unknown outcome or covariate makes a row of zeros in the regression, and nowhere else."""
        share = np.nan_to_num(act.placer.shares(site), nan=0.0, posinf=0.0, neginf=0.0)
        carries = act.placer.has(site)
        k = min(act.params.max_carried, act.placer.rank)
        strongest = np.zeros(carries.shape, bool)
        np.put_along_axis(strongest, np.argsort(-share, axis=1, kind="stable")[:, :k], True, axis=1)
        z, full = act.covariates.columns(site)
        y = outcome_of(site)
        z = np.clip(np.nan_to_num(z, nan=0.0, posinf=0.0, neginf=0.0), -1.0, 1.0)
        return cls(site, carries & strongest, carries.sum(1) > k, z, y, np.isfinite(y) & full)

    @property
    def ones(self) -> NDArray[np.bool_]:
        """(patients, 1 + R): everybody, and the phenotypes carried."""
        return np.column_stack([np.ones(len(self.carried), bool), self.carried])

    def x(self) -> Array:
        """(patients, 1 + R + c) columns of the regression."""
        return np.concatenate([self.ones.astype(np.float64), self.z], axis=1)


def rows_of(part: Part, r: Records, act: PrivateFindings, public: PrivateFindingsPublic) -> Array:
    """One site's sum of one part."""
    rows: Array = ROWS[part.name](part, r, act, public)
    return rows


def _carriers(part: Part, r: Records, act: PrivateFindings, public: PrivateFindingsPublic) -> Array:
    counts = np.concatenate([[len(r.carried), r.over.sum()], r.carried.sum(0)])
    return part.counted(counts.astype(np.int64))


def _cells(part: Part, who: NDArray[np.bool_], cell: NDArray[np.int64], cells: int) -> Array:
    """Counts of (group, cell): every patient in one cell, and in every group that ``who`` says."""
    out = np.stack([np.bincount(cell[w], minlength=cells) for w in who.T])
    return part.counted(out.astype(np.int64))


def _people(part: Part, r: Records, act: PrivateFindings, public: PrivateFindingsPublic) -> Array:
    blocks = [
        _cells(Part(part.name, (-1, len(v.words)), part.most, part.share), r.ones, v.level(r.site), len(v.words))
        for v in act.variables
    ]
    return np.concatenate(blocks, axis=1)


def _pairs(part: Part, r: Records, act: PrivateFindings, public: PrivateFindingsPublic) -> Array:
    out = np.zeros(part.shape)
    number = np.concatenate([np.full(v.width, not v.levels) for v in act.covariates.variables] or [np.zeros(0, bool)])
    for at in range(0, len(r.y), CHUNK):
        chunk = slice(at, at + CHUNK)
        use = r.known[chunk]
        x = np.concatenate([r.ones[chunk], r.z[chunk]], axis=1, dtype=np.float64)[use]
        z, y, d = r.z[chunk][use], r.y[chunk][use], x[:, 1:]
        i, j = np.triu_indices(d.shape[1], 1)
        rows = [np.ones((len(x), 1)), z, x * y[:, None], PRODUCT * d[:, i] * d[:, j], PRODUCT * np.square(z[:, number])]
        out = out + summed(np.concatenate(rows, axis=1), part)
    return out


def _gradient(part: Part, r: Records, act: PrivateFindings, public: PrivateFindingsPublic) -> Array:
    assert public.at is not None
    x, y = r.x()[r.known], r.y[r.known]
    mu = 0.5 * (1.0 + np.tanh(np.clip(x @ public.at[-1], -30.0, 30.0) / 2.0))
    return summed(x * (y - mu)[:, None], part)


def _scores(part: Part, r: Records, act: PrivateFindings, public: PrivateFindingsPublic) -> Array:
    if public.cuts is None or public.at is None:  # the regression was not bought
        return np.zeros(part.shape)
    eta = r.x()[r.known] @ public.at[-1]
    cell = r.y[r.known].astype(np.int64) * BINS + np.searchsorted(public.cuts, eta)
    return part.counted(np.bincount(cell, minlength=2 * BINS).astype(np.int64))


def _survival(part: Part, r: Records, act: PrivateFindings, public: PrivateFindingsPublic) -> Array:
    people, n = r.site.people, r.site.patients
    time = np.full(n, np.nan) if people is None or people.time is None else people.time
    event = np.zeros(n, bool) if people is None or people.event is None else people.event
    timed = np.isfinite(time)
    step_index = step_of(np.where(timed, np.clip(time, 0.0, 2.0**40), 0.0), act.step_days)
    happened = event & (step_index < act.times)
    cell = np.minimum(step_index, act.times - 1) * 2 + happened
    return _cells(part, r.ones[timed], cell[timed], 2 * act.times)


def _placements(part: Part, r: Records, act: PrivateFindings, public: PrivateFindingsPublic) -> Array:
    return summed(act.placer.shares(r.site), part)


def _completion(part: Part, r: Records, act: PrivateFindings, public: PrivateFindingsPublic) -> Array:
    gain, present = act.gains(r.site, public)
    gain = np.clip(gain, -1.0, 1.0)
    return summed(np.column_stack([gain, np.square(gain), np.ones(len(gain))])[present], part)


ROWS: dict[str, Callable[..., Array]] = {
    "carriers": _carriers,
    "people": _people,
    "pairs": _pairs,
    "gradient": _gradient,
    "scores": _scores,
    "survival": _survival,
    "placements": _placements,
    "completion": _completion,
}
