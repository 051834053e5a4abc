"""Sum which codes occur together, over the hospitals that share one set of codes.

    exact       the matrix of pairs of two halves of the patients (:mod:`polyclinic.methods.starts.pairs`)
    private     Q = sum_i x_i x_i' / |x_i|_1 off the diagonal, x_ij = 1 where patient i has code j, in one noisy sum

The private row of a patient with k codes has k (k - 1) / 2 entries of sqrt 2 / k, so its length is below 1, and so is what one
patient changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from polyclinic.errors import ConfigError, DataError
from polyclinic.methods.moments.moments import GRID, Array
from polyclinic.methods.moments.standardizing import Nothing
from polyclinic.methods.rounds.facts import PAIRS, RARE_PAIRS
from polyclinic.methods.starts.pairs import FEWEST, PATIENTS, Codes, CooccurringCodes, PairsPublic, pairs_before
from polyclinic.privacy.accounting.accountant import calibrate
from polyclinic.privacy.facts import MethodFacts, StepMeaning
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import Answer, Arrays, Contribution, Schema, Step, Total
from polyclinic.protocol.outcome import Outcome
from polyclinic.protocol.params import Params
from polyclinic.protocol.phases import Phase, PhaseDispatch
from polyclinic.records.sites.site import Site
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.side_by_side import side_by_side

ABOVE_NOISE = 3.0  # limit: standard deviations of noise above which a code's private row is used


@dataclass(frozen=True)
class TablePublic:
    """The table so far."""

    stage: str
    shape: tuple[int, ...]
    pairs: PairsPublic


class NoisyTable(Phase[TablePublic, Nothing]):
    """One noisy sum of pairs of codes."""

    def step(self, public: TablePublic) -> Step:
        size, p = sum(public.shape), self.fit.params
        (multiplier,) = calibrate(p.privacy.epsilon, p.privacy.delta)
        shapes = {"pairs": (size * (size - 1) // 2,)}
        return Step(1, "noisy-pairs", shapes, bound=PATIENTS, sensitivity=1.0, multiplier=multiplier, grid=GRID)

    def contribute(self, step: Step, site: Site, private: Nothing, public: TablePublic) -> Answer[Nothing]:
        """x_k = sum_i sqrt 2 / k_i for every pair of the k_i codes of patient i, on the grid."""
        rows = side_by_side(site.counts(), "presence")
        number = np.diff(rows.indptr)
        present = csr_matrix((rows.values, rows.codes, rows.indptr), (rows.patients, rows.size))
        summed = np.zeros((rows.size, rows.size))
        for k in np.unique(number[number > 1]):
            x = present[number == k]
            summed += np.trunc(np.sqrt(2.0) / k * (1 - 2.0**-40) / GRID) * GRID * (x.T @ x).toarray()
        return private, Contribution({"pairs": summed[np.triu_indices(rows.size, 1)]})

    def combine(self, step: Step, public: TablePublic, total: Total) -> TablePublic:
        """Q = total / sqrt 2, for the codes whose row is above the noise."""
        size = sum(public.shape)
        matrix = np.zeros((size, size))
        matrix[np.triu_indices(size, 1)] = total.arrays["pairs"] / np.sqrt(2.0)
        matrix += matrix.T
        patients = matrix.sum(1)
        codes = np.flatnonzero(patients > ABOVE_NOISE * total.noise_sd * np.sqrt(size / 2))
        if len(codes) < FEWEST:
            raise DataError(
                f"{len(codes)} codes are above the privacy noise, {FEWEST} are needed", hint="more patients or epsilon"
            )
        pairs = replace(public.pairs, codes=codes, patients=patients, matrix=matrix[np.ix_(codes, codes)])
        return self.fit.onward(replace(public, pairs=pairs))  # type: ignore[no-any-return]


class CodeTable(PhaseDispatch[TablePublic, Nothing], Estimator[Params, TablePublic, Nothing]):
    """Which codes occur together in one patient, summed over hospitals that share their codes.

    Attributes
    ----------
    codes_
        (m,) mode and code of every row of the table.
    matrix_
        (m, m) sum over patients of x x' / |x|, without a diagonal.
    patients_
        (codes of all modes,) patients of every code, or with privacy the sum of the code's noisy row.
    """

    name = "codetable"
    facts = MethodFacts(
        paper="sums of codes that occur together (this program)",
        formal=True,
        attacks=(RARE_PAIRS,),
        steps={**PAIRS, "noisy-pairs": StepMeaning("how often two codes occur in one patient, each patient at most 1")},
    )
    exact = 1e-4  # sums are rounded to 32 bits at every site
    additive = True
    Public = TablePublic
    Private = Nothing
    params: Any

    @property
    def phases(self) -> Mapping[str, Phase[TablePublic, Nothing]]:
        if self.params.privacy is not None:
            return {"noisy-pairs": NoisyTable(self)}
        return {"codes": Codes(self), "pairs": CooccurringCodes(self)}

    def init_public(self, setting: Schema, rng: np.random.Generator) -> TablePublic:
        """Nothing is known but the codes."""
        if self.params.privacy is not None and self.params.privacy.level != "patient":
            raise ConfigError("the table is private at the level of patients only", hint="level='patient'")
        return self.outset(TablePublic("", setting.shape, pairs_before(setting, self.params.aggregation)))

    def paired(self, public: TablePublic) -> TablePublic:
        """The table is all that is asked."""
        return public

    def init_site(self, site: Site, public: TablePublic, rng: np.random.Generator) -> Nothing:
        return Nothing()

    def finalize_site(self, site: Site, private: Nothing, public: TablePublic) -> Arrays:
        return {}

    def _publish(self, outcome: Outcome) -> None:
        pairs = outcome.public.pairs
        labels = all_codes(outcome.setting.axes)
        self.codes_ = [labels[i] for i in pairs.codes]
        self.matrix_: Array = pairs.matrix
        self.patients_ = dict(zip(labels, np.maximum(pairs.patients, 0.0).tolist(), strict=True))


def all_codes(axes: tuple[Axis, ...]) -> list[tuple[str, str]]:
    """Mode and code of every place, the modes one under another.

    >>> all_codes((Axis("lab+dx", ("dx:I50", "lab:Na")),))
    [('dx', 'I50'), ('lab', 'Na')]
    """
    places = [(a, i, mode) for a in axes for i, mode in sorted((i, m) for m, listed in a.modes() for i in listed)]
    return [(mode, a.code(i)) for a, i, mode in places]
