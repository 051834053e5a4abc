"""A site's patients as the acts see them: placed by the model, in their half, with outcome and covariates in public units."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from polyclinic.config.evaluate import PeopleRule
from polyclinic.errors import ConfigError, DataError
from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.models.phenotypes.projection import LeastSquares
from polyclinic.protocol.patient_halves import halves_of
from polyclinic.records.sites.site import Site

Array = NDArray[np.float64]
# definition: who carries a phenotype
CARRIES: Final = 0.05  # a patient has a phenotype that explains at least this part of the recorded activity
MISSING: Final = "missing"


class Projector:
    """A fitted model, as far as acts need it: its factors, and how a patient is placed. Placed once for every site.

    Parameters
    ----------
    factors
        Per feature mode (I_n, R), not negative or of any sign.
    place
        (patients, R) memberships of a site.
    weights
        (R,) size of every component; None: all the same.
    squares
        Whether memberships and factors approximate the cells by least squares.
    saturation
        Of these cells.
    """

    def __init__(
        self,
        factors: Sequence[Array],
        place: Callable[[Site], Array],
        weights: Array | None = None,
        *,
        squares: bool = False,
        saturation: float | None = None,
    ) -> None:
        self.factors = tuple(np.asarray(f, np.float64) for f in factors)
        self.weights = np.ones(self.rank) if weights is None else weights
        self.squares, self.saturation = squares, saturation
        self._place = place
        self._kept: WeakKeyDictionary[Site, tuple[Array, Array, Array]] = WeakKeyDictionary()

    @classmethod
    def of(cls, model: object) -> Projector:
        """Of a fitted phenotype model."""
        if isinstance(model, Projector):
            return model
        fitted = model if isinstance(model, Phenotypes) else vars(model).get("result_")
        if not isinstance(fitted, Phenotypes):
            raise ConfigError(
                f"a {type(model).__name__} has no phenotypes to evaluate", hint="fit a phenotype method first"
            )
        squares = isinstance(fitted.placing, LeastSquares)
        return cls(fitted.factors, fitted.transform, fitted.weights, squares=squares, saturation=fitted.saturation)

    @property
    def rank(self) -> int:
        """Number of phenotypes."""
        return int(self.factors[0].shape[1])

    def shares(self, site: Site) -> Array:
        """(patients, R) part of each patient's placed activity that each phenotype explains; rows sum to 1 or 0."""
        return self._both(site)[0]

    def loads(self, site: Site) -> Array:
        """(patients, R) |membership|, as the model places patients."""
        return self._both(site)[1]

    def placed(self, site: Site) -> Array:
        """(patients, R) memberships with their sign."""
        return self._both(site)[2]

    def has(self, site: Site) -> NDArray[np.bool_]:
        """(patients, R) who carries what."""
        out: NDArray[np.bool_] = self.shares(site) >= CARRIES
        return out

    def _both(self, site: Site) -> tuple[Array, Array, Array]:
        cached = self._kept.get(site)
        if cached is None:
            n = site.patients
            placed = np.asarray(self._place(site), np.float64) if n else np.zeros((0, self.rank))
            load = np.abs(placed)
            mass = np.prod([np.abs(f).sum(0) for f in self.factors], axis=0)
            explained = load * mass
            total = explained.sum(1, keepdims=True)
            cached = (np.where(total > 0, explained / np.where(total > 0, total, 1.0), 0.0), load, placed)
            self._kept[site] = cached
        return cached


