"""What a coordinator that chooses the orders must not obtain: from words and sizes of a formal study, from sums of an exact one.

Each attack succeeded once, on 103ad43.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.attacks.transcript_rig import EVENT, Records, Row, Transcript, arrays, visit, visits
from tests.ingested import fast_pulse

import polyclinic as pc
from polyclinic.errors import MessageRefused
from polyclinic.node.admission import membership
from polyclinic.node.flare.worker import Worker
from polyclinic.node.messages import Busy, OutOfDate
from polyclinic.node.signed_study import read_order
from polyclinic.node.site.worker import SiteStudy

__all__ = ["fast_pulse"]
pytestmark = pytest.mark.attack

FOUR = ("a", "b", "c", "d")
THREE = ("a", "b", "c")
DRUGS, DIAGNOSES = [f"DR{i}" for i in range(10)], [f"DI{i}" for i in range(8)]
DPEM = 'name = "dpem"\nplanning_size = 1000\nrank = 2\nrounds = 2\naggregation = "masked"'
SUMALS = 'name = "sumals"\nrank = 1\nrounds = 1\naggregation = "{}"'
LOCALTF = 'name = "localtf"\nrank = 1\nrounds = 1\nzeros = "missing"\nsaturation = 13\naggregation = "masked"'
LATENT = 'name = "latentclass"\nn_components = 2\naggregation = "masked"\n'
FIRST_HIV = '[cohort]\nfirst = {diagnosis = ["DIHIV"]}\n'
SECRET_DAY = date(2023, 5, 17)


def one_with_hiv(root: Path, sites: tuple[str, ...], **rules: str) -> Records:
    """Hospitals of which only the first one has a patient with DIHIV, seen on one day."""
    events = {n: visits(n, 40) for n in sites}
    events["a"] += visit("a7", str(SECRET_DAY), "DR1", "DIHIV")
    return Records(root, {n: {"events": rows} for n, rows in events.items()}, policy="max_epsilon_total = 1.0", **rules)


def words_of_days(world: Records, start: date, end: date) -> dict[str, tuple[str, str | None]]:
    """What the sites say to a formal study of patients who had DIHIV first in these days."""
    data = world.tensor("s", DRUGS, [*DIAGNOSES, "DIHIV"])
    tail = f"{FIRST_HIV}[time]\nstart = {start}\nend = {end}\n[privacy]\nepsilon = 0.1\n"
    return Transcript(world, world.order(f"from-{start}-to-{end}", DPEM, data=data, tail=tail)).words()


@pytest.mark.nobody
def test_transcript_of_a_formal_study_does_not_tell_when_a_patient_was_seen(tmp_path: Path) -> None:
    world = one_with_hiv(tmp_path, THREE)
    low, high = SECRET_DAY - timedelta(5), SECRET_DAY + timedelta(2)
    heard = [words_of_days(world, low, high)]
    while low < high:
        middle = low + (high - low) // 2
        heard.append(words_of_days(world, low, middle))
        low, high = (low, middle) if heard[-1]["a"] == heard[0]["a"] else (middle + timedelta(1), high)
    assert low != SECRET_DAY, (low, heard)
    assert len({word for words in heard for word in words.values()}) == 1


@pytest.mark.nobody
def test_transcript_after_consent_does_not_tell_who_has_a_patient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = one_with_hiv(tmp_path, THREE, rules="")
    asked, wait = [], SiteStudy.wait

    def accept(study: SiteStudy, reasons: list[str]) -> None:
        wait(study, reasons)
        asked.append(study.me)
        membership.decide(world.sites[study.me], study.order.id, accept=True)

    monkeypatch.setattr(SiteStudy, "wait", accept)
    words = words_of_days(world, date(2023, 1, 1), date(2023, 12, 31))
    if sorted(asked) != list(THREE):
        pytest.fail("the owners were not asked")
    assert len(set(words.values())) == 1, words


def test_transcript_of_a_formal_study_does_not_tell_of_a_value_outside_the_levels(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    tables: dict[str, dict[str, list[Row]]] = {}
    for n in FOUR:
        rows = [(f"{n}{p}", *rng.integers(0, 2, 2).tolist()) for p in range(50)]
        tables[n] = {"features": [("patient_id", "x", "hiv"), *rows]}
    tables["c"]["features"][18] = ("c17", 1, 2)
    world = Records(tmp_path, tables, policy="max_epsilon_total = 1.0\nmin_patients = 20")
    method = LATENT + 'kinds = {x = ["0", "1"], hiv = ["0", "1"]}'
    data, tail = '[features]\ncolumns = ["x", "hiv"]', "[privacy]\nepsilon = 0.01"
    study = Transcript(world, world.order("levels", method, "deadline = 5\n", data=data, tail=tail))
    outcome = study.outcome()
    assert len(set(study.words().values())) == 1, study.words()
    assert outcome is not None


def test_transcript_of_a_formal_study_does_not_tell_a_statistic_of_one_hospital(tmp_path: Path) -> None:
    tables = {}
    for n, patients in zip(FOUR, (23, 21, 47, 25)):
        rng = np.random.default_rng([5, *n.encode()])
        rows = [(f"{n}{p}", int(rng.integers(2)), int(rng.integers(3))) for p in range(patients)]
        tables[n] = {"features": [("patient_id", "x", "y"), *rows]}
    world = Records(tmp_path, tables, policy="max_epsilon_total = 1.0")
    low, high, heard = 24, 31, {}
    while low < high:  # the smallest bound at which the hospital does not decline
        middle = (low + high) // 2
        method = f'{LATENT}kinds = {{x = ["0", "1"], y = ["0", "1", "2"]}}\nmax_patients = {middle}'
        data, tail = '[features]\ncolumns = ["x", "y"]', "[privacy]\nepsilon = 1e-6"
        study = Transcript(world, world.order(f"bound-{middle}", method, "deadline = 5\n", data=data, tail=tail))
        study.outcome()
        heard[middle] = study.words()["c"]
        low, high = (low, middle) if heard[middle][1] is None else (middle + 1, high)
    assert len(set(heard.values())) == 1, (low, heard)


def test_transcript_of_a_study_with_a_vast_epsilon_does_not_tell_a_patient(tmp_path: Path) -> None:
    events = {n: visits(n, 40) + visit(f"{n}7", str(SECRET_DAY), "DR1", "DI2") for n in FOUR}
    events["a"] += visit("a7", str(SECRET_DAY), "DRART", "DIHIV")
    world = Records(tmp_path, {n: {"events": e} for n, e in events.items()}, policy="min_feeders = 2")
    data = world.tensor("s", [*DRUGS, "DRART"], [*DIAGNOSES, "DIHIV"])
    tail = f"[time]\nstart = {SECRET_DAY}\nend = {SECRET_DAY}\n[privacy]\nepsilon = 1e9\n"
    study = Transcript(world, world.order("vast", DPEM, data=data, tail=tail))
    study.outcome()
    codes = [*DRUGS, "DRART", *DIAGNOSES, "DIHIV"]
    sums = study.totals[0]["sums"][:, 0] if study.totals else np.zeros(len(codes))
    assert [c for c, s in zip(codes, sums) if abs(s) > 0.1] != ["DR1", "DRART", "DI2", "DIHIV"], sums


def test_transcript_of_two_exact_studies_does_not_give_away_one_hospital(tmp_path: Path) -> None:
    events: dict[str, list[Row]] = {n: [EVENT] for n in FOUR}
    for n, rows in events.items():
        rng = np.random.default_rng([5, *n.encode()])
        for p in range(60):
            codes = ["COMMON", *(["PREG"] if rng.random() < 0.2 else []), *(["HIV"] if rng.random() < 0.12 else [])]
            rows += visit(f"{n}{p}", "2024-01-05", "ANY", *codes)
    truth = {code: sum(row[4] == code for row in events["d"]) for code in ("HIV", "PREG")}
    world = Records(tmp_path, {n: {"events": e} for n, e in events.items()}, policy="")

    def counts(name: str, codes: list[str], sites: tuple[str, ...]) -> dict[str, float] | None:
        data = world.tensor(name, ["ANY"], codes, "minimum_patients = 2")
        order = world.among(world.order(name, SUMALS.format("masked"), "deadline = 5\n", data=data), sites)
        outcome = Transcript(world, order).outcome()
        return None if outcome is None else dict(zip(sorted(codes), outcome.public.support[1].tolist()))

    every = counts("every", ["HIV", "PREG"], FOUR)
    fewer = counts("fewer", ["COMMON", "HIV", "PREG"], THREE)
    if every is None:
        pytest.fail("the first study was refused")
    assert fewer is None or {code: every[code] - fewer[code] for code in truth} != truth, (every, fewer)


@pytest.mark.parametrize(
    ("method", "privacy"),
    [
        (LOCALTF, 'level = "entry"\nepsilon = 20\nclip = 0.1'),
        (DPEM, "epsilon = 60.0"),
    ],
    ids=["entry level", "above 20"],
)
def test_transcript_of_two_studies_with_noise_that_hides_no_patient_does_not_give_away_one_hospital(
    tmp_path: Path, method: str, privacy: str
) -> None:
    world = Records(
        tmp_path, {n: {"events": visits(n, 40)} for n in FOUR}, policy="max_epsilon_total = 200\nmax_exact = 9"
    )
    data, tail = world.tensor("s", DRUGS, DIAGNOSES), f"[privacy]\n{privacy}\n"

    def study(name: str, sites: tuple[str, ...]) -> Transcript:
        order = world.order(name, method, "deadline = 5\n", data=data, tail=tail)
        return Transcript(world, world.among(order, sites))

    assert study("every", FOUR).outcome() is not None
    fewer = study("fewer", THREE)
    assert fewer.outcome() is None, "the difference of the two is the fourth hospital, with noise for one entry only"
    assert fewer.totals == []
    assert set(fewer.words().values()) == {("refused", "overlap")}


def test_transcript_of_an_exact_study_does_not_show_one_hospitals_part(tmp_path: Path) -> None:
    events = {n: visits(n, 40) for n in THREE}
    events["b"] += visit("b7", "2024-01-05", "DR1", "DIHIV")
    policy = "min_feeders = 2\nmin_patients = 11"
    world = Records(tmp_path, {n: {"events": e} for n, e in events.items()}, policy=policy)
    data = world.tensor("s", DRUGS, [*DIAGNOSES, "DIHIV"], "minimum_patients = 2")
    study = Transcript(world, world.order("plain", SUMALS.format("plain"), data=data))
    study.outcome()
    truth = [len({row[0] for row in events["b"] if row[4] == code}) for code in (*DIAGNOSES, "DIHIV")]
    parts = [a.tolist() for site, message in study.messages if site == "b" for a in arrays(message)]
    assert truth not in parts, parts[:2]


def test_transcript_of_formal_studies_costs_no_more_than_one_where_the_owner_sets_no_limit(tmp_path: Path) -> None:
    world = Records(tmp_path, {n: {"events": visits(n, 20)} for n in THREE}, policy="")
    data, words = world.tensor("s", DRUGS, DIAGNOSES), []
    for name in ("one", "two"):
        order = world.order(name, DPEM, data=data, tail="[privacy]\nepsilon = 15.0\n")
        words.append({word for word, _ in Transcript(world, order).words().values()})
    assert words == [{"ready"}, {"refused"}]


PEOPLE = """[people]
outcome = "label"
age = {}
sex = true
[evaluate]
what = ["carriers", "people"]
"""


def aged(root: Path, policy: str = "") -> Records:
    """Three hospitals under the default rules for findings; one patient is 37.25 years old and has HIV."""
    tables: dict[str, dict[str, list[Row]]] = {}
    for n in THREE:
        rng = np.random.default_rng([5, *n.encode()])
        events: list[Row] = [EVENT]
        labels: list[Row] = [("patient_id", "label", "age", "sex")]
        for p in range(60):
            target, k = (n, p) == ("a", 7), int(rng.integers(2))
            ill = rng.random() < 0.12 or target
            for i in range(3):
                events += visit(f"{n}{p}", "2024-01-05", f"P{k}R{i}", f"P{k}D{i}")
            if ill:
                events += visit(f"{n}{p}", "2024-01-05", "ART", "HIV1", "HIV2")
            age = 37.25 if target else float(rng.integers(20, 90))
            labels.append((f"{n}{p}", int(rng.random() < 0.3), age, str(rng.choice(["F", "M"]))))
        tables[n] = {"events": events, "labels": labels}
    return Records(root, tables, policy=policy)


def findings(world: Records, name: str, people: str, *, said: bool = True) -> Transcript:
    """An exact study with tables of its carriers. It may leave out to say so: [people] is evaluated by default."""
    drugs = ["ART", *(f"P{k}R{i}" for k in (0, 1) for i in range(3))]
    diagnoses = ["HIV1", "HIV2", *(f"P{k}D{i}" for k in (0, 1) for i in range(3))]
    method = 'name = "sumals"\nrank = 3\nrounds = 8\naggregation = "masked"'
    data = world.tensor("s", drugs, diagnoses)
    order = world.order(name, method, "replicate = 0\ndeadline = 20\n", data=data, tail=people)
    silent = {section: rule for section, rule in order.study.items() if section != "evaluate"}
    return Transcript(world, order if said else world.forged(order, study=silent))


@pytest.mark.parametrize("said", [True, False])
def test_transcript_of_exact_findings_does_not_tell_a_patients_phenotypes(tmp_path: Path, said: bool) -> None:
    study = findings(aged(tmp_path), "narrow", PEOPLE.format([20, 37, 37.2, 37.3, 90]), said=said)
    assert set(study.words().values()) == {("refused", "declined")}


def test_transcript_of_exact_findings_does_not_tell_the_phenotypes_of_a_patient_who_is_named(tmp_path: Path) -> None:
    people = '[people]\ncolumns = {patient_id = ["a7"]}\n[evaluate]\nwhat = ["carriers", "people"]\n'
    outcome = findings(aged(tmp_path), "named", people).outcome()
    if outcome is None:
        return  # refused
    by_id = outcome.public.inner.second.q1.counts[0]
    assert not by_id[:, 0].any(), by_id


def test_transcript_of_exact_findings_does_not_tell_the_phenotypes_of_who_has_a_rare_outcome(tmp_path: Path) -> None:
    people = '[people]\noutcome = "positive"\n[evaluate]\nwhat = ["carriers", "outcome"]\n'
    world = aged(tmp_path)
    for site in THREE:
        rows = [f"{site}{p},{int((site, p) == ('a', 7))}" for p in range(60)]
        (tmp_path / site / "labels.csv").write_text("\n".join(["patient_id,positive", *rows]))
        node = world.sites[site].node_path
        node.write_text(node.read_text().replace("[policy]", 'columns = {label = "positive"}\n[policy]'))
        world.sites[site] = type(world.sites[site]).of(node)
    study = findings(world, "rare", people)
    assert {stage for stage, _ in study.words().values()} == {"ready"}
    labels = [s.context.site.labels for s in study.sites.values()]
    assert not sum(np.nansum(of) for of in labels if of is not None), labels


def test_transcript_of_exact_findings_does_not_tell_the_phenotypes_of_one_day(tmp_path: Path) -> None:
    curve = 'survival = {time = "age", event = "label", grid = "1d", until = "100d"}'
    people = f'[people]\noutcome = "label"\n{curve}\n[evaluate]\nwhat = ["carriers", "survival"]\n'
    outcome = findings(aged(tmp_path), "day", people).outcome()
    if outcome is None:
        return  # refused
    leaving = outcome.public.inner.second.q1.table[-1, 0].sum(-1)
    assert not ((leaving > 0) & (leaving < 11)).any(), leaving


def test_transcript_of_exact_findings_ends_after_the_owners_number_of_orders(tmp_path: Path) -> None:
    world = aged(tmp_path, "max_exact = 1\ncuts = [20, 30, 31, 90]")
    ran = [findings(world, f"again-{band}", PEOPLE.format([20, band, 90])).outcome() is not None for band in (30, 31)]
    assert ran == [True, False]


def test_transcript_of_a_study_has_no_act_that_an_owner_did_not_name(tmp_path: Path) -> None:
    world = aged(tmp_path, 'methods = ["sumals"]')
    people = '[people]\noutcome = "label"\n'
    words = {said: findings(world, f"said-{said}".lower(), people, said=said).words() for said in (True, False)}
    assert {word for of in words.values() for word in of.values()} == {("refused", "declined")}


def published(events: int) -> Any:
    """The outcome's table as it is published, of a phenotype with so few events; everybody has one of two phenotypes."""
    axes = tuple(
        pc.Axis(kind, tuple(f"{kind}{i}" for i in range(4)), vocabulary="public") for kind in ("drug", "diagnosis")
    )
    sites = []
    for i, name in enumerate(THREE):
        ill = [(total // 3) + (i < total % 3) for total in (64 - events, events)]
        cells: list[tuple[int, int, int]] = []
        labels: list[float] = []
        for phenotype, patients in enumerate((100, 14)):
            for p in range(patients):
                cells += [(len(labels), 2 * phenotype + j, 2 * phenotype + k) for j in (0, 1) for k in (0, 1)]
                labels.append(float(p < ill[phenotype]))
        shape = (len(labels), 4, 4)
        tensor = pc.SparseTensor(cells, np.full(len(cells), 2.0), shape, axes=(pc.Axis("patient"), *axes))
        sites.append(pc.Site(name, tensor, None, np.array(labels)))
    model = pc.SumALS(rank=2, rounds=5, seed=1).fit(sites)
    return pc.evaluate(model, sites, what=["carriers", "outcome"], adjust=[]).outcome


def test_transcript_of_a_published_table_does_not_give_a_hidden_count_by_subtraction() -> None:
    table = published(4)
    shown = [row[table.effects.columns.index("events")] for row in table.effects.rows]
    if None not in shown:
        pytest.fail("the small count is not hidden")
    assert shown.count(None) != 1 or table.events - sum(n for n in shown if n is not None) != 4, table.effects.rows


def test_transcript_of_a_published_table_does_not_give_a_hidden_count_by_its_ratio() -> None:
    table = published(4).effects
    hidden = [row[table.columns.index("events")] for row in table.rows].index(None)
    ratio = table.columns.index("odds_ratio")
    printed = table.rows[hidden][ratio]
    candidates = [k for k in range(1, 11) if published(k).effects.rows[hidden][ratio] == printed]
    assert candidates != [4], printed


def test_transcript_of_a_published_table_does_not_give_a_hidden_count_by_its_margins() -> None:
    """42 patients have the phenotype. If 36 of them are shown to have the outcome, 6 have not."""
    table = published(36).effects
    shown = [row[table.columns.index("events")] for row in table.rows]
    assert 36 not in shown, shown


def test_transcript_of_a_formal_study_comes_at_public_times_that_no_order_shortens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Records(tmp_path, {n: {"events": visits(n, 20)} for n in THREE}, policy="max_epsilon_total = 1.0")
    order = world.order("pace", DPEM, data=world.tensor("s", DRUGS, DIAGNOSES), tail="[privacy]\nepsilon = 0.1\n")
    with pytest.raises(MessageRefused):
        read_order(
            world.forged(order, study={**order.study, "study": {**order.study["study"], "pace": "fast"}}).encode(),
            world.key.public,
        )
    slept: list[float] = []
    meanwhile: list[Callable[[], object]] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        for act in meanwhile:
            act()

    clock = SimpleNamespace(monotonic=lambda: 7.0, sleep=sleep)
    monkeypatch.setattr("polyclinic.node.admission.admission.time", clock)
    monkeypatch.setattr("polyclinic.node.flare.worker.time", clock)
    worker = Worker(order, world.sites["a"], lambda to, data: None)
    worker.loaded.result(120)
    assert (order.pace, order.reading, slept, worker.study.stage) == (0.0, 0.0, [60.0], "ready")
    meanwhile.append(lambda: worker._tasks["quick"].result(120))
    assert worker._run("quick", lambda: OutOfDate(7)) == OutOfDate(7)
    meanwhile.clear()
    finished = Event()

    def slow() -> OutOfDate:
        finished.wait(120)
        return OutOfDate(8)

    assert (worker._run("slow", slow), slept) == (Busy(), [60.0, 5.0, 5.0])
    finished.set()
