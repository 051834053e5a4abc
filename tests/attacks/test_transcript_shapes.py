"""In a formal study all that the coordinator hears from a hospital is the same for every database, but for the noisy numbers.

The same order runs over several databases of ONE hospital. The totals of the first run are used in the others, so that the public
state is the same: which sum comes next may depend on noisy totals, and on nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.attacks.transcript_rig import EVENT, Records, Row, Transcript, visits

from polyclinic.node.coordinator import site_registry
from polyclinic.node.messages import Done, Status, read_answer
from polyclinic.plugins import plug
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.protocol.public_state import PublicState

pytestmark = [pytest.mark.attack, pytest.mark.nobody, pytest.mark.timeout(900)]

NAMES = ("a", "b", "c", "d")
DRUGS, DIAGNOSES = [f"DR{i}" for i in range(10)], [f"DI{i}" for i in range(8)]
COLUMNS = ("patient_id", "x0", "x1", "class")
Database = list[Row] | str | None


def events() -> Iterator[tuple[str, Database]]:
    """Databases of events of hospital a; a text is the file itself, None: there is no file."""
    real = visits("a", 40)
    yield "real", real
    yield "nobody", real[:1]
    yield (
        "every fault",
        [
            *real,
            ("a0", "a0-9", "not a date", "drug", "DR1"),
            ("a1", "a1-9", "", "diagnosis", "DI1"),
            ("bad", "bad-0", "2024-01-05 08:00:00", "drug", "\x00"),
            ("", "", "2024-01-05 08:00:00", "drug", "DR1"),
        ],
    )
    yield "one patient", [EVENT, *(r for r in real if r[0] == "a3")]
    yield "one kind of event", [EVENT, *(r for r in real if r[3] == "drug")]
    yield "no listed code", [EVENT, *((*r[:4], "ZZ9") for r in real[1:])]
    yield "twice as many", real + [(f"x{r[0]}", f"x{r[1]}", *r[2:]) for r in real[1:]]
    yield "very many events", real + [("many", "many-0", "2024-01-05 08:00:00", "drug", "DR1")] * 3000
    lines = "\n".join(",".join(map(str, r)) for r in real)
    yield "a short line", f"{lines}\na0,a0-0\n"
    yield "a long line", f"{lines}\na0,a0-0,2024-01-05,drug,DR1,more,and more\n"
    yield "no column of codes", "\n".join(",".join(map(str, r[:4])) for r in real)
    yield "no file", None


def features() -> Iterator[tuple[str, Database]]:
    """Databases of features of hospital a."""
    rng = np.random.default_rng(3)
    real: list[Row] = [COLUMNS]
    real += [(f"a{p}", int(rng.integers(2)), int(rng.integers(3)), "ill" if p % 2 else "well") for p in range(80)]
    yield "real", real
    yield "nobody", real[:1]
    yield "every fault", [*real, ("u", 2, 77, "?"), ("v", 1e12, 1, ""), ("w", "x", 1, "ill"), ("a0", "", 1, "ill")]
    yield "one patient", real[:2]
    yield "outside the levels", [*real, ("bad", 2, 77, "ill")]
    yield "above the bound", real + [(f"z{p}", 1, 1, "ill") for p in range(400)]
    yield "a very large value", [*real, ("bad", 1e12, 1, "ill")]
    yield "a text", [*real, ("bad", "x", 1, "ill")]
    yield "an empty cell", [*real, ("bad", "", 1, "ill")]
    yield "a doubled id", [*real, ("a0", 1, 1, "ill")]
    lines = "\n".join(",".join(map(str, r)) for r in real)
    yield "a short line", f"{lines}\nbad,1\n"
    yield "a long line", f"{lines}\nbad,1,1,ill,more\n"
    yield "no file", None


PERSON = ("patient_id", "label", "age", "sex", "days", "died")


def people(site: str) -> list[Row]:
    """What a hospital knows of its patients beside their codes."""
    rng = np.random.default_rng([7, *site.encode()])
    return [PERSON] + [
        (
            f"{site}{p}",
            int(rng.integers(2)),
            int(rng.integers(20, 90)),
            "FM"[p % 2],
            int(rng.integers(1, 700)),
            p % 3 % 2,
        )
        for p in range(40)
    ]


def labels() -> Iterator[tuple[str, Database]]:
    """Databases of outcome, age, sex and follow-up of hospital a; its events stay the same."""
    real = people("a")
    yield "real", real
    yield "nobody", real[:1]
    odd = [
        ("a0", 1, "", "F", 5, 1),
        ("a1", "?", 44, "X", -3, 7),
        ("a2", 1, 1e12, "M", 1e300, 0),
        ("", 0, 50, "F", 9, 1),
    ]
    yield "every fault", [*real[4:], *odd, real[4], PERSON]
    yield "one patient", real[:2]
    yield "outside the bands", [real[0], *((r[0], r[1], 300, *r[3:]) for r in real[1:])]
    yield "a very large value", [*real[:-1], (*real[-1][:2], 1e12, "F", 1e12, 1)]
    yield "a text", [*real[:-1], (*real[-1][:2], "old", "F", "long", "no")]
    yield "empty cells", [*real[:-1], (real[-1][0], "", "", "", "", "")]
    yield "a doubled id", [*real, (real[1][0], 1, 20, "M", 3, 1)]
    yield "of nobody here", [real[0], *((f"z{r[0]}", *r[1:]) for r in real[1:])]
    yield "no outcome", [r[:1] + r[2:] for r in map(tuple, real)]
    lines = "\n".join(",".join(map(str, r)) for r in real)
    yield "a short line", f"{lines}\na0,1\n"
    yield "a long line", f"{lines}\na0,1,30,F,5,1,more\n"
    yield "no file", None


@dataclass(frozen=True)
class Case:
    """A private method or analysis, as a study file names it."""

    method: str
    databases: Callable[[], Iterator[tuple[str, Database]]] = features
    tail: str = ""
    head: str = ""
    data: str = '[features]\ncolumns = ["x0", "x1"]\n'


DPEM = 'name = "dpem"\nplanning_size = 1000\nrank = 2\nrounds = 2\naggregation = "{}"'
PEOPLE = """[people]
outcome = "label"
age = [0, 50, 120]
sex = true
survival = {time = "days", event = "died"}
[evaluate]
what = ["carriers", "people", "outcome", "survival", "completion", "replicate"]
planning_size = 100000
"""
LEVELS = 'kinds = {x0 = ["0", "1"], x1 = ["0", "1", "2"]}'
CASES = {
    "dpem masked": Case(DPEM.format("masked"), events),
    "dpem plain": Case(DPEM.format("plain"), events),
    "dpem subspace": Case(DPEM.format("subspace"), events),
    "dpem findings": Case(DPEM.format("masked"), events, '[evaluate]\nwhat = ["carriers"]\n', "replicate = 1\n"),
    "all findings": Case(DPEM.format("masked"), events, PEOPLE, "replicate = 1\n"),
    "all findings, people": Case(DPEM.format("masked"), labels, PEOPLE, "replicate = 1\n"),
    "latent classes": Case(
        f'name = "latentclass"\nn_components = 2\nmax_patients = 200\naggregation = "masked"\n{LEVELS}'
    ),
    "mixture": Case('name = "gaussianmixture"\nn_components = 2\nradius = 3.0\naggregation = "masked"'),
    "pca": Case('name = "pca"\nradius = 3.0\naggregation = "masked"'),
    "standardizer": Case('name = "standardizer"\nradius = 3.0\naggregation = "masked"'),
    "similarity": Case(
        'name = "privatesimilarity"\nradius = 3.0\nrank = 1\nrounds = 2\npatients = 4000\nclasses = ["ill", "well"]\n'
        'aggregation = "masked"',
        data='[features]\ncolumns = ["x0", "x1"]\nlabel = "class"\n',
    ),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Signs of life come faster than over a network; methods that no study names yet are plugged in."""
    from polyclinic.methods.moments.standardizing import FederatedPCA, Standardizer
    from polyclinic.methods.similarity.private import PrivateUnPSL

    monkeypatch.setattr(site_registry, "EVERY", 0.1)
    with ExitStack() as stack:
        for name, kind in (("pca", FederatedPCA), ("standardizer", Standardizer), ("privatesimilarity", PrivateUnPSL)):
            stack.enter_context(plug("polyclinic.methods", name, kind))
        yield


