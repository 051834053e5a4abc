"""Six intensive care units with planted phenotypes: the network every example and acceptance test runs on."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.datasets.law import draw_events, draw_outcome, unit_columns
from polyclinic.datasets.truth import Truth, refuse_impossible
from polyclinic.errors import ConfigError
from polyclinic.records.sites.people import People
from polyclinic.records.sites.site import Site, Sites
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor

ICU_SHARES: Final[Mapping[str, float]] = {
    "TSICU": 0.11,
    "SICU": 0.15,
    "MICU": 0.33,
    "CSRU": 0.17,
    "CCU": 0.13,
    "NICU": 0.11,
}
MODES: Final = ("procedure", "diagnosis")
BURDEN_SHAPE: Final = 3.0  # Gamma shape of a carrier's burden: mild and severe cases, seldom extreme ones
TYPICAL: Final = 0.65  # a carrier's mean share of the mean number of events, the unit of the log odds in the table

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class _Phenotype:
    name: str
    at: Mapping[str, float]
    mortality: float
    codes: Mapping[str, Mapping[str, float]]


def icu_network(
    patients: int = 3000,
    seed: int = 0,
    *,
    sizes: Mapping[str, int] | None = None,
    phenotypes: int | None = None,
    events: float = 60.0,
    background: float = 0.15,
    mortality: float = 0.12,
    own_vocabulary: bool = False,
    people: bool = False,
) -> Sites:
    """Make six synthetic intensive care units whose phenotypes, patients and deaths follow a known truth.

    The units share ten adult phenotypes in different proportions; two newborn phenotypes occur only at NICU, which has
    none of the adult ones. No patient is real. Codes are ICD-9-CM with their names.

    Parameters
    ----------
    patients
        Number over all units, shared out unequally (MICU a third, TSICU and NICU a ninth).
    seed
        The same seed gives the same network.
    sizes
        Patients by unit instead; any subset of the six units.
    phenotypes
        Plant only so many (3 to 12); the newborn ones stay in.
    events
        Mean number of (procedure, diagnosis) events of a patient.
    background
        Share of the events that belong to no phenotype (common codes, independent of each other).
    mortality
        Share of the patients who die in hospital.
    own_vocabulary
        Each unit lists only the codes it has seen, in its own order, so that codes must be aligned first
        (``pc.align``).
    people
        Give every patient age, sex and days to death or to when the patient was last seen (up to a year).

    Returns
    -------
    Sites
        Six :class:`~polyclinic.records.sites.site.Site` with tensor (patients x procedures x diagnoses) and labels
        (1 = died in hospital); ``.truth`` is a :class:`~polyclinic.datasets.truth.Truth`.

    Examples
    --------
    >>> units = icu_network(patients=300, seed=1)
    >>> [s.name for s in units]
    ['TSICU', 'SICU', 'MICU', 'CSRU', 'CCU', 'NICU']
    >>> units.truth.names[0], units[0].tensor.axes[2].describe(0)
    ('heart failure', 'congestive heart failure')
    """
    plan = _sizes(patients, sizes)
    table = _choose(phenotypes)
    refuse_impossible("icu_network cannot make this network", events=events, background=background, mortality=mortality)
    rng = np.random.default_rng(seed)
    axes = _axes()
    codes = [_weights(axis, table) for axis in axes]
    common = [_common(axis, matrix) for axis, matrix in zip(axes, codes)]
    members = {unit: _memberships(unit, n, table, events * (1 - background), rng) for unit, n in plan.items()}
    everyone = np.concatenate(list(members.values()))
    coefficients = np.array([p.mortality for p in table]) / (events * TYPICAL)
    died, intercept, auc = draw_outcome(everyone, coefficients, mortality, rng)
    truth = Truth(
        names=tuple(p.name for p in table),
        axes=axes,
        factors=tuple(unit_columns(m) for m in codes),
        memberships=members,
        prevalence=np.array([[p.at[unit] > 0 for p in table] for unit in plan]),
        coefficients=coefficients,
        intercept=intercept,
        bayes_auc=auc,
        background=background,
    )
    mixed = [np.column_stack([matrix, other]) for matrix, other in zip(codes, common)]
    outcomes = np.split(died, np.cumsum(list(plan.values()))[:-1])
    sites = []
    for (unit, n), labels in zip(plan.items(), outcomes):
        noise = rng.gamma(BURDEN_SHAPE, events * background / BURDEN_SHAPE, (n, 1))
        coords, values = draw_events(np.hstack([members[unit], noise]), mixed, rng)
        tensor = SparseTensor(coords, values, (n, *(len(a.labels or ()) for a in axes)), axes)
        sites.append(Site(unit, _only_seen(tensor, rng) if own_vocabulary else tensor, labels=labels))
    sites = _with_people(sites, seed) if people else sites
    return Sites(sites, truth)


def _with_people(sites: Sequence[Site], seed: int) -> list[Site]:
    """From a generator of their own: codes and deaths are the same with and without them."""
    rng = np.random.default_rng([seed, 1])
    return [replace(s, people=_people(s.name == "NICU", np.asarray(s.labels), rng)) for s in sites]


def _people(newborn: bool, died: NDArray[np.generic], rng: np.random.Generator) -> People:
    """Age, sex and follow-up: those who died are older, and die within weeks; the others are seen for up to a year."""
    n, dead = len(died), died == 1
    age = np.zeros(n) if newborn else np.clip(rng.normal(60 + 7 * dead, 15), 18, 95).round()
    sex = np.where(rng.random(n) < 0.44, "F", "M")
    days = np.where(dead, rng.gamma(1.2, 18, n), rng.uniform(20, 365, n))
    return People({"age": age, "sex": sex}, np.minimum(days, 365).round(1), dead)


def _sizes(patients: int, sizes: Mapping[str, int] | None) -> dict[str, int]:
    if sizes is not None:
        faults = [f"unit {u!r} is none of {', '.join(ICU_SHARES)}" for u in sizes if u not in ICU_SHARES]
        faults += [f"unit {u!r}: {n} patients" for u, n in sizes.items() if n < 1]
        if faults or not sizes:
            raise ConfigError("icu_network: sizes are not usable", faults=faults or ["no unit given"])
        return {u: int(n) for u, n in sizes.items()}
    if not isinstance(patients, int | np.integer) or patients < 60:
        raise ConfigError(
            f"icu_network: patients must be a whole number of at least 60 (six units), got {patients!r}",
            hint="ask for at least 60",
        )
    edges = np.round(np.cumsum(list(ICU_SHARES.values())) * patients).astype(int)
    return dict(zip(ICU_SHARES, np.diff(edges, prepend=0).tolist()))


@cache
def _table() -> tuple[_Phenotype, ...]:
    raw = tomllib.loads((files("polyclinic.datasets") / "icu_phenotypes.toml").read_text("utf-8"))
    return tuple(
        _Phenotype(p["name"], p["at"], float(p["mortality"]), {mode: p[mode] for mode in MODES})
        for p in raw["phenotype"]
    )


def _choose(number: int | None) -> tuple[_Phenotype, ...]:
    table = _table()
    if number is None:
        return table
    newborn = tuple(p for p in table if all(share == 0 for unit, share in p.at.items() if unit != "NICU"))
    if not len(newborn) < number <= len(table):
        raise ConfigError(f"icu_network: {number} phenotypes", hint=f"choose {len(newborn) + 1} to {len(table)}")
    return tuple(p for p in table if p not in newborn)[: number - len(newborn)] + newborn


@cache
def _axes() -> tuple[Axis, ...]:
    with (files("polyclinic.datasets") / "icd9cm.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return tuple(
        Axis(
            mode,
            tuple(r["code"] for r in rows if r["axis"] == mode),
            tuple(r["name"] for r in rows if r["axis"] == mode),
            "public",
        )
        for mode in MODES
    )


def _weights(axis: Axis, table: tuple[_Phenotype, ...]) -> Matrix:
    """(codes, phenotypes), columns sum to 1."""
    positions = {code: j for j, code in enumerate(axis.labels or ())}
    out = np.zeros((len(positions), len(table)))
    for r, phenotype in enumerate(table):
        for code, weight in phenotype.codes[axis.name].items():
            out[positions[code], r] = weight
    return np.asarray(out / out.sum(0))


def _common(axis: Axis, planted: Matrix) -> Matrix:
    """How often each code occurs outside every phenotype: comorbidities first, planted codes now and then."""
    spare = np.asarray((planted == 0).all(1))
    weight = np.full(len(spare), 0.3)
    weight[spare] = 1 / np.sqrt(np.arange(1, spare.sum() + 1))
    return np.asarray(weight / weight.sum())


def _memberships(unit: str, n: int, table: tuple[_Phenotype, ...], events: float, rng: np.random.Generator) -> Matrix:
    """(patients, phenotypes) expected events: who carries what, and how heavily; everyone carries something."""
    share = np.array([p.at[unit] for p in table])
    carries = rng.random((n, len(table))) < share
    without_any = np.flatnonzero(~carries.any(1))
    if share.any():
        carries[without_any, rng.choice(len(table), len(without_any), p=share / share.sum())] = True
    burden = rng.gamma(BURDEN_SHAPE, 1 / BURDEN_SHAPE, (n, len(table))) * carries
    # Scaled by the mean over the unit, not by patient: the number of events differs between patients as well.
    return np.asarray(burden * (events / max(burden.sum(1).mean(), 1e-12)))


def _only_seen(tensor: SparseTensor, rng: np.random.Generator) -> SparseTensor:
    """The unit's own vocabulary: the codes it has seen, in an order of its own."""
    for mode in range(1, tensor.ndim):
        axis = tensor.axes[mode]
        present = rng.permutation(np.unique(tensor.codes[mode - 1]).astype(np.int64))
        target = np.full(tensor.shape[mode], -1)
        target[present] = np.arange(len(present))
        tensor = tensor.recode(mode, target, axis.take(present.tolist()), len(present))
    return tensor
