"""How many groups? Fit several numbers and compare what they explain with what they cost (BIC), from summed likelihoods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from polyclinic.errors import ConfigError
from polyclinic.methods.mixtures.fitted import Data
from polyclinic.methods.mixtures.gaussian_mixture import GaussianMixture


@dataclass(frozen=True)
class Choice:
    """The chosen fit, and one row per candidate: components, bic, aic, log_likelihood, parameters, rounds."""

    best: GaussianMixture
    table: tuple[dict[str, float], ...]
    criterion: str

    @property
    def n_components(self) -> int:
        """The chosen number of groups."""
        return int(self.best.params.n_components)


def choose_components(
    sites: Data, candidates: Iterable[int] = range(1, 7), *, criterion: Literal["bic", "aic"] = "bic", **params: Any
) -> Choice:
    """Fit every candidate number of groups and keep the one with the smallest criterion.

    Every candidate is a run of its own over the sites, and only its summed log-likelihood is compared. Refused with
    ``privacy``: each run would have to be paid for; choose the number from public knowledge instead.

    Parameters
    ----------
    sites
        The hospitals, or one matrix.
    candidates
        Numbers of groups to try.
    criterion
        ``"bic"`` or ``"aic"``.
    **params
        Everything else that :class:`GaussianMixture` takes.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x = np.concatenate([rng.normal(m, 1.0, (150, 2)) for m in (-6.0, 0.0, 6.0)])
    >>> choose_components(x, range(1, 5), n_starts=2).n_components
    3
    """
    numbers = sorted(set(candidates))
    faults = []
    if not numbers or numbers[0] < 1:
        faults.append(f"candidates {numbers} must be positive numbers")
    if params.get("privacy") is not None:
        faults.append("privacy: comparing likelihoods is not paid for; fix n_components from public knowledge")
    if "n_components" in params or params.get("means_init") is not None:
        faults.append("n_components and means_init follow from the candidates")
    if faults:
        raise ConfigError("the number of groups cannot be chosen so", faults=faults)
    fits = [GaussianMixture(n_components=k, **params).fit(sites) for k in numbers]
    rows = tuple(
        {
            "components": float(k),
            "bic": float(f.bic_),
            "aic": float(f.aic_),
            "log_likelihood": float(f.log_likelihood_),
            "parameters": float(f.mixture_.parameters),
            "rounds": float(f.traffic_.rounds),
        }
        for k, f in zip(numbers, fits)
    )
    best = min(range(len(fits)), key=lambda i: rows[i][criterion])
    return Choice(fits[best], rows, criterion)