def world_of(root: Path, case: Case, database: Database) -> Records:
    """Four hospitals, of which the first has this database."""
    root.mkdir()
    name = case.databases.__name__
    if name == "features":
        tables: dict[str, dict[str, Any]] = {n: {name: next(features())[1]} for n in NAMES}
    else:
        tables = {n: {"events": visits(n, 40)} | ({"labels": people(n)} if case.tail == PEOPLE else {}) for n in NAMES}
    if isinstance(database, list):
        tables["a"] |= {name: database}
    world = Records(root, tables, policy="max_epsilon_total = 9.0\nmin_patients = 20")
    if isinstance(database, str):
        (root / "a" / f"{name}.csv").write_text(database)
    elif database is None:
        os.unlink(root / "a" / f"{name}.csv")
    return world


Totals = dict[tuple[int, str], Mapping[str, np.ndarray[Any, Any]]]


def heard(world: Records, case: Case, totals: Totals) -> tuple[list[Any], list[Any]]:
    """All that the coordinator hears, but for the numbers themselves, and the lines of a's ledger; ``totals`` are used or filled."""
    data = case.data if case.databases is features else world.tensor("s", DRUGS, DIAGNOSES)
    order = world.order(
        "q", case.method, f"deadline = 20\n{case.head}", data=data, tail=f"{case.tail}[privacy]\nepsilon = 0.5\n"
    )
    study, said, fold = Transcript(world, order), [], PublicState.fold

    def listen(site: str, out: bytes) -> bytes:
        answer = read_answer(out)
        row: tuple[Any, ...] = (site, type(answer).__name__, len(out))
        if isinstance(answer, Status):
            row = (*row, answer.stage, answer.why, repr(answer.setting), answer.noise)
        if isinstance(answer, Done):
            row = (*row, answer.book[64:].decode().replace(order.digest, "ORDER"))
        said.append(row)
        return out

    def same_totals(self: PublicState, step: Any, total: Any) -> Any:
        return fold(self, step, replace(total, arrays=totals.setdefault((step.round, step.name), total.arrays)))

    study.tap = listen
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PublicState, "fold", same_totals)
        study.run()
    book = ledger_of(world.sites["a"].node)
    public = [replace(c, run="", bytes="", release="") for c in book.charges()]
    return said, [e.kind for e in book.entries] + [asdict(c) for c in public]


