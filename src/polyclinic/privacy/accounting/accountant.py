"""How much privacy a list of releases has spent.

Events are data: frozen values that a ledger can write down and read back. Interpreting them is apart: the
privacy-loss-distribution accountant of ``dp-accounting`` (pessimistic), its Renyi accountant where the first does not
know an event, and, for Gaussian releases of the whole cohort, the exact closed form (Balle and Wang 2018; Dong, Roth
and Su 2022): releases with multipliers sigma_t are together one release with ``mu^2 = sum 1 / sigma_t^2``.
The papers' own conversions stand beside them, so that a card can show what was claimed and what holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from polyclinic.errors import ConfigError, LedgerError
from polyclinic.privacy.accounting.budget import MOST

if TYPE_CHECKING:
    from dp_accounting import DpEvent

# grid units of noise from which the discrete Gaussian's curve is the continuous one (a test checks)
FINE: Final = 1000.0


@dataclass(frozen=True)
class Gaussian:
    """Sums of the whole cohort with Gaussian noise; ``multiplier`` = standard deviation over sensitivity."""

    multiplier: float
    count: int = 1


@dataclass(frozen=True)
class DiscreteGaussian:
    """The same on an integer grid; ``sd`` is the noise of the total in grid units (Canonne, Kamath and Steinke 2020)."""

    multiplier: float
    sd: float
    count: int = 1


@dataclass(frozen=True)
class ZCDP:
    """Any mechanism of which only rho-zCDP is known."""

    rho: float
    count: int = 1


@dataclass(frozen=True)
class SubsampledGaussian:
    """Gaussian sums over a Poisson sample: every patient takes part with probability ``q``."""

    q: float
    multiplier: float
    count: int = 1


@dataclass(frozen=True)
class Unbounded:
    """A release without a privacy bound: whatever is composed with it has none either."""

    count: int = 1


Event = Gaussian | DiscreteGaussian | ZCDP | SubsampledGaussian | Unbounded


def multiplier_of(event: Event | None) -> float | None:
    """Standard deviation over sensitivity of an event with Gaussian noise; None of any other."""
    return event.multiplier if isinstance(event, Gaussian | DiscreteGaussian | SubsampledGaussian) else None


_KINDS: Final[Mapping[str, type[Any]]] = {
    "gaussian": Gaussian,
    "discrete-gaussian": DiscreteGaussian,
    "zcdp": ZCDP,
    "subsampled-gaussian": SubsampledGaussian,
    "unbounded": Unbounded,
}


def to_json(event: Event) -> dict[str, Any]:
    """Plain values for one line of the ledger.

    >>> to_json(Gaussian(10.0, 8))
    {'kind': 'gaussian', 'multiplier': 10.0, 'count': 8}
    """
    kind = next(k for k, c in _KINDS.items() if type(event) is c)
    return {"kind": kind, **asdict(event)}


def from_json(value: Mapping[str, Any]) -> Event:
    """Inverse of :func:`to_json`."""
    fields = dict(value)
    kind = fields.pop("kind", None)
    try:
        event: Event = _KINDS[str(kind)](**fields)
    except (KeyError, TypeError) as e:
        raise LedgerError(
            f"unknown privacy event {value!r}", hint="the ledger was written by another version, or edited"
        ) from e
    return event


# ---- the exact curve of Gaussian releases


def gaussian_delta(eps: float, mu: float) -> float:
    """Smallest delta at which mu-Gaussian privacy is (eps, delta): Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).

    >>> round(gaussian_delta(1.0, 0.5), 5)
    0.00683
    """
    if mu <= 0:
        return 0.0
    from scipy.special import log_ndtr

    a, b = float(log_ndtr(mu / 2 - eps / mu)), eps + float(log_ndtr(-mu / 2 - eps / mu))
    return math.exp(a) * -math.expm1(min(b - a, 0.0))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Smallest epsilon of mu-Gaussian privacy at this delta (rounded up, never down).

    >>> round(gaussian_epsilon(8**0.5 / 10, 1e-6), 3)
    1.212
    """
    _check_delta(delta)
    if mu <= 0 or gaussian_delta(0.0, mu) <= delta:
        return 0.0
    if not math.isfinite(mu):
        return math.inf
    top = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))  # BS16 bound, always enough
    from scipy.optimize import brentq

    root = float(brentq(lambda e: gaussian_delta(e, mu) - delta, 0.0, top, xtol=1e-13, rtol=1e-14))
    while gaussian_delta(root, mu) > delta:
        root = math.nextafter(root, math.inf) + 1e-13
    return root


def gaussian_mu(events: Iterable[Event]) -> float | None:
    """The ``mu`` of Gaussian releases together, or None if one of them is of another kind."""
    total = 0.0
    for e in events:
        if isinstance(e, Gaussian) or (isinstance(e, DiscreteGaussian) and e.sd >= FINE):
            noise = max(e.multiplier, 0.0)
            squared = noise * noise  # 0 or infinite where float64 ends, never an exception
            total += e.count / squared if squared > 0 else math.inf
        else:
            return None
    return math.sqrt(total)


# ---- any events


def epsilon(events: Sequence[Event], delta: float) -> float:
    """Tight epsilon of releases together; infinite if one has no bound.

    Parameters
    ----------
    events
        What was released. Order does not matter.
    delta
        Probability with which the bound may fail.

    Examples
    --------
    The papers' MIMIC setting: rho = 1e-3 for each of two matrices in 20 epochs is claimed as 1.2.

    >>> round(epsilon([Gaussian((2 * 1e-3) ** -0.5, 40)], 1e-4), 3)
    0.889
    """
    _check_delta(delta)
    if not events:
        return 0.0
    if any(isinstance(e, Unbounded) for e in events):
        return math.inf
    mu = gaussian_mu(events)
    if mu is not None:
        return gaussian_epsilon(mu, delta)
    from dp_accounting import UnsupportedEventError, pld

    accountant = pld.PLDAccountant()
    try:
        for e in events:
            accountant.compose(_foreign(e), e.count)
    except UnsupportedEventError:  # zCDP: only its Renyi curve is known
        return epsilon_rdp(events, delta)
    return float(accountant.get_epsilon(delta))


