"""One matrix of codes that occur together, summed over two halves of the patients: how many components, and a start.

    codes   patients who have each code, over all sites                                    one number a code
    pairs   Q = sum_i x_i x_i' / |x_i|_1 off the diagonal, for each half of the patients    two numbers a pair of codes

x_i are the patient's codes of all modes side by side, damped to 1 + log(count). The rank is the number of eigenvectors of one
half's matrix, marginals taken out, that the other half confirms (cross-validated eigenvalues, Chen et al. 2021). Only codes
with enough patients over all sites take part (docs/explanation/records.md has the tables).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from polyclinic.errors import DataError
from polyclinic.methods.rounds.phases import Exact, Phase
from polyclinic.methods.starts.directions import damped_rows, in_halves, replicating, squares
from polyclinic.protocol.aggregators import facts_of
from polyclinic.protocol.interfaces import Answer, Contribution, Pri, Schema, Step, Total
from polyclinic.protocol.phases import Staged
from polyclinic.records.sites.site import Site
from polyclinic.tensors import deterministic as ordered

Array = NDArray[np.float64]
PATIENTS: Final = 2.0**31  # limit: patients at one site, at most
CODES: Final = 300  # limit: codes of the matrix, those with most patients
MINIMUM: Final = 20  # limit: patients of a code over all sites, at least
FEWEST: Final = 10  # limit: codes of the matrix, at least
OWN: Final = (
    11  # limit: where each site's matrix is seen, a pair of codes has so many of the site's patients, or is left out
)
RARE: Final = 0.02  # limit: of a column, to begin with: codes that are not in the matrix


@dataclass(frozen=True)
class PairsPublic:
    """What everybody knows of the matrix.

    Parameters
    ----------
    sites
        How many take part; 0: no matrix is summed.
    shown
        Another party sees each site's own matrix (plain sums between hosts).
    codes
        The codes that take part, in the order of the matrix; empty before they are known.
    patients
        (codes of all modes,) patients who have each code.
    matrix
        The sum of both halves, until the fit has started.
    confirmed
        Eigenvectors that the other half confirms; -1 before.
    """

    sites: int = 1
    shown: bool = False
    codes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    patients: Array | None = None
    matrix: Array | None = None
    confirmed: int = -1

    @property
    def margin(self) -> Array:
        """(codes of all modes,) shares of the codes."""
        assert self.patients is not None
        out: Array = (self.patients + 1e-3) / (self.patients + 1e-3).sum()
        return out


def pairs_before(setting: Schema, aggregation: str) -> PairsPublic:
    """Return the state before the first sum."""
    return PairsPublic(len(setting.sites), not setting.together and facts_of(aggregation).reveals == "each")


class Paired(Staged, Protocol):
    """A public state with a matrix of pairs."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def pairs(self) -> PairsPublic: ...


Pub = TypeVar("Pub", bound=Paired)


class Codes(Phase[Pub, Pri]):
    """Patients of every code: which codes the matrix has."""

    def due(self, public: Pub) -> bool:
        return public.pairs.sites > 0

    def step(self, public: Pub) -> Step:
        return Step(0, "codes", {"patients": (sum(public.shape),)}, bound=PATIENTS, counts=False)

    def contribute(self, step: Step, site: Site, private: Pri, public: Pub) -> Answer[Pri]:
        """x_kj = patients of hospital k who have code j."""
        rows = damped_rows(site)
        return private, Contribution({"patients": np.bincount(rows.codes, minlength=rows.size).astype(np.float64)})

    def combine(self, step: Step, public: Pub, total: Total) -> Pub:
        """The codes that at least MINIMUM patients have, and of these the CODES most frequent."""
        patients = np.rint(total.arrays["patients"])
        frequent = np.argsort(-patients, kind="stable")[:CODES]
        codes = np.sort(frequent[patients[frequent] >= MINIMUM])
        state = replace(public, pairs=replace(public.pairs, codes=codes, patients=patients))
        if len(codes) >= FEWEST:
            return self.fit.onward(state)  # type: ignore[no-any-return]
        return self.without_matrix(state, f"{len(codes)} codes have at least {MINIMUM} patients")

    def without_matrix(self, public: Pub, why: str) -> Pub:
        """The fit starts from random columns; how many cannot be said."""
        if not self.fit.params.columns:
            raise DataError(
                f"{why}: too few to compare which codes occur together", hint="use more patients, or give a rank"
            )
        return self.fit.unpaired(public)  # type: ignore[no-any-return]


