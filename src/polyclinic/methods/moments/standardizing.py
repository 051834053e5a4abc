"""Standardise features and find principal components over all hospitals' patients, from summed moments.

With the sums of ``moments.py``, n patients, m = mean and C = covariance (divisor n):

    Standardizer    x' = (x - m) / sqrt(diag C)
    FederatedPCA    x' = V' (x - m) / s,    V = leading eigenvectors of C / (s s'),    s = 1 or sqrt(diag C)

With privacy all of it follows from one noisy release: sum_i (1, z_i, z_i z_i') / sqrt 3 of records z in a public ball. A patient's
row has length at most 1, and so has what one patient changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from polyclinic.errors import ConfigError
from polyclinic.methods.moments.moments import (
    GRID,
    Array,
    MomentsPhase,
    SummedMoments,
    WithMoments,
    complete,
    in_ball,
    moment_rows,
    noisy_moments,
)
from polyclinic.models import moments as learned
from polyclinic.models.origin import Origin
from polyclinic.privacy.accounting.accountant import calibrate
from polyclinic.privacy.facts import KnownAttack, MethodFacts, StepMeaning
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import Answer, Arrays, Contribution, Schema, Step, Total
from polyclinic.protocol.loop import SimulationOptions
from polyclinic.protocol.outcome import Outcome
from polyclinic.protocol.params import Params
from polyclinic.protocol.phases import Phase
from polyclinic.records.sites.site import Site


class MomentParams(Params):
    """Parameters of standardising and PCA."""

    radius: float | None = Field(
        None, gt=0, description="Public: no |value| exceeds it (1e6). With privacy: ball that records are clipped to."
    )
    center: tuple[float, ...] | None = Field(None, description="Public centre of the ball, with privacy; default 0.")
    max_patients: int = Field(10_000_000, ge=1, description="Public: no site has more patients.")

    @model_validator(mode="after")
    def _paid(self) -> MomentParams:
        if self.privacy is not None and self.radius is None:
            raise ValueError("privacy needs radius: a public bound on the length of a record around center")
        if self.privacy is not None and self.privacy.level != "patient":
            raise ValueError("means and covariances are private at the level of patients only: level='patient'")
        return self


class PCAParams(MomentParams):
    """Parameters of PCA."""

    n_components: int = Field(2, ge=1, description="How many directions to keep.")
    standardize: bool = Field(False, description="Divide each feature by its standard deviation first.")


@dataclass(frozen=True)
class MomentsPublic:
    """The moments so far."""

    stage: str
    moments: SummedMoments


@dataclass(frozen=True)
class Nothing:
    """A site needs no memory of its own here."""

    empty: bool = True


MP = TypeVar("MP", bound=MomentParams)


class _Moments(MomentsPhase[MomentsPublic, Nothing]):
    """The sums of the zoom; all but the last one only set it up."""

    def step(self, public: MomentsPublic) -> Step:
        step = super().step(public)
        return replace(step, round=1, counts=True) if public.moments.last else step

    def refuse_few(self, moments: SummedMoments, members: int) -> None:
        """Refuse nobody: there are no rounds whose sums could be compared."""


class _NoisyMoments(Phase[MomentsPublic, Nothing]):
    """One noisy release of number, mean and covariance of records in the public ball."""

    def step(self, public: MomentsPublic) -> Step:
        d, p = len(public.moments.mean), self.fit.params
        (multiplier,) = calibrate(p.privacy.epsilon, p.privacy.delta)
        return Step(
            1,
            "noisy-moments",
            {"rows": (1 + d + len(public.moments.second),)},
            bound=float(p.max_patients),
            sensitivity=1.0,
            multiplier=multiplier,
            grid=GRID,
        )

    def contribute(self, step: Step, site: Site, private: Nothing, public: MomentsPublic) -> Answer[Nothing]:
        """x_k = sum_i (1, z_i, z_i z_i') / sqrt 3 with |z_i| <= 1: each row has length at most 1."""
        z = in_ball(site.matrix(), self.fit._center(len(public.moments.mean)), self.fit._radius)
        return private, Contribution({"rows": moment_rows(z, crossed=self.fit.crossed)})

    def combine(self, step: Step, public: MomentsPublic, total: Total) -> MomentsPublic:
        """mean = center + radius * sum z / n, C = radius^2 (sum zz' / n - mean mean'), eigenvalues above the noise."""
        d, radius = len(public.moments.mean), self.fit._radius
        m = noisy_moments(total.arrays["rows"], total.noise_sd, d, crossed=self.fit.crossed)
        moments = replace(m, mean=self.fit._center(d) + radius * m.mean, unit=radius * m.unit)
        return replace(public, stage="end", moments=moments)


class _FromMoments(WithMoments[MomentsPublic, Nothing], Estimator[MP, MomentsPublic, Nothing]):
    """What standardising and PCA have in common: the sums."""

    version = 2
    needs = "features"
    Params = MomentParams
    Public = MomentsPublic
    Private = Nothing
    params: Any
    crossed = True
    additive = True
    facts = MethodFacts(
        paper="sums of values and squares, zoomed (this program)",
        formal=True,
        attacks=(
            KnownAttack(
                "sum", "exact means and spreads over few patients show a patient whose value lies far from the others"
            ),
        ),
        steps={
            "count": StepMeaning("how many patients"),
            "zoom-*": StepMeaning("sums of values and of their distances from the mean, per feature"),
            "second-moments": StepMeaning("how features vary, alone and together", "a value far from all others"),
            "noisy-moments": StepMeaning("number, mean and spread of the records, each patient at most 1"),
        },
    )
    keeps = False  # whether a new feature is the old one in other units
    exact = 1e-9
    moments_: SummedMoments
    mean_: Array
    scale_: Array
    result_: learned.Moments

    def init_public(self, setting: Schema, rng: np.random.Generator) -> MomentsPublic:
        """mean = 0, unit = radius: nothing is known before the first sum."""
        p, d = self.params, setting.shape[0]
        if p.center is not None and len(p.center) != d:
            raise ConfigError(f"center has {len(p.center)} values, the sites have {d} features")
        return self.outset(MomentsPublic("", SummedMoments.begin(d, self._radius, crossed=self.crossed)))

    @property
    def phases(self) -> Mapping[str, Phase[MomentsPublic, Nothing]]:
        return {"moments": _Moments(self)} if self.params.privacy is None else {"noisy-moments": _NoisyMoments(self)}

    def init_site(self, site: Site, public: MomentsPublic, rng: np.random.Generator) -> Nothing:
        complete(site, self._radius if self.params.privacy is None else None)
        return Nothing()

    def finalize_site(self, site: Site, private: Nothing, public: MomentsPublic) -> Arrays:
        return {}

    def _publish(self, outcome: Outcome) -> None:
        self.moments_ = outcome.public.moments
        self.n_features_in_ = len(self.moments_.mean)
        self.n_samples_seen_ = self.moments_.n
        self.mean_ = self.moments_.mean
        self._derive()

    def _derive(self) -> None:
        raise NotImplementedError

    def learned(self, origin: Origin) -> learned.Moments:
        columns = self.__dict__.get("feature_names_in_")
        names = None if columns is None else tuple(str(c) for c in columns)
        directions = self.__dict__.get("components_"), self.__dict__.get("explained_variance_")
        return learned.Moments(origin, self.mean_, self.scale_, self.moments_.n, *directions, names)

    def fit_transform(self, sites: Any, y: object = None, **options: Unpack[SimulationOptions]) -> Any:
        """Fit, then transform the same sites (or the same matrix)."""
        return self.fit(sites, y, **options).transform(sites)

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Standardised features keep their names; directions are ``pca0``, ``pca1``, ..."""
        columns = self._fitted("result_").columns
        if self.keeps and columns is not None:
            return np.array(columns, dtype=object)
        return super().get_feature_names_out(input_features)

    def transform(self, data: Sequence[Site] | ArrayLike) -> Any:
        """Compute new features: for sites, a list of sites (each keeps its own rows); for a matrix, a matrix."""
        self._fitted("mean_")
        if isinstance(data, Sequence) and len(data) and isinstance(data[0], Site):
            sites: Sequence[Any] = data
            return [self._transformed(s.arranged(self.__dict__.get("feature_names_in_"))) for s in sites]
        site = Site("patients", features=data).arranged(self.__dict__.get("feature_names_in_"))  # type: ignore[arg-type]
        rows = getattr(data, "index", None)
        return self._framed(self._apply(site.matrix()), None if rows is None or callable(rows) else rows)

    def _transformed(self, site: Site) -> Site:
        """Return the site with new features, which build on the releases that they were computed from."""
        charges = tuple(e for e in self.lines_ if e.charge is not None and e.charge.site == site.name)
        features = self._apply(site.matrix())
        columns = site.columns if self.keeps else None  # directions of a PCA are new features
        return replace(site, features=features, columns=columns, builds_on=(*site.builds_on, *charges))

    def _apply(self, X: Array) -> Array:
        raise NotImplementedError


class Standardizer(_FromMoments[MomentParams]):
    """Bring every feature to mean 0 and standard deviation 1 over all hospitals' patients; only sums leave a hospital.

    Without privacy it equals pooled standardising (divisor n) to rounding. With ``privacy`` all records are clipped to a
    public ball and the budget covers one noisy release.

    Attributes
    ----------
    mean_, var_, scale_
        (d,) as in scikit-learn's ``StandardScaler``.
    result_
        The moments as a value (:class:`polyclinic.Moments`).
    privacy_, traffic_
        The privacy card, and the bytes sent.

    Examples
    --------
    >>> sites = [Site("a", features=[[1.0], [2.0]]), Site("b", features=[[6.0]])]
    >>> Standardizer().fit(sites).mean_
    array([3.])
    """

    name = "standardizer"
    crossed = False
    keeps = True

    def _derive(self) -> None:
        m = self.moments_
        self.var_ = np.maximum(m.second, 0.0) * m.unit**2
        flat = self.var_ <= (10 * np.finfo(float).eps * (1 + np.abs(self.mean_))) ** 2
        self.scale_ = np.where(flat, 1.0, np.sqrt(np.where(flat, 1.0, self.var_)))

    def _apply(self, X: Array) -> Array:
        return np.asarray((X - self.mean_) / self.scale_)


class FederatedPCA(_FromMoments[PCAParams]):
    """Fit principal components from summed covariances. Each hospital projects its own patients.

    Attributes
    ----------
    components_
        (n_components, d), signs fixed so that the largest loading is positive.
    explained_variance_, explained_variance_ratio_
        Divisor n - 1, as in scikit-learn.

    Examples
    --------
    >>> sites = [Site("a", features=[[1.0, 1.0], [2.0, 2.1]]), Site("b", features=[[3.0, 2.9]])]
    >>> FederatedPCA(n_components=1).fit(sites).explained_variance_ratio_.round(3)
    array([0.998])
    """

    name = "pca"
    Params = PCAParams
    kind: Literal["pca"] = "pca"

    def _derive(self) -> None:
        p, m = self.params, self.moments_
        if p.n_components > len(m.mean):
            raise ConfigError(f"n_components {p.n_components} exceeds the {len(m.mean)} features")
        covariance = m.covariance() * (m.n / max(m.n - 1, 1.0))
        sd = np.sqrt(np.diag(m.covariance()))
        self.scale_ = np.where(sd > 0, sd, 1.0) if p.standardize else np.ones(len(m.mean))
        values, vectors = np.linalg.eigh(covariance / np.outer(self.scale_, self.scale_))
        keep = np.argsort(values)[::-1][: p.n_components]
        components = vectors[:, keep].T
        signs = np.sign(components[np.arange(len(keep)), np.abs(components).argmax(1)])
        self.components_ = components * signs[:, None]
        self.explained_variance_ = values[keep]
        self.explained_variance_ratio_ = values[keep] / values.sum()

    def _apply(self, X: Array) -> Array:
        return np.asarray(((X - self.mean_) / self.scale_) @ self.components_.T)