def epsilon_rdp(events: Sequence[Event], delta: float) -> float:
    """Epsilon by Renyi accounting: looser than :func:`epsilon`, but it knows every event."""
    _check_delta(delta)
    if not events:
        return 0.0
    if any(isinstance(e, Unbounded) for e in events):
        return math.inf
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant()
    for e in events:
        accountant.compose(_foreign(e), e.count)
    return float(accountant.get_epsilon(delta))


def _foreign(event: Event) -> DpEvent:
    """The same event in the words of ``dp-accounting``."""
    import dp_accounting as dpa

    match event:
        case Gaussian(multiplier):
            return dpa.GaussianDpEvent(multiplier)
        case DiscreteGaussian(multiplier, sd):
            # a coarse grid: only its zCDP bound 1 / (2 multiplier^2) is used (Canonne et al. 2020, theorem 4)
            return dpa.GaussianDpEvent(multiplier) if sd >= FINE else dpa.ZCDpEvent(1 / (2 * multiplier**2))
        case ZCDP(rho):
            return dpa.ZCDpEvent(rho)
        case SubsampledGaussian(q, multiplier):
            return dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(multiplier))
        case _:
            return dpa.NonPrivateDpEvent()


def calibrate(
    epsilon: float, delta: float, *, shares: Sequence[float] | None = None, rounds: int = 1
) -> tuple[float, ...]:
    """Noise multipliers that spend exactly (epsilon, delta) over several releases.

    Parameters
    ----------
    epsilon, delta
        The whole budget.
    shares
        Part of the budget (of ``mu^2``) for each release; they sum to at most 1. A release with share ``w`` gets
        the multiplier ``sigma_1 / sqrt(w)``, where ``sigma_1`` belongs to one release with everything.
    rounds
        Without ``shares``: this many equal releases.

    Returns
    -------
    tuple of float
        One multiplier (standard deviation over sensitivity) per release.

    Examples
    --------
    >>> [round(m, 2) for m in calibrate(1.2, 1e-4, rounds=40)[:2]]
    [17.15, 17.15]
    >>> small, large = calibrate(1.0, 1e-6, shares=(0.1, 0.9))
    >>> round(small / large, 6)  # a ninth of the budget: three times the noise
    3.0
    """
    _check_delta(delta)
    parts = np.full(rounds, 1 / rounds) if shares is None else np.asarray(shares, np.float64)
    faults = []
    if not 0 < epsilon <= MOST:
        faults.append(f"epsilon {epsilon!r} is not between 0 and {MOST:g}")
    if not parts.size or not np.isfinite(parts).all() or (parts <= 0).any():
        faults.append(f"shares {parts.tolist()} must be positive")
    elif parts.sum() > 1 + 1e-9:
        faults.append(f"shares sum to {parts.sum():.6g}, more than the whole budget")
    low, high = 1e-12, 1.0
    if not faults and gaussian_delta(epsilon, low) > delta:
        faults.append(f"epsilon {epsilon!r} at delta {delta!r} asks for more noise than can be computed")
    if faults:
        raise ConfigError("the privacy budget cannot be split", faults=faults)
    while gaussian_delta(epsilon, high) < delta:
        high *= 2
    from scipy.optimize import brentq

    mu = float(brentq(lambda m: gaussian_delta(epsilon, m) - delta, low, high, xtol=1e-15, rtol=1e-14))
    while gaussian_delta(epsilon, mu) > delta:  # on the safe side, whatever the solver's last digit
        mu *= 1 - 1e-13
    scale = max(1.0, float(parts.sum()))
    return tuple(float(x) for x in 1 / (mu * np.sqrt(parts / scale)))


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ConfigError(f"delta {delta!r} is not a probability between 0 and 1")


# ---- what the papers say


def prop_2_8(rho: float, delta: float) -> float:
    """The papers' conversion, exactly: rho-zCDP is (rho + sqrt(4 rho ln(1/delta)), delta).

    >>> round(prop_2_8(0.04, 1e-4), 3)
    1.254
    """
    return rho + math.sqrt(4 * rho * math.log(1 / delta))


def theorem_4_1(epsilon: float, delta: float, *, epochs: int, modes: int = 3, exact: bool = False) -> float:
    """Budget rho of one factor matrix in one epoch, by theorem 4.1 of DPFact.

    Parameters
    ----------
    epsilon, delta
        What the paper claims for the whole run.
    epochs
        Number of releases E of each matrix; fixed in advance (ERRATA E0.10).
    modes
        Modes of the tensor N, patients included; N - 1 matrices are released (ERRATA E0.9).
    exact
        False: as printed for N = 3, ``eps^2 / (8 E ln(1/delta))``, which drops a term. True: solved from Prop. 2.8.

    Examples
    --------
    >>> round(theorem_4_1(1.2, 1e-4, epochs=1) * 2, 5), round(theorem_4_1(1.2, 1e-4, epochs=1, exact=True) * 2, 5)
    (0.03909, 0.03673)
    """
    _check_delta(delta)
    log = math.log(1 / delta)
    total = (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2 if exact else epsilon**2 / (4 * log)
    return total / ((modes - 1) * epochs)