class CooccurringCodes(Codes[Pub, Pri]):
    """Codes that occur together, in two halves of the patients."""

    def transport(self, pairs: PairsPublic) -> Exact:
        """32 bits a number: a pair has at most the patients of its codes times half a damped count."""
        assert pairs.patients is not None
        m = len(pairs.codes)
        shapes = {"first": (m * (m - 1) // 2,), "second": (m * (m - 1) // 2,)}
        return Exact(shapes, float(pairs.patients.max()), short=True, sites=pairs.sites)

    def step(self, public: Pub) -> Step:
        return self.transport(public.pairs).step(0, "pairs")

    def contribute(self, step: Step, site: Site, private: Pri, public: Pub) -> Answer[Pri]:
        """x_k = upper triangle of sum_i x_i x_i' / |x_i|_1, for each half."""
        counts = damped_rows(site).dense(public.pairs.codes)
        arrays = in_halves(site, counts, f"pairs {self.fit.params.seed}", OWN if public.pairs.shown else 0)
        return private, self.transport(public.pairs).contribution(arrays)

    def combine(self, step: Step, public: Pub, total: Total) -> Pub:
        """confirmed = eigenvectors of one half that the other half confirms; the fit goes on from there."""
        halves = squares(total.arrays, len(public.pairs.codes))
        if not (halves[0].any() and halves[1].any()):
            return self.without_matrix(public, "one half of the patients has no pair of codes")
        pairs = replace(public.pairs, matrix=halves[0] + halves[1], confirmed=replicating(*halves))
        return self.fit.onward(self.fit.paired(replace(public, pairs=pairs)))  # type: ignore[no-any-return]


def pair_em(matrix: Array, first: Array, steps: int = 150) -> tuple[Array, Array]:
    """Fit Q_ab ~ sum_r p_r f_ra f_rb by EM from columns ``first``; the unknown diagonal is what the model says.

    Returns the columns (codes, R) on the simplex and their shares p.
    """
    q = matrix / matrix.sum()
    columns, shares = first / first.sum(0), np.full(first.shape[1], 1.0 / first.shape[1])
    for _ in range(steps):
        model = ordered.product(columns * shares, columns.T) + 1e-15
        ratio = q / model * (1.0 - ordered.inner(columns * columns, np.broadcast_to(shares, columns.shape)))
        np.fill_diagonal(ratio, 1.0)
        expected = columns * ordered.product(ratio, columns) * shares
        mass = _column_sums(expected)
        shares = mass / ordered.inner(mass, np.ones(len(mass)))
        columns = expected / np.maximum(mass, 1e-15)
        columns[columns < 1e-9] = 0.0
    return columns, shares


def _column_sums(a: Array) -> Array:
    out: Array = ordered.product(np.ones((1, len(a))), a)[0]
    return out


def spectral_columns(matrix: Array, rank: int) -> Array:
    """Return columns (codes, R) to begin with: clusters of codes by pivoted QR of the leading eigenvectors (Damle et al. 2018).

    Without a random number: two halves of the patients begin alike.
    """
    margin = matrix.sum(1) + 1e-9 * matrix.sum()
    count = min(rank, len(matrix))
    vectors = np.linalg.eigh(matrix / np.sqrt(np.outer(margin, margin)))[1][:, ::-1][:, :count]
    pivots = qr(vectors.T, mode="economic", pivoting=True)[2][:count]
    left_vectors, _, right = np.linalg.svd(vectors[pivots].T)
    cluster = np.argmax(np.abs(vectors @ (left_vectors @ right)), axis=1)
    columns = np.zeros((len(matrix), rank))
    columns[np.arange(len(matrix)), cluster] = margin
    neighbours = matrix @ columns
    columns += 0.1 * neighbours * columns.sum(0) / np.maximum(neighbours.sum(0), 1e-300)
    out: Array = columns + 1e-3 * margin[:, None]
    return out


def starts_of(
    pairs: PairsPublic, rank: int, rng: np.random.Generator, number: int, seeded: Callable[[Array], Array]
) -> list[tuple[Array, Array]]:
    """Return columns and shares of starts of :func:`pair_em`: the spectral one first, then random ones."""
    matrix = pairs.matrix
    assert matrix is not None
    margin = matrix.sum(1)[:, None] + 1e-12
    random = [rng.gamma(0.3, 1.0, (len(matrix), rank)) * margin + 1e-12 for _ in range(number - 1)]
    return [pair_em(matrix, seeded(first)) for first in (spectral_columns(matrix, rank), *random)]


def over_all_codes(pairs: PairsPublic, columns: Array) -> Array:
    """(codes of all modes, R) columns of the matrix's codes; the others begin near their marginals."""
    out = np.repeat(RARE * pairs.margin[:, None], columns.shape[1], axis=1)
    out[pairs.codes] += columns
    return out