def compare(root: Path, case: Case, least: int, most: int) -> None:
    totals: Totals = {}
    kept: tuple[list[Any], list[Any]] | None = None
    names = []
    for name, database in list(case.databases())[:most]:
        world = world_of(root / name.replace(" ", "-"), case, database)
        transcript = heard(world, case, totals)
        full = NAMES if name == "real" else NAMES[1:]  # what is compared with an empty hospital must not be one
        assert not [n for n in full if "everybody: " in world.sites[n].events.read_text()], name
        kept = kept or transcript
        names.append(name)
        assert transcript[0] == kept[0], f"{name}: the coordinator can tell it from {names[0]!r}"
        assert transcript[1] == kept[1], f"{name}: other lines in the ledger than of {names[0]!r}"
    assert len(names) >= least


IN_OTHERS = ("dpem masked", "dpem findings")  # "all findings" takes the same sums, and more


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.slow] * (c in IN_OTHERS)) for c in CASES])
def test_transcript_of_a_formal_study_is_the_same_for_records_nobody_and_every_fault(case: str, tmp_path: Path) -> None:
    compare(tmp_path, CASES[case], 3, 3)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_transcript_of_a_formal_study_is_the_same_for_ten_databases(case: str, tmp_path: Path) -> None:
    compare(tmp_path, CASES[case], 12, 20)
