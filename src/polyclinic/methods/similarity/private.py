"""UnPSL with patient-level differential privacy: disjoint pairs, clipped gradients, noisy sums (docs/papers/unpsl.md).

Patient i is in n - 1 pairs (ERRATA E3.11), so no sum over all pairs has a useful bound per patient. Here, in every round, a
keyed hash of the record puts each patient into one of many buckets; a bucket with exactly two patients is a pair. Adding or
removing one patient changes one bucket: a pair appears or a pair goes. Each pair's gradient is cut to length 1, so the sum
moves by at most 1, whatever the data: the sensitivity is a theorem, without convexity and without a step size in it.

    first release   n, sum x, sum x^2 of records in a ball, each patient at most 1; noise
    each round      G = sum over pairs (i, j) of g_ij / max(1, |g_ij|) + noise,  g_ij = grad log(1 + e^{-y (x_i'WW'x_j - b)})
                    v <- m v + (1 - m) G / pairs,  W <- row_shrink(W - eta v, eta l1)

Correlations are not released, so ``l2`` must be 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from polyclinic.errors import ConfigError
from polyclinic.methods.moments.moments import GRID, complete, in_ball, unit_rows
from polyclinic.methods.similarity import facts as known
from polyclinic.methods.similarity.labels import class_texts
from polyclinic.methods.similarity.metric import canonical, similarity_of
from polyclinic.methods.similarity.redundancy import row_norms, row_shrink
from polyclinic.models.origin import Origin
from polyclinic.models.similarity import Similarity
from polyclinic.privacy.accounting.accountant import calibrate
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import Answer, Arrays, Contribution, Schema, Step, Total
from polyclinic.protocol.outcome import Outcome
from polyclinic.protocol.params import Params
from polyclinic.protocol.phases import Phase, PhaseDispatch
from polyclinic.records.sites.site import Site

Array = NDArray[np.float64]
PAIRS_A_PATIENT = 0.135  # definition: e^-2, at two patients a bucket (P(exactly two) = 2 e^-2, two patients a pair)

LARGEST_SUM = 1e9  # limit: of a site's number, far above the number of its patients

MOMENT_SHARE = 0.15  # of the budget, for means and spreads
MOMENTUM = 0.6  # m


class PrivateParams(Params):
    """Parameters of private UnPSL."""

    rounds: int = Field(12, ge=1, le=1000, description="Noisy gradients; fixed in advance.")
    l1: float = Field(0.0, ge=0, description="lambda_1: sparsity, relative to the mean loss.")
    bias: float = Field(1.0, description="b: threshold of (3.2).")
    rank: int = Field(3, ge=1, description="Columns of W; each costs noise.")
    learning_rate: float = Field(3.0, gt=0, description="Step, relative to the mean clipped gradient.")
    patients: int = Field(ge=2, description="Public planning size: about how many patients all sites have together.")
    radius: float = Field(gt=0, description="Public: records are pulled back into a ball of this radius.")
    center: tuple[float, ...] | None = Field(None, description="Public centre of the ball; default 0.")
    classes: tuple[str, ...] = Field(
        (), validate_default=True, description="Public list of classes; a patient with another label is in no pair."
    )

    @field_validator("classes", mode="before")
    @classmethod
    def _public_list(cls, value: Any) -> tuple[str, ...]:
        texts = tuple(class_texts(value)) if isinstance(value, list | tuple | np.ndarray) else ()
        if len(set(texts)) < 2:
            raise ValueError(
                f"classes = {value!r}: at least two, from a public list. Which classes occur depends on the data. "
                "Write classes=('ill', 'well')"
            )
        return texts


@dataclass(frozen=True)
class PrivatePublic:
    """Releases so far: means and spreads, W and its momentum."""

    stage: str  # moments -> gradient -> end
    round: int
    mean: Array
    scale: Array
    W: Array
    velocity: Array
    noise: float  # standard deviation of the last release over its length
    buckets: int  # at every site; a public number, or one patient could move all others


@dataclass(frozen=True)
class PairKey:
    """A site's key for the hash. The bound holds for every key, known or not; it only has to be fixed beforehand."""

    key: str


def buckets(records: Array, labels: Iterable[object], *, key: str, round: int, count: int) -> NDArray[np.int64]:
    """Bucket of every patient: a keyed hash of the record and its label, so that other patients cannot move it.

    >>> a = np.arange(8.0).reshape(4, 2)
    >>> b = buckets(a, [0, 1, 0, 1], key="k", round=1, count=50)
    >>> bool((b[1:] == buckets(a[1:], [1, 0, 1], key="k", round=1, count=50)).all())
    True
    """
    rows = np.ascontiguousarray(records, np.float64)
    secret = hashlib.blake2b(f"{key}\0{round}".encode(), digest_size=32).digest()
    numbers = np.empty(len(rows), np.int64)
    for i, (row, label) in enumerate(zip(rows, class_texts(labels))):
        digest = hashlib.blake2b(row.tobytes() + label.encode(), key=secret, digest_size=8).digest()
        numbers[i] = int.from_bytes(digest, "little") % count
    return numbers