@dataclass(frozen=True)
class Variable:
    """A covariate in public units: bands of a number, or levels of a category; ``missing`` is added to both.

    ``centre`` and ``unit`` make a number a column of a regression, cut to [-limit, limit]; a category has one column a
    level but the first.
    """

    name: str
    cuts: tuple[float, ...] = ()
    levels: tuple[str, ...] = ()
    centre: float = 0.0
    unit: float = 1.0
    limit: float = 1.0

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the levels, ``missing`` last."""
        if self.levels:
            return (*self.levels, MISSING)
        bands = [f"{a:g} to {b:g}" for a, b in zip(self.cuts[:-1], self.cuts[1:])]
        return (*bands, MISSING)

    def level(self, site: Site) -> NDArray[np.int64]:
        """(patients,) number of the level; the last one is unknown or outside."""
        values = _column(site, self.name)
        last = len(self.words) - 1
        if values is None:
            return np.full(site.patients, last)
        if self.levels:
            positions = {x: i for i, x in enumerate(self.levels)}
            return np.array([positions.get(_text(v), last) for v in values.tolist()], np.int64)
        numbers = _numbers(values)
        band = np.searchsorted(np.asarray(self.cuts), numbers, side="right") - 1
        band = np.where(numbers == self.cuts[-1], len(self.cuts) - 2, band)
        valid = np.isfinite(numbers) & (band >= 0) & (band < last)
        return np.where(valid, band, last).astype(np.int64)

    def columns(self, site: Site) -> tuple[Array, NDArray[np.bool_]]:
        """(patients, c) columns of a regression, and whose are known: a number must be in its bands, a category has ``missing``."""
        levels = self.level(site)
        if self.levels:
            return (levels[:, None] == np.arange(1, len(self.words))).astype(np.float64), np.ones(site.patients, bool)
        values = _column(site, self.name)
        numbers = np.full(site.patients, np.nan) if values is None else _numbers(values)
        x = np.clip((numbers - self.centre) / self.unit, -self.limit, self.limit)
        known = levels < len(self.words) - 1  # an age of -3 years is unknown, as in Table 1
        return np.where(known, x, 0.0)[:, None], known

    @property
    def width(self) -> int:
        """Columns in a regression."""
        return len(self.words) - 1 if self.levels else 1


def _column(site: Site, name: str) -> NDArray[np.generic] | None:
    return None if site.people is None else site.people.columns.get(name)


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _numbers(values: NDArray[np.generic]) -> Array:
    if values.dtype.kind == "f":
        return values.astype(np.float64, copy=False)
    raise DataError("a covariate in bands must be a number", hint="list its levels: [people] columns = {name = [...]}")


@dataclass(frozen=True)
class Covariates:
    """What regressions are adjusted for: variables, size of the record, and the hospital (an intercept that stays there)."""

    variables: tuple[Variable, ...] = ()
    size: bool = False
    site: bool = True
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        names = [
            f"{v.name}: {w}" if v.levels else v.name
            for v in self.variables
            for w in (v.words[1:] if v.levels else [v.name])
        ]
        names += ["log number of events", "log number of different entries"] if self.size else []
        object.__setattr__(self, "names", tuple(names))

    def columns(self, site: Site) -> tuple[Array, NDArray[np.bool_]]:
        """(patients, c) and who has them all."""
        parts = [v.columns(site) for v in self.variables]
        complete = np.ones(site.patients, bool)
        for _, k in parts:
            complete &= k
        blocks = [x for x, _ in parts] + ([sizes_of(site)] if self.size else [])
        return (np.concatenate(blocks, axis=1) if blocks else np.zeros((site.patients, 0))), complete


def sizes_of(site: Site) -> Array:
    """(patients, 2) log(1 + number of events), log(1 + number of different entries)."""
    t = site.counts()
    out = np.zeros((t.patients, 2))
    if t.nnz:
        out[t.rows, 0] = np.log1p(np.maximum(np.add.reduceat(t.values, t.indptr[:-1]), 0.0))
        out[t.rows, 1] = np.log1p(np.diff(t.indptr))
    return out


def outcome_of(site: Site) -> Array:
    """(patients,) 0, 1, or NaN where the outcome is unknown."""
    if site.labels is None:
        return np.full(site.patients, np.nan)
    try:
        y = np.asarray(site.labels, np.float64)
    except (TypeError, ValueError):
        return np.full(site.patients, np.nan)
    return np.where((y == 0) | (y == 1), y, np.nan)


def half_of(
    site: Site, key: str, kept: WeakKeyDictionary[Site, NDArray[np.int64]], halving: int = 0
) -> NDArray[np.int64]:
    """The patients' halves, hashed once for every site."""
    cached = kept.get(site)
    if cached is None:
        cached = halves_of(site, key, halving)
        kept[site] = cached
    return cached


def variables_of(sites: Sequence[Site], rule: PeopleRule | None = None) -> tuple[Variable, ...]:
    """The public covariates: those that a study's ``[people]`` names, else (in one process) all that the sites have.

    Age is (age - 60) / 30 cut to [-1, 1], in bands of 0, 50, 70, 120 years; other numbers are in units of their spread.
    """
    if rule is not None:
        variables = [_age(rule.age)] if rule.age else []
        variables += [Variable("sex", levels=("F", "M"))] if rule.sex else []
        return (*variables, *(Variable(n, levels=tuple(levels)) for n, levels in rule.columns.items()))
    names: dict[str, list[NDArray[np.generic]]] = {}
    for s in sites:
        for n, v in (s.people.columns if s.people is not None else {}).items():
            names.setdefault(n, []).append(v)
    return tuple(_variable(n, parts) for n, parts in sorted(names.items()))


def public_variables(sites: Sequence[Site]) -> tuple[Variable, ...]:
    """Covariates whose units and levels are public whatever the sites hold: age and sex. Others need ``[people]``.

    The levels of a column that are found in the data tell who has a rare one.
    """
    names = {n for s in sites for n in (s.people.columns if s.people is not None else ())}
    return tuple(v for v in STANDARD if v.name in names)


def _age(cuts: Sequence[float]) -> Variable:
    return Variable("age", cuts=tuple(float(c) for c in cuts), centre=60.0, unit=30.0)


STANDARD: Final = (_age((0.0, 50.0, 70.0, 120.0)), Variable("sex", levels=("F", "M")))


def _variable(name: str, parts: Sequence[NDArray[np.generic]]) -> Variable:
    numeric = all(p.dtype.kind == "f" for p in parts)
    if numeric and name == "age":
        return _age((0.0, 50.0, 70.0, 120.0))
    flat = np.concatenate(parts)
    if numeric:
        finite = flat[np.isfinite(flat)]
        values = np.unique(finite)
        if len(values) > 6:
            cuts = np.unique(np.quantile(finite, [0.0, 1 / 3, 2 / 3, 1.0]))
            return Variable(name, tuple(cuts.tolist()), (), float(finite.mean()), float(finite.std()) or 1.0, 4.0)
        return Variable(name, levels=tuple(_text(v) for v in values.tolist()) or ("0",))
    levels = sorted({_text(v) for v in flat.tolist()} - {""})
    return Variable(name, levels=tuple(levels) or ("",))


def chosen(adjust: Sequence[str], variables: Sequence[Variable]) -> Covariates:
    """The covariates that ``adjust`` names; all faults at once."""
    by_name: Mapping[str, Variable] = {v.name: v for v in variables}
    unknown = [a for a in adjust if a not in by_name and a not in ("site", "size")]
    if unknown:
        raise ConfigError(
            "cannot adjust for covariates that no site has",
            faults=[f"no site has the covariate {a!r}" for a in unknown],
            hint=f"known here: {', '.join([*by_name, 'site', 'size'])}",
        )
    return Covariates(tuple(by_name[a] for a in adjust if a in by_name), "size" in adjust, "site" in adjust)
