"""Where privacy noise comes from: an exact sampler between hospitals, a numpy generator in simulation, labelled so."""

from __future__ import annotations

import secrets
from types import ModuleType
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError, MissingExtra
from polyclinic.privacy.release import Array, Contribution

Integers = NDArray[np.int64]
NOT_PRIVATE: Final = "not private"  # how the label of noise begins that anybody could subtract


class Noise(Protocol):
    """A source of Gaussian noise on the integers.

    ``exact`` says whether the distribution is the one the theorem speaks of, to the last bit; ``label`` is what the
    privacy card prints. Noise never depends on the study's seed.
    """

    @property
    def exact(self) -> bool: ...
    @property
    def label(self) -> str: ...
    def integers(self, sd: float, shape: tuple[int, ...]) -> Integers:
        """Whole numbers with standard deviation ``sd``."""
        ...


def secure_generator() -> np.random.Generator:
    """A numpy generator seeded by the operating system's secure source, never by a study."""
    return np.random.default_rng(secrets.randbits(256))


class SimulatedNoise:
    """Rounded floating-point Gaussian noise: right in distribution to 1e-16, but not safe against attacks on the
    low-order bits (Mironov 2012). For simulation in one process.

    Parameters
    ----------
    rng
        Tests may inject a generator; otherwise it is seeded from a secure source.

    Examples
    --------
    >>> SimulatedNoise(np.random.default_rng(0)).integers(10.0, (3,))
    array([ 1, -1,  6])
    """

    exact = False
    label = "simulation (floating-point Gaussian)"

    def __init__(self, rng: np.random.Generator | None = None) -> None:
        self._rng = secure_generator() if rng is None else rng

    def integers(self, sd: float, shape: tuple[int, ...]) -> Integers:
        """Whole numbers with standard deviation ``sd`` (a rounded normal deviate)."""
        _check(sd)
        return np.rint(self._rng.standard_normal(shape) * sd).astype(np.int64)


class RehearsalNoise(SimulatedNoise):
    """Noise from a seed in the node file, so that a rehearsal can be compared with one process. It protects nobody."""

    label = f"{NOT_PRIVATE}: simulated noise from a seed (rehearsal)"


class ExactNoise:
    """Discrete Gaussian noise drawn in exact arithmetic by OpenDP (extra ``exact``)."""

    exact = True
    label = "exact (discrete Gaussian, OpenDP)"

    def __init__(self) -> None:
        _opendp()  # fail before a study starts, not in its first round

    def integers(self, sd: float, shape: tuple[int, ...]) -> Integers:
        """Whole numbers from the discrete Gaussian with parameter ``sd``."""
        return discrete_gaussian(shape, sd)


def discrete_gaussian(shape: tuple[int, ...], sd: float) -> Integers:
    """Exact samples of the discrete Gaussian, probability of k proportional to exp(-k^2 / (2 sd^2)).

    Parameters
    ----------
    shape
        Shape of the array.
    sd
        Its parameter, in grid units; the standard deviation for sd above 1.
    """
    _check(sd)
    dp = _opendp()
    size = int(np.prod(shape, dtype=np.int64))
    if not size or not sd:
        return np.zeros(shape, np.int64)
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    draw = dp.m.make_gaussian(*space, scale=float(sd))
    return np.array(draw([0] * size), np.int64).reshape(shape)


def _check(sd: float) -> None:
    if not 0 <= sd < 2**58:  # six standard deviations stay inside int64
        raise ConfigError(f"noise of {sd!r} grid units is outside 0..2^58", hint="use a coarser grid")


def _opendp() -> ModuleType:
    try:
        import opendp.prelude as dp
    except ImportError:
        raise MissingExtra("opendp", "exact", "exact privacy noise") from None
    dp.enable_features("contrib")
    module: ModuleType = dp
    return module


def add_noise(noise: Noise, mine: Contribution, sd: float, grid: float | None) -> Contribution:
    """Values on a grid, with noise of parameter ``sd`` drawn on it: ``h (round(x / h) + Z)``, Z discrete Gaussian of ``sd / h``.

    Parameters
    ----------
    noise
        Where it comes from.
    mine
        The values, without noise.
    sd, grid
        Parameter of the noise that this site adds, and the grid h; 0 or None: the values as they are.
    """
    if not sd or grid is None:
        return mine
    arrays: dict[str, Array] = {}
    for name, values in mine.arrays.items():
        units = np.rint(np.asarray(values, np.float64) / grid).astype(np.int64)
        arrays[name] = (units + noise.integers(sd / grid, units.shape)).astype(np.float64) * grid
    return Contribution(arrays, mine.weight)
