"""Groups of patients by expectation maximisation over hospitals, with sums only (Li et al., private EM), both halves.

A round is one sum of ``(a, b, C)``: patients per group, first and second moments around the public centres, the symmetric half
only. All scalars of an M-step travel as one vector, so under ``subspace`` one consensus run carries a round.
Set-up sums (``federation.moments``) give the mean and spread from which every later bound follows: what a site adds
cannot exceed what all patients together add, and that is known from the moments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator
from scipy.special import logsumexp

from polyclinic.errors import ConfigError, PolicyRefusal
from polyclinic.federation.keywords import GaussianMixtureTyped
from polyclinic.federation.moments import (
    GRID,
    RADIUS,
    ROOM,
    Moments,
    Nothing,
    complete,
    in_ball,
    moment_rows,
    noisy_moments,
)
from polyclinic.federation.params import Params
from polyclinic.federation.protocol import Arrays, Contribution, Setting, Step, Total, seeds
from polyclinic.learned.mixture import Array, CovarianceType, Mixture
from polyclinic.mixtures import histogram, paid, start
from polyclinic.mixtures.facts import FACTS
from polyclinic.mixtures.fitted import FittedMixture
from polyclinic.mixtures.histogram import FLAT
from polyclinic.mixtures.statistics import Statistics, expect, maximise, shapes
from polyclinic.privacy.accountant import calibrate
from polyclinic.tensors.site import Site

__all__ = ["GaussianMixture", "MixtureParams", "MixturePublic", "scaled", "unscaled"]

LLOYD = 4  # k-means rounds between the votes and EM
EMPTY = 1e-3  # a group of fewer patients than this is moved to a new public place
Nested = Annotated[Any, BeforeValidator(lambda v: _nested(v))]


def _nested(value: Any) -> Any:
    """Arrays as tuples of tuples: plain, comparable, and the same in TOML."""
    if value is None or isinstance(value, float | int | tuple):
        return value
    if isinstance(value, np.ndarray | list):
        return tuple(_nested(v) for v in (value.tolist() if isinstance(value, np.ndarray) else value))
    return value


class MixtureParams(Params):
    """Parameters of the mixture."""

    n_components: int = Field(1, ge=1, le=10_000, description="Number of groups c.")
    covariance_type: CovarianceType = Field("full", description="Shape of a group: full, tied, diag or spherical.")
    tol: float = Field(1e-5, ge=0, description="Stop when the mean log-likelihood gains less; 0 = run all rounds.")
    reg_covar: float = Field(1e-6, ge=0, description="Added to variances, keeps covariances positive definite.")
    n_starts: int = Field(1, ge=1, le=1000, description="Starts; the one with the best likelihood is kept.")
    start: Literal["votes", "box"] = Field(
        "votes", description="k-means++ on summed votes for public points, or public points alone."
    )
    weights_init: Nested = Field(None, description="Explicit start: shares (k,).")
    means_init: Nested = Field(None, description="Explicit start: centres (k, d).")
    precisions_init: Nested = Field(None, description="Explicit start: inverse covariances, shaped by covariance_type.")
    radius: float | None = Field(
        None, gt=0, description="Public: no |value| exceeds it (1e6). With privacy: ball that records are clipped to."
    )
    center: Nested = Field(None, description="With privacy: public centre of that ball; default 0.")
    max_patients: int = Field(10_000_000, ge=1, description="Public: no site has more patients.")
    min_patients: int = Field(20, ge=1, description="Fewer patients behind the sums of several sites: refused.")
    paid_rounds: int = Field(8, ge=1, le=1000, description="With privacy: rounds (also at most `rounds`).")
    start_share: float = Field(0.2, gt=0, lt=1, description="With privacy: part of the budget for the noisy start.")

    @model_validator(mode="after")
    def _together(self) -> MixtureParams:
        k = self.n_components
        if self.means_init is None and (self.weights_init is not None or self.precisions_init is not None):
            raise ValueError("weights_init and precisions_init need means_init")
        if self.means_init is not None and np.shape(self.means_init)[:1] != (k,):
            raise ValueError(f"means_init has {np.shape(self.means_init)[:1]} rows, n_components is {k}")
        if self.weights_init is not None and (
            np.shape(self.weights_init) != (k,) or abs(sum(self.weights_init) - 1) > 1e-6 or min(self.weights_init) < 0
        ):
            raise ValueError("weights_init must be n_components shares that sum to 1")
        if self.privacy is not None and self.privacy.level != "patient":
            raise ValueError("a mixture is private at the level of patients only: level='patient'")
        if self.privacy is not None and self.radius is None:
            raise ValueError("privacy needs radius: a public bound on the length of a record around center")
        return self


@dataclass(frozen=True)
class MixturePublic:
    """What everybody knows; with privacy, records and mixture are in units of the public ball."""

    stage: Literal["moments", "votes", "lloyd", "em", "score", "end"]
    round: int  # EM rounds over all starts
    start: int
    iteration: int  # of this start
    moments: Moments
    votes: Array
    mixture: Mixture
    bound: float | None = None  # mean log-likelihood of the mixture that entered the last round
    told: tuple[float | None, float | None, int] = (None, None, 0)  # bound, gain and start of the round just finished
    converged: bool = False
    reseeded: int = 0
    best: Mixture | None = None
    best_bound: float | None = None
    best_iterations: int = 0
    best_converged: bool = False
    loglik: float | None = None  # of the final mixture, summed
    basis: Array | None = None  # with privacy: (d, m) directions of the histogram
    frame: Array | None = None  # (2, m) its centre and half-width


class GaussianMixture(GaussianMixtureTyped, FittedMixture[MixtureParams, MixturePublic, Nothing]):
    """Groups of patients that all hospitals agree on; the same fit as on pooled data, and no record leaves.

    From the same start every parameter equals scikit-learn's on the pooled records. With ``privacy`` records are clipped
    to a public ball, every sum is paid for, and nothing else leaves.

    Parameters
    ----------
    n_components, covariance_type, tol, reg_covar, weights_init, means_init, precisions_init
        As in ``sklearn.mixture.GaussianMixture`` (``rounds`` is its ``max_iter``, ``n_starts`` its ``n_init``).
    start
        ``"votes"``: each patient has one vote for the nearest of some public points; only summed votes are seen; then
        ``4`` rounds of k-means. ``"box"``: public points alone, nobody is asked.
    variant
        ``"corrected"``: exact M-step, ``C/a - dd'`` (ERRATA E4.9); ``"paper"`` keeps the old centre as printed.
    privacy
        ``pc.Privacy(epsilon=, delta=)``; then ``radius`` (and ``center``) of the ball are public numbers you must give.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> sites = [Site(n, features=rng.normal(m, 1.0, (100, 2))) for n, m in (("a", -4.0), ("b", 4.0))]
    >>> g = GaussianMixture(n_components=2, seed=0).fit(sites)
    >>> np.sort(g.means_[:, 0]).round(0), g.converged_
    (array([-4.,  4.]), True)
    """

    name = "mixture"
    facts = FACTS
    needs = "features"
    exact = 1e-6
    Params = MixtureParams
    Public = MixturePublic
    Private = Nothing
    params: MixtureParams

    # ---- coordinator, or every node

    def begin(self, setting: Setting, rng: np.random.Generator) -> MixturePublic:
        p, d = self.params, setting.shape[0]
        crossed = p.covariance_type in ("full", "tied")
        wrong = [
            f"{name} has shape {np.shape(value)}, expected {shape}"
            for name, value, shape in (
                ("means_init", p.means_init, (p.n_components, d)),
                ("precisions_init", p.precisions_init, _shape(p.covariance_type, p.n_components, d)),
                ("center", p.center, (d,)),
            )
            if value is not None and np.shape(value) != shape
        ]
        if wrong:
            raise ConfigError("the start does not fit the sites' features", faults=wrong)
        empty = start.shared(np.zeros((p.n_components, d)), np.ones(d), p.covariance_type)
        public = MixturePublic("moments", 0, 0, 0, Moments.begin(d, self._radius, crossed=crossed), np.zeros(0), empty)
        return public if p.privacy is None else self._ready(public)

    def next(self, public: MixturePublic) -> Step | None:
        p, d = self.params, public.mixture.d
        if public.stage == "end":
            return None
        if p.privacy is not None:
            return self._paid_step(public)
        if public.stage == "moments":
            return public.moments.step(p.max_patients)
        n = max(public.moments.n, 1.0)
        if public.stage == "votes":
            return Step(0, "votes", {"votes": (len(self._points(public)),)}, bound=n * ROOM, grid=1.0, counts=False)
        if public.stage == "score":
            return Step(public.round, "score", {"loglik": (1,)}, bound=n * ROOM, counts=False)
        bound, _ = self._bounds(public)
        sums = shapes(p.covariance_type, p.n_components, d)
        if public.stage == "lloyd":
            return Step(0, f"lloyd-{public.start}-{public.iteration}", sums, bound=bound, counts=False)
        return Step(public.round, "statistics", {**sums, "loglik": (1,)}, bound=bound, asides=("loglik",))

    def combine(self, step: Step, public: MixturePublic, total: Total) -> MixturePublic:
        p = self.params
        if p.privacy is not None:
            return self._paid_combine(public, total)
        if public.stage == "moments":
            moments = public.moments.combine(total)
            if public.moments.stage == 0 and total.members > 1 and moments.n < p.min_patients:
                raise PolicyRefusal(
                    f"fewer than {p.min_patients} patients in all: exact sums over rounds would give their records away",
                    hint="add sites, lower min_patients knowingly, or ask for privacy=pc.Privacy(...)",
                )
            public = replace(public, moments=moments)
            return self._ready(public) if moments.done else public
        if public.stage == "votes":
            return self._begin_start(replace(public, votes=total.arrays["votes"]))
        if public.stage == "score":
            _, scale = self._bounds(public)
            return replace(public, stage="end", loglik=float(total.arrays["loglik"][0]) * scale)
        _, scale = self._bounds(public)
        sums = unscaled(total.arrays, public.moments.unit, p.covariance_type, scale)
        if public.stage == "lloyd":
            return self._lloyd(public, sums)
        return self._em(public, sums)

    def figures(self, public: MixturePublic) -> Mapping[str, float | None]:
        bound, gain, number = public.told
        return {
            "objective": None if bound is None else -bound,
            "lower_bound": bound,
            "gain": gain,
            "start": number,
            "reseeded": public.reseeded,
        }

    # ---- hospital k

    def open(self, site: Site, public: MixturePublic, rng: np.random.Generator) -> Nothing:
        complete(site, self._radius if self.params.privacy is None else None)
        return Nothing()

    def contribute(
        self, step: Step, site: Site, private: Nothing, public: MixturePublic, rng: np.random.Generator
    ) -> tuple[Nothing, Contribution]:
        p, X = self.params, site.matrix()
        if p.privacy is not None:
            return private, self._paid_contribution(X, public)
        if public.stage == "moments":
            return private, public.moments.contribute(X)
        if public.stage == "votes":
            return private, Contribution({"votes": start.vote(X, self._points(public), self._sd(public))})
        _, scale = self._bounds(public)
        if public.stage == "score":
            return private, Contribution({"loglik": np.array([float(public.mixture.log_density(X).sum()) / scale])})
        s = expect(X, public.mixture, hard=public.stage == "lloyd")
        arrays = scaled(s, public.moments.unit, p.covariance_type)
        if public.stage == "em":
            arrays["loglik"] = np.array([s.loglik / scale])
        return private, Contribution(arrays)

    def close(self, site: Site, private: Nothing, public: MixturePublic) -> Arrays:
        return {"responsibilities": self._natural(public).responsibilities(site.matrix())}

    def remedy(self, site: Site, public: MixturePublic) -> str:
        return f"raise reg_covar (now {self.params.reg_covar:g}) or standardise the features (pc.Standardizer)"

    # ---- starts and rounds, exact sums

    def _ready(self, public: MixturePublic) -> MixturePublic:
        """The moments are known (or, with privacy, the ball): choose the way to start."""
        p = self.params
        if p.means_init is not None:
            return replace(public, stage="em", round=1, mixture=self._explicit(public))
        if p.start == "box":
            return self._begin_start(public)
        if p.privacy is None:
            return replace(public, stage="votes")
        d = public.mixture.d
        if d > FLAT:
            return replace(public, stage="moments")
        return replace(public, stage="votes", frame=np.stack([np.zeros(d), np.ones(d)]))

    def _explicit(self, public: MixturePublic) -> Mixture:
        p, (_, covariance) = self.params, self._overall(public)
        means = np.asarray(p.means_init, float)
        if p.privacy is not None:
            means = (means - self._center(public.mixture.d)) / self._radius
        m = start.shared(means, np.diag(covariance), p.covariance_type)
        if p.weights_init is not None:
            m = replace(m, weights=np.asarray(p.weights_init, float))
        if p.precisions_init is not None:
            precisions = np.asarray(p.precisions_init, float)
            full = p.covariance_type in ("full", "tied")
            covariances = np.linalg.inv(precisions) if full else 1 / precisions
            m = replace(m, covariances=covariances / (self._radius**2 if p.privacy is not None else 1.0))
        return m

    def _begin_start(self, public: MixturePublic) -> MixturePublic:
        """A start by its number; the same votes serve all of them."""
        p, (mean, covariance) = self.params, self._overall(public)
        rng = seeds(p.seed, "start", public.start)
        if p.start == "box":
            mixture = start.box(mean, covariance, p.n_components, p.covariance_type, rng)
        else:
            sd = self._sd(public)
            draw = start.centres if public.start == 0 else start.plus_plus  # the best guess first, then other ones
            mixture = start.shared(
                draw(self._points(public) / sd, public.votes, p.n_components, rng) * sd, sd**2, p.covariance_type
            )
        stage: Literal["lloyd", "em"] = "em" if p.start == "box" else "lloyd"
        number = max(public.round, 1) if public.start == 0 else public.round
        return replace(public, stage=stage, round=number, iteration=0, mixture=mixture, bound=None, converged=False)

    def _lloyd(self, public: MixturePublic, sums: Statistics) -> MixturePublic:
        m = public.mixture
        if public.iteration + 1 < LLOYD:
            moved = m.means + np.where(sums.a[:, None] > 0, sums.b / np.maximum(sums.a, EMPTY)[:, None], 0.0)
            return replace(public, iteration=public.iteration + 1, mixture=replace(m, means=moved))
        mixture, lost = self._filled(maximise(sums, m, reg_covar=self.params.reg_covar), sums.a, public)
        return replace(public, stage="em", iteration=0, mixture=mixture, reseeded=public.reseeded + lost)

    def _em(self, public: MixturePublic, sums: Statistics) -> MixturePublic:
        p = self.params
        bound = sums.loglik / max(float(sums.a.sum()), 1e-300)
        gain = None if public.bound is None else bound - public.bound
        converged = gain is not None and p.tol > 0 and abs(gain) < p.tol
        mixture = maximise(sums, public.mixture, reg_covar=p.reg_covar, paper=p.variant == "paper")
        mixture, lost = self._filled(mixture, sums.a, public)
        public = replace(
            public,
            mixture=mixture,
            bound=bound,
            told=(bound, gain, public.start),
            converged=converged and not lost,
            iteration=public.iteration + 1,
            reseeded=public.reseeded + lost,
        )
        if not public.converged and public.iteration < p.rounds:
            return replace(public, round=public.round + 1)
        return self._end_start(public)

    def _end_start(self, public: MixturePublic) -> MixturePublic:
        p = self.params
        if public.best_bound is None or (public.bound is not None and public.bound > public.best_bound):
            public = replace(
                public,
                best=public.mixture,
                best_bound=public.bound,
                best_iterations=public.iteration,
                best_converged=public.converged,
            )
        if public.start + 1 < p.n_starts and p.means_init is None:
            return self._begin_start(replace(public, start=public.start + 1, round=public.round + 1))
        assert public.best is not None
        return replace(public, stage="score", mixture=public.best)

    def _filled(self, mixture: Mixture, a: Array, public: MixturePublic) -> tuple[Mixture, int]:
        """Move groups that nobody belongs to, by a public rule: around the overall mean, with the overall spread."""
        lost = np.flatnonzero(a < EMPTY)
        if not len(lost) or mixture.k == 1:
            return mixture, 0
        mean, covariance = self._overall(public)
        rng = seeds(self.params.seed, "reseed", public.start, public.round, public.iteration, public.stage)
        fresh = start.box(mean, covariance, mixture.k, mixture.kind, rng)
        means, weights = mixture.means.copy(), mixture.weights.copy()
        means[lost], weights[lost] = fresh.means[lost], 1 / mixture.k
        covariances = mixture.covariances
        if mixture.kind != "tied":
            covariances = covariances.copy()
            covariances[lost] = fresh.covariances[lost]
        return Mixture(weights / weights.sum(), means, covariances, mixture.kind), len(lost)

    # ---- public scales

    def _overall(self, public: MixturePublic) -> tuple[Array, Array]:
        d = public.mixture.d
        if self.params.privacy is not None:  # in units of the ball, nothing is known but the ball
            return np.zeros(d), np.eye(d) / (d + 2)  # covariance of the uniform law on the unit ball
        return public.moments.mean, public.moments.covariance()

    def _sd(self, public: MixturePublic) -> Array:
        variances = np.diag(self._overall(public)[1])
        return np.sqrt(np.where(variances > 0, variances, 1.0))

    def _points(self, public: MixturePublic) -> Array:
        return start.points(*self._overall(public), self.params.n_components, seeds(self.params.seed, "points"))

    def _bounds(self, public: MixturePublic) -> tuple[float, float]:
        """Bound of every entry of a site's statistics, and the unit in which it sends its log-likelihood.

        What one site adds is at most what all patients add, and second moments of all patients around any public
        centre follow from the moments: ``sum (x - mu)^2 = n (variance + (mean - mu)^2)``.
        """
        moments, m = public.moments, public.mixture
        variance = np.diag(moments.covariance()) / moments.unit**2
        second = variance + ((moments.mean - m.means) / moments.unit) ** 2  # (k, d), in units
        reach = second.sum(0).max() if m.kind == "tied" else second.max()
        n = max(moments.n, 1.0)
        bound = n * max(1.0, float(reach)) * ROOM
        # log p >= log(share of j) + log(density of j), for every j; and it is largest if a record sat on all centres
        factors = m.precisions_cholesky()
        with np.errstate(divide="ignore"):
            constants = m.log_constants(factors)
        covariance, known = moments.covariance(), np.isfinite(constants)
        traces = []
        for j in np.flatnonzero(known):
            gap = moments.mean - m.means[j]
            around = covariance + np.outer(gap, gap)
            f = factors if m.kind == "tied" else factors[j]
            traces.append(
                float(np.einsum("pq,pr,qr->", around, f, f)) if f.ndim == 2 else float((np.diag(around) * f**2).sum())
            )
        top = max(abs(float(logsumexp(constants[known]))), float(np.abs(constants[known]).max()))
        largest = n * (top + 0.5 * min(traces)) * ROOM
        return bound, max(largest / n, 1.0)

    # ---- the paid way: noisy covariance (above 3 features), coarse and fine histogram, then EM

    def _center(self, d: int) -> Array:
        return np.zeros(d) if self.params.center is None else np.asarray(self.params.center, float)

    @property
    def _radius(self) -> float:
        return RADIUS if self.params.radius is None else self.params.radius

    @property
    def _paid_rounds(self) -> int:
        return min(self.params.rounds, self.params.paid_rounds)

    def _multiplier(self, public: MixturePublic) -> float:
        """Noise of the coming release: the start has its share, EM rounds share the rest, later ones more."""
        p = self.params
        assert p.privacy is not None
        asked = p.start == "votes" and p.means_init is None
        share = p.start_share if asked else 0.0
        if public.stage == "em":
            late = np.arange(1, self._paid_rounds + 1, dtype=float)
            part = (1 - share) * late[public.iteration] / late.sum()
        else:
            parts = (
                {"moments": 0.3, "coarse": 0.2, "fine": 0.5}
                if public.mixture.d > FLAT
                else {"coarse": 0.3, "fine": 0.7}
            )
            part = share * parts[self._paid_name(public)]
        (multiplier,) = calibrate(p.privacy.epsilon, p.privacy.delta, shares=(float(part),))
        return multiplier

    def _paid_name(self, public: MixturePublic) -> str:
        if public.stage == "votes":
            return "fine" if public.iteration else "coarse"
        return {"moments": "moments", "em": "statistics"}[public.stage]

    def _paid_step(self, public: MixturePublic) -> Step:
        p, (k, d) = self.params, public.mixture.means.shape
        sums: dict[str, tuple[int, ...]]
        if public.stage == "votes":
            assert public.frame is not None
            m = public.frame.shape[1]
            sums = {"votes": (histogram.side(m, fine=public.iteration > 0) ** m,)}
        elif public.stage == "moments":
            sums = {"rows": (1 + d + d * (d + 1) // 2,)}
        else:
            sums = shapes(p.covariance_type, k, d)
        return Step(
            public.round if public.stage == "em" else 0,
            self._paid_name(public),
            sums,
            bound=float(p.max_patients),
            sensitivity=1.0,
            multiplier=self._multiplier(public),
            grid=1.0 if public.stage == "votes" else GRID,
            counts=public.stage == "em",
        )

    def _paid_contribution(self, X: Array, public: MixturePublic) -> Contribution:
        Z = in_ball(X, self._center(X.shape[1]), self._radius)
        if public.stage == "moments":
            return Contribution({"rows": moment_rows(Z)})
        if public.stage == "votes":
            assert public.frame is not None
            cells = histogram.side(public.frame.shape[1], fine=public.iteration > 0)
            P = Z if public.basis is None else Z @ public.basis
            return Contribution({"votes": histogram.vote(P, public.frame, cells)})
        return Contribution(paid.bounded(Z, public.mixture))

    def _paid_combine(self, public: MixturePublic, total: Total) -> MixturePublic:
        p = self.params
        if public.stage == "moments":
            moments = noisy_moments(total.arrays["rows"], total.noise_sd, public.mixture.d)
            basis = histogram.directions(moments.covariance(), p.n_components)
            m = basis.shape[1]
            return replace(
                public, stage="votes", moments=moments, basis=basis, frame=np.stack([np.zeros(m), np.ones(m)])
            )
        if public.stage == "votes":
            return self._paid_votes(public, total)
        mixture = paid.improve(
            dict(total.arrays), total.noise_sd, public.mixture, reg_covar=p.reg_covar / self._radius**2
        )
        public = replace(public, mixture=mixture, iteration=public.iteration + 1)
        if public.iteration < self._paid_rounds:
            return replace(public, round=public.round + 1)
        return replace(public, stage="end", best=mixture, best_iterations=public.iteration)

    def _paid_votes(self, public: MixturePublic, total: Total) -> MixturePublic:
        p, frame, votes = self.params, public.frame, total.arrays["votes"]
        assert frame is not None
        cells = histogram.side(frame.shape[1], fine=public.iteration > 0)
        if public.iteration == 0:
            return replace(public, iteration=1, frame=histogram.zoom(votes, frame, cells, total.noise_sd))
        flat = public.basis is None
        mixture = histogram.fit_histogram(
            votes,
            frame,
            cells,
            p.n_components,
            p.covariance_type if flat else "full",
            noise_sd=total.noise_sd,
            starts=max(p.n_starts, 10),
            rng=seeds(p.seed, "start", 0),
        )
        if public.basis is not None:
            m = public.moments
            mixture = histogram.lift(mixture, public.basis, m.mean, m.covariance(), p.covariance_type)
        return replace(public, stage="em", iteration=0, round=1, mixture=mixture)

    def _natural(self, public: MixturePublic) -> Mixture:
        """The mixture in the units of the records."""
        if self.params.privacy is None:
            return public.mixture
        return public.mixture.moved(self._center(public.mixture.d), self._radius)


def _shape(kind: CovarianceType, k: int, d: int) -> tuple[int, ...]:
    shapes_: dict[str, tuple[int, ...]] = {"full": (k, d, d), "tied": (d, d), "diag": (k, d), "spherical": (k,)}
    return shapes_[kind]


def _units(unit: Array, kind: CovarianceType) -> Array | float:
    """Units of second moments, in the shape in which they travel."""
    if kind == "spherical":
        return float((unit**2).sum())
    if kind == "diag":
        return unit**2
    i, j = np.triu_indices(len(unit))
    return np.asarray(unit[i] * unit[j])


def scaled(s: Statistics, unit: Array, kind: CovarianceType) -> dict[str, Array]:
    """Statistics as they travel: in the public units of the features."""
    return {"a": s.a, "b": s.b / unit, "C": s.C / _units(unit, kind)}


def unscaled(arrays: Arrays, unit: Array, kind: CovarianceType, scale: float) -> Statistics:
    """Inverse of :func:`scaled`; ``scale`` is the unit of the log-likelihood."""
    loglik = float(arrays["loglik"][0]) * scale if "loglik" in arrays else 0.0
    return Statistics(np.maximum(arrays["a"], 0.0), arrays["b"] * unit, arrays["C"] * _units(unit, kind), loglik)