def _paired(where: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of the two patients of every bucket that holds exactly two."""
    order = np.argsort(where, kind="stable")
    _, first, size = np.unique(where[order], return_index=True, return_counts=True)
    two = first[size == 2]
    return order[two], order[two + 1]


def pair_gradients(
    X: Array, left: NDArray[np.int64], right: NDArray[np.int64], sign: Array, W: Array, b: float
) -> Array:
    """(pairs, d r) gradient of each pair's own loss for W: -y/(1 + e^(y(s-b))) (x_i x_j' + x_j x_i') W, eq. (3.16)."""
    from scipy.special import expit

    A, B = X[left] @ W, X[right] @ W
    c = -sign * expit(-sign * (np.einsum("pr,pr->p", A, B) - b))
    G = X[left][:, :, None] * B[:, None, :] + X[right][:, :, None] * A[:, None, :]
    return np.asarray(c[:, None, None] * G).reshape(len(c), -1)


class PrivateUnPSL(PhaseDispatch[PrivatePublic, PairKey], Estimator[PrivateParams, PrivatePublic, PairKey]):
    """Learn a similarity between hospitals under patient-level differential privacy (add or remove one patient)."""

    name = "unpsl-private"
    version = 2
    facts = known.UNPSL_PRIVATE
    needs = "features"
    Params = PrivateParams
    Public = PrivatePublic
    Private = PairKey
    params: PrivateParams
    assumptions = ("the number of patients used for planning, radius and centre are public",)

    @property
    def phases(self) -> Mapping[str, Phase[PrivatePublic, PairKey]]:
        """One release of moments, then one of clipped pair gradients a round, each of sensitivity 1."""
        return {"moments": NoisyMoments(self), "gradient": NoisyGradient(self)}

    def init_public(self, setting: Schema, rng: np.random.Generator) -> PrivatePublic:
        """W = Q of a random (d, r) matrix; standardising unknown."""
        p, d = self.params, setting.shape[0]
        faults = []
        if p.privacy is None:
            raise ConfigError("private UnPSL needs privacy=pc.Privacy(epsilon=..., delta=...)")
        if p.privacy.level != "patient":
            faults.append("privacy.level must be 'patient': a pair has no entries")
        if p.privacy.max_sites_per_patient != 1:
            faults.append("a patient at several sites is in several pairs: max_sites_per_patient must be 1")
        if p.center is not None and len(p.center) != d:
            faults.append(f"center has {len(p.center)} values, the sites have {d} features")
        if faults:
            raise ConfigError("private UnPSL cannot run so", faults=faults)
        rank = min(p.rank, d)
        noise = self._multipliers()[1] * np.sqrt(d * rank)
        signal = 0.5 * PAIRS_A_PATIENT * p.patients  # clipped gradients have length 1 and agree at best in part
        if noise > signal:
            raise ConfigError(
                f"{d} features x rank {rank} are too many for {p.patients:,} patients at this budget",
                faults=[f"noise of length {noise:.0f} on a sum that cannot be longer than about {signal:.0f}"],
                hint="fewer features (a public subset), a lower rank, fewer rounds, more patients or a larger epsilon",
            )
        W = np.linalg.qr(rng.standard_normal((d, rank)))[0]
        count = max(1, p.patients // (2 * len(setting.sites)))  # two patients a bucket if sites are alike
        return PrivatePublic("moments", 0, np.zeros(d), np.ones(d), W, np.zeros_like(W), 0.0, count)

    def _multipliers(self) -> tuple[float, float]:
        """Noise of the moments and of a gradient, in units of the sensitivity."""
        p = self.params
        gradient_share = (1 - MOMENT_SHARE) / p.rounds
        assert p.privacy is not None
        multipliers = calibrate(
            p.privacy.epsilon, p.privacy.delta, shares=(MOMENT_SHARE, *([gradient_share] * p.rounds))
        )
        return multipliers[0], multipliers[1]

    def _center(self, public: PrivatePublic) -> Array:
        p = self.params
        return np.zeros_like(public.mean) if p.center is None else np.asarray(p.center, float)

    def _in_ball(self, site: Site, public: PrivatePublic) -> Array:
        """The site's records in units of the public ball."""
        return in_ball(site.matrix(), self._center(public), self.params.radius)

    def round_metrics(self, public: PrivatePublic) -> Mapping[str, float | None]:
        """Loss and residuals were not paid for, so they are not known."""
        return {"objective": None, "noise_over_release": public.noise}

    # ---- a site

    def init_site(self, site: Site, public: PrivatePublic, rng: np.random.Generator) -> PairKey:
        complete(site)
        return PairKey(rng.bytes(16).hex())

    def finalize_site(self, site: Site, private: PairKey, public: PrivatePublic) -> Arrays:
        return {"embedding": np.asarray((site.matrix() - public.mean) / public.scale @ canonical(public.W))}

    def _publish(self, outcome: Outcome) -> None:
        public = outcome.public
        self.mean_, self.scale_ = public.mean, public.scale
        self.components_ = canonical(public.W).T
        self.n_features_in_, self.bias_ = len(public.mean), self.params.bias
        self.objective_, self.n_iter_ = None, public.round
        self.selected_ = np.flatnonzero(row_norms(public.W) > 0)
        self.embedding_ = {name: arrays["embedding"] for name, arrays in outcome.closed.items()}

    def learned(self, origin: Origin) -> Similarity:
        return similarity_of(self, origin)


class NoisyMoments(Phase[PrivatePublic, PairKey]):
    """Means and spreads in one release."""

    fit: PrivateUnPSL

    def step(self, public: PrivatePublic) -> Step:
        shapes = {"moments": (2 * len(public.mean) + 1,)}
        noise = self.fit._multipliers()[0]
        return Step(0, "moments", shapes, bound=LARGEST_SUM, sensitivity=1.0, multiplier=noise, grid=GRID, counts=False)

    def contribute(self, step: Step, site: Site, private: PairKey, public: PrivatePublic) -> Answer[PairKey]:
        """sum over patients of (1, z, z^2) / sqrt(3), each of length 1 at most."""
        z = self.fit._in_ball(site, public)
        rows = unit_rows(np.concatenate([np.ones((len(z), 1)), z, z**2], 1) / np.sqrt(3.0))
        return private, Contribution({"moments": rows.sum(0)})

    def combine(self, step: Step, public: PrivatePublic, total: Total) -> PrivatePublic:
        """mean = sum z / n, variance = sum z^2 / n - mean^2, not below the noise."""
        p, d = self.fit.params, len(public.mean)
        sums = total.arrays["moments"] * np.sqrt(3.0)
        n = max(float(sums[0]), 1.0)
        mean = sums[1 : d + 1] / n
        floor = max((np.sqrt(3.0) * total.noise_sd / n), 1e-12)
        variance = np.maximum(sums[d + 1 :] / n - mean**2, floor)
        center = self.fit._center(public)
        return self.fit.onward(replace(public, mean=center + p.radius * mean, scale=p.radius * np.sqrt(variance)))


class NoisyGradient(Phase[PrivatePublic, PairKey]):
    """One step along the clipped gradients of disjoint pairs."""

    fit: PrivateUnPSL

    def step(self, public: PrivatePublic) -> Step:
        shapes = {"gradient": (public.W.size,)}
        noise = self.fit._multipliers()[1]
        return Step(
            public.round + 1, "gradient", shapes, bound=LARGEST_SUM, sensitivity=1.0, multiplier=noise, grid=GRID
        )

    def contribute(self, step: Step, site: Site, private: PairKey, public: PrivatePublic) -> Answer[PairKey]:
        """sum over disjoint pairs (i, j) of g_ij / max(1, |g_ij|), g_ij the gradient of log(1 + e^{-y (x_i'WW'x_j - b)})."""
        p, z = self.fit.params, self.fit._in_ball(site, public)
        X = (self.fit._center(public) + p.radius * z - public.mean) / public.scale
        # One text per label, whatever the type of the others: nobody's label may change how another's is written.
        labels = np.array(class_texts(() if site.labels is None else site.labels), dtype=object)
        use = np.flatnonzero(np.isin(labels, p.classes))
        X, z, labels = X[use], z[use], labels[use]  # who has no class of the public list is in no pair
        first, second = _paired(buckets(z, labels, key=private.key, round=step.round, count=public.buckets))
        sign = np.where(labels[first] == labels[second], 1.0, -1.0)
        gradient = np.zeros(public.W.size)
        chunk = max(1, (1 << 22) // public.W.size)
        for a in range(0, len(first), chunk):
            s = slice(a, a + chunk)
            gradient += unit_rows(pair_gradients(X, first[s], second[s], sign[s], public.W, p.bias)).sum(0)
        return private, Contribution({"gradient": gradient})

    def combine(self, step: Step, public: PrivatePublic, total: Total) -> PrivatePublic:
        """v' = m v + (1 - m) G / pairs, W' = row_shrink(W - eta v', eta l1), G = sum_k sum of clipped pairs + noise."""
        p = self.fit.params
        G = total.arrays["gradient"].reshape(public.W.shape)
        velocity = MOMENTUM * public.velocity + (1 - MOMENTUM) * G / (PAIRS_A_PATIENT * p.patients)
        W = row_shrink(public.W - p.learning_rate * velocity, p.l1 * p.learning_rate)
        noise = float(total.noise_sd * np.sqrt(W.size) / max(float(np.linalg.norm(G)), 1e-300))
        stepped = replace(public, round=step.round, W=W, velocity=velocity, noise=noise)
        return self.fit.onward(stepped) if step.round >= p.rounds else stepped
