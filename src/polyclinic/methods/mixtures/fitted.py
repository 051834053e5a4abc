"""What a fitted mixture can do: place patients, score them, make up new ones; with scikit-learn's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import DataError
from polyclinic.methods.moments.moments import complete
from polyclinic.models.mixtures.gaussian import Array, Mixture
from polyclinic.models.mixtures.groups import Groups
from polyclinic.models.origin import Origin
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import P, Pri, Pub, seeds
from polyclinic.protocol.loop import SimulationOptions
from polyclinic.protocol.outcome import Outcome, Progress
from polyclinic.records.sites.from_data import as_sites
from polyclinic.records.sites.site import Site

if TYPE_CHECKING:
    from sklearn.utils import Tags

Data = Sequence[Site] | ArrayLike


def _sites(data: object) -> list[Site] | None:
    if isinstance(data, Site):
        return [data]
    if isinstance(data, Sequence) and len(data) and all(isinstance(s, Site) for s in data):
        return list(data)
    return None


class FittedMixture(Estimator[P, Pub, Pri]):
    """Attributes and methods after ``fit``. Sites give an answer per site, a matrix gives an array.

    Attributes
    ----------
    weights_, means_, covariances_, precisions_, precisions_cholesky_
        The mixture, shaped as in scikit-learn.
    converged_, n_iter_, lower_bound_
        Whether and when the best start converged, and its last mean log-likelihood. None where the privacy budget does not cover it.
    log_likelihood_, bic_, aic_
        Of the final mixture, from summed log-likelihoods over all sites. None where the privacy budget does not cover them.
    memberships_
        Site -> (patients, k) probabilities. They stay at the site.
    result_
        The mixture as a value (:class:`polyclinic.Groups`).
    privacy_, traffic_, history_
        The privacy card, the bytes sent, and figures of every round.
    """

    params: Any
    mixture_: Mixture
    result_: Groups
    log_likelihood_: Any  # None where it was not paid for; so are the criteria made from it
    bic_: Any
    aic_: Any

    def fit(
        self,
        sites: object,
        y: object = None,
        *,
        progress: Callable[[Progress], None] | None = None,
        **options: Unpack[SimulationOptions],
    ) -> Self:
        """Learn from sites, or from one matrix (patients, d).

        Parameters
        ----------
        sites
            A list of :class:`~polyclinic.records.sites.site.Site` with features, or one matrix; NaN where a value is missing.
        y
            Ignored; pipelines pass it.
        progress
            Called with every progress event.
        """
        all_sites = as_sites(sites, "features")
        faults = []
        for site in all_sites:
            try:
                complete(site, gaps=True)
            except DataError as e:
                faults += [f"site {site.name!r}: {f}" for f in e.faults] or [e.what]
        if faults:
            raise DataError(
                "feature matrices are not usable",
                faults=faults,
                hint="leave such values empty (NaN): missing at random",
            )
        return super().fit(all_sites, progress=progress, **options)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "density_estimator"
        return tags

    def _publish(self, outcome: Outcome) -> None:
        public = outcome.public
        m: Mixture = self._natural(public)
        self.mixture_ = m
        self.weights_, self.means_, self.covariances_ = m.weights, m.means, m.covariances
        self.precisions_cholesky_ = m.precisions_cholesky()
        f = self.precisions_cholesky_
        self.precisions_ = f @ np.swapaxes(f, -1, -2) if m.kind in ("full", "tied") else f**2
        self.converged_ = bool(public.best_converged)
        self.n_iter_ = int(public.best_iterations)
        self.lower_bound_ = public.best_bound
        self.n_features_in_ = m.d
        self.log_likelihood_ = public.loglik
        has_likelihood = public.loglik is not None
        self.bic_ = (
            m.parameters * float(np.log(max(public.moments.n, 1))) - 2 * public.loglik if has_likelihood else None
        )
        self.aic_ = 2 * m.parameters - 2 * public.loglik if has_likelihood else None
        self.memberships_ = {name: arrays["responsibilities"] for name, arrays in outcome.closed.items()}

    def learned(self, origin: Origin) -> Groups:
        m, columns = self.mixture_, self.__dict__.get("feature_names_in_")
        names = None if columns is None else tuple(str(c) for c in columns)
        return Groups(origin, m.weights, m.means, m.covariances, m.kind, names)

    def transform(self, X: Data) -> Any:
        """(patients, k) probability of each group; the same as :meth:`predict_proba`."""
        probabilities = self.predict_proba(X)
        return probabilities if isinstance(probabilities, dict) else self._framed(probabilities)

    def fit_transform(self, X: Data, y: object = None, **options: Unpack[SimulationOptions]) -> Any:
        """Fit, then the probabilities of the same patients."""
        return self.fit(X, y, **options).transform(X)

    def quality(self, X: Data) -> dict[str, float]:
        """``log_likelihood`` per patient, ``bic``, ``aic``."""
        return {"log_likelihood": self.score(X), "bic": self.bic(X), "aic": self.aic(X)}

    def _mixture(self) -> Mixture:
        m: Mixture = self._fitted("mixture_")
        return m

    def _natural(self, public: Any) -> Mixture:
        """The mixture of a public state, in the units of the records."""
        raise NotImplementedError

    def _each(self, data: Data, answer: Callable[[Array], NDArray[np.generic]]) -> object:
        """Answer for one matrix, or for every site apart."""
        m, sites, columns = self._mixture(), _sites(data), self.__dict__.get("feature_names_in_")
        if sites is None:
            return answer(_checked(Site("local", features=data).arranged(columns), m))  # type: ignore[arg-type]
        return {s.name: answer(_checked(s.arranged(columns), m)) for s in sites}

    def predict_proba(self, X: Data) -> Any:
        """(patients, k) probability of each group."""
        return self._each(X, self._mixture().responsibilities)

    def predict(self, X: Data) -> Any:
        """(patients,) most probable group."""
        return self._each(X, lambda x: self._mixture().responsibilities(x).argmax(1))

    def score_samples(self, X: Data) -> Any:
        """(patients,) log-likelihood of each record."""
        return self._each(X, self._mixture().log_density)

    def _summed(self, X: Data) -> tuple[float, int]:
        answers = self.score_samples(X)
        parts = list(answers.values()) if isinstance(answers, dict) else [answers]
        return sum(float(p.sum()) for p in parts), sum(len(p) for p in parts)

    def score(self, X: Data, y: object = None) -> float:
        """Mean log-likelihood of the records, from sums over sites."""
        total, n = self._summed(X)
        return total / max(n, 1)

    def bic(self, X: Data) -> float:
        """Bayesian information criterion; smaller is better."""
        total, n = self._summed(X)
        return self._mixture().parameters * float(np.log(max(n, 1))) - 2 * total

    def aic(self, X: Data) -> float:
        """Akaike information criterion; smaller is better."""
        return 2 * self._mixture().parameters - 2 * self._summed(X)[0]

    def sample(self, n_samples: int = 1) -> tuple[Array, NDArray[np.int64]]:
        """Made-up records and their groups; the same for the same seed."""
        return self._mixture().sample(n_samples, seeds(self.params.seed, "sample"))


def _checked(site: Site, m: Mixture) -> Array:
    X = complete(site, gaps=True)
    if X.shape[1] != m.d:
        raise DataError(f"site {site.name!r} has {X.shape[1]} features, the mixture {m.d}")
    return X
