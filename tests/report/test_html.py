"""The report is one file, escapes what it shows, and never shows a figure of accuracy without its guarantee."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.config import Study
from polyclinic.errors import ConfigError
from polyclinic.report.contents import RunContents
from polyclinic.report.html import render, write_report
from polyclinic.studies.publish import publish
from polyclinic.studies.run_folder import Run, RunFolder

HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(2)'>",
    "שלום \u202e abc",
    "a & b; 'c'",
    "</style><b>",
)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data


@cache
def _parsed(text: str) -> _Page:
    page = _Page()
    page.feed(text)
    return page


@cache
def _page_of(folder: Path) -> str:
    """The page of a run that no test changes, drawn once."""
    return render(RunContents.read(RunFolder(folder)))


def test_one_file_that_loads_nothing(plain_run: RunFolder) -> None:
    path = write_report(plain_run)
    text = path.read_text(encoding="utf-8")
    page = _parsed(text)
    assert path == plain_run.report
    assert not [t for t, a in page.tags if t in ("link", "iframe", "object", "embed", "img")]
    assert not [a for _, a in page.tags if any(k in a for k in ("src", "srcset", "data-src"))]
    assert not re.search(r"url\((?!#)", text)
    links = [a["href"] for t, a in page.tags if t == "a" and a.get("href")]
    assert all(x and x.startswith("#") for x in links)
    assert not re.search(r"https?://", text)


def test_parameters_are_words_and_privacy_never_a_bare_epsilon(formal_run: RunFolder, plain_run: RunFolder) -> None:
    from polyclinic.report.tables import tables

    for folder in (formal_run, plain_run):
        run = RunContents.read(folder)
        rows = {r["parameter"]: r["value"] for r in tables(run)["parameters"]}
        assert rows.keys() == run.outcome["parameters"].keys()
        assert not [v for v in rows.values() if re.search(r"[{}\[\]']|None|True|False", v)]
        assert rows["nonnegative"] == "true"
    words = {r["parameter"]: r["value"] for r in tables(RunContents.read(formal_run))["parameters"]}["privacy"]
    assert "patient-level, epsilon 8 at delta 1e-05 (one patient added or removed)" in words
    assert words.endswith("Guarantee reached: formal")
    assert words in _parsed(_page_of(formal_run.path)).text


def test_every_odds_ratio_is_the_same_adjusted_one(plain_run: RunFolder) -> None:
    run = RunContents.read(plain_run)
    assert run.effects
    page = _page_of(plain_run.path)
    assert "per sd" not in page and "association.json" not in page
    for e in run.effects:
        if e["odds_ratio"] is not None:
            interval = f"{e['odds_ratio']:.2f} ({e['low']:.2f}\N{EN DASH}{e['high']:.2f})"
            assert page.count(interval) >= 2, "the table of all phenotypes, and its card"
    assert 'id="panel-outcome"' not in page


def test_numbers_of_rounds_say_what_they_count(tmp_path: Path) -> None:
    from polyclinic.report.spending import spending
    from polyclinic.report.tables import tables
    from polyclinic.studies.registry import make
    from polyclinic.studies.simulate import run_study

    study = Study.parse(
        {
            "study": {"name": "icu", "seed": 1},
            "data": {"dataset": "icu_network", "patients": 150},
            "method": {"name": "sumals", "rank": 3, "rounds": 4, "aggregation": "plain"},
        }
    )
    folder = RunFolder.create(tmp_path / "run")
    run_study(study, make(study), folder)
    run = RunContents.read(folder)
    learned, told = run.metrics["rounds"], tables(run, (), spending(run))
    parts = {r["round"]: r["part"] for r in told["rounds"]}
    booked = set(told["ledger"]["round"])
    assert min(booked) == 0 and max(booked) > learned  # three numberings in one report
    assert [n for n, p in parts.items() if p == "learning"] == list(range(1, learned + 1))
    assert all(p == "after the fit" for n, p in parts.items() if n > learned)
    seconds = told["rounds"]["seconds since the start"]
    assert seconds == sorted(seconds)
    text = _parsed(render(run)).text
    last = max(*booked, *parts)
    assert f"after {learned} of at most" in text or f"The model trained for {learned} rounds." in text
    assert f"Round 0 is set-up. Rounds {learned + 1} to {last} are evaluation" in text


def test_an_outcome_that_was_asked_for_and_is_not_shown_has_a_reason(
    plain_run: RunFolder, formal_run: RunFolder
) -> None:
    """Also where the method learned no phenotypes, or the budget covers no outcome."""

    def page(run: RunContents, *, asked: bool) -> str:
        study = {**run.study["study"], "labels": {"outcome": "mortality", "days": 30} if asked else None}
        return _parsed(render(replace(run, study={**run.study, "study": study}))).text

    plain = RunContents.read(plain_run)
    without = replace(plain, model=None, findings={}, presence={})  # what a run of a method without a model holds
    assert without.kind == "other"
    said = "The outcome that the study names is not shown: "
    assert f"{said}LocalTF learned a model" in page(without, asked=True)
    assert said not in page(without, asked=False)
    formal = RunContents.read(formal_run)
    assert f"{said}the privacy budget covers no analysis of an outcome" in page(formal, asked=True)
    assert said not in page(formal, asked=False)
    assert said not in page(plain, asked=True)  # it is shown


def test_the_page_carries_a_policy_that_allows_only_its_own_script(plain_run: RunFolder) -> None:
    import base64
    import hashlib

    text = _page_of(plain_run.path)
    script = re.search(r"<script>(.*?)</script>", text, re.S)
    policy = next(a["content"] for t, a in _parsed(text).tags if a.get("http-equiv") == "Content-Security-Policy")
    assert script is not None and policy is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy and "default-src 'none'" in policy
    assert not re.search(r'\sstyle="|\son[a-z]+="', text)


def test_names_of_codes_are_text_whatever_they_contain(
    plain_run: RunFolder, copied: Callable[[RunFolder], RunFolder]
) -> None:
    run = copied(plain_run)
    model = run.read_model()
    assert isinstance(model, pc.Phenotypes)
    axes = []
    for axis, factor in zip(model.axes, model.factors):
        named = tuple(f"{HOSTILE[i % len(HOSTILE)]} {i}" for i in range(len(factor)))
        axes.append(replace(axis, labels=tuple(f"<u>{i}" for i in range(len(factor))), names=named))
    replace(model, axes=tuple(axes)).save(run.model())
    study = json.loads(run.study.read_text())
    study["study"]["study"]["description"] = HOSTILE[0] + HOSTILE[1]
    run.study.write_text(json.dumps(study))
    text = render(RunContents.read(run))
    page = _parsed(text)
    assert [t for t, _ in page.tags].count("script") == 1
    assert not [t for t, _ in page.tags if t in ("img", "u")]
    assert not [a for _, a in page.tags if "onerror" in a]
    for hostile in HOSTILE:
        assert hostile in page.text or any(hostile in (v or "") for _, a in page.tags for v in a.values())
    assert HOSTILE[0] in page.text


def test_a_formal_run_shows_its_guarantee_and_nothing_unpaid(
    formal_run: RunFolder, copied: Callable[[RunFolder], RunFolder]
) -> None:
    run = RunContents.read(formal_run)
    assert run.formal and not run.presence
    page = _page_of(formal_run.path)
    text = _parsed(page).text
    assert "Only what the privacy budget covers is shown: the model." in text
    assert "formal, patient-level: ε\u00a0=\u00a08 at δ\u00a0=\u00a01e-05" in text
    assert not re.search(r"ε\s*=?\s*[\d.]+\s*</td>", page), "an epsilon without its delta"
    assert "odds ratio" not in text.lower()
    # what the simulation knows but nobody paid for has no influence on the page at all
    other = copied(formal_run)
    metrics = json.loads(other.metrics.read_text())
    assert metrics["simulation_only"]["fit"] is not None and metrics["fit"] is None
    other.write_json(other.metrics, {**metrics, "simulation_only": dict.fromkeys(metrics["simulation_only"], 0.123)})
    for name in ("presence.json", "neighbours.json"):
        (other.path / name).write_text('{"sites": {"MICU": 3}, "events": 3, "figures": {}}')
    for file in (other.path / "sites").glob("*/memberships.npz"):
        file.unlink()
    assert render(RunContents.read(other)) == page


def test_every_tab_with_an_accuracy_figure_carries_the_guarantee(plain_run: RunFolder) -> None:
    text = _page_of(plain_run.path)
    for panel in ("summary", "model", "maps", "findings", "course"):
        part = re.search(rf'id="panel-{panel}".*?</section>', text, re.S)
        assert part is not None and 'class="badge none"' in part[0], panel


def test_a_heuristic_run_warns(plain_run: RunFolder, copied: Callable[[RunFolder], RunFolder]) -> None:
    run = copied(plain_run)
    value = json.loads((run.path / "outcome.json").read_text())
    value["privacy"] |= {"guarantee": "heuristic", "epsilon": 1.2, "delta": 1e-4, "adjacency": "entry"}
    (run.path / "outcome.json").write_text(json.dumps(value))
    text = render(RunContents.read(run))
    assert text.count("is not proven") > 5
    assert "Do not quote the epsilon" in text
    first = text[text.index('class="answer"') : text.index('<svg class="chart wide')]
    assert "heuristic, entry-level" in first, "next to the answer"


def test_an_exact_count_never_stands_next_to_a_noisy_one(
    plain_run: RunFolder, copied: Callable[[RunFolder], RunFolder]
) -> None:
    """Under [privacy], formal or heuristic, the page does not depend on exact counts at all."""
    run = copied(plain_run)
    study = json.loads(run.study.read_text())
    study["study"]["privacy"] = {"epsilon": 1.0, "delta": 1e-6, "level": "patient"}
    run.study.write_text(json.dumps(study))
    page = render(RunContents.read(run))
    counts = json.loads((run.path / "presence.json").read_text())
    (run.path / "presence.json").write_text(json.dumps({**counts, "totals": [12345] * 8, "sites": {"MICU": 12345}}))
    assert render(RunContents.read(run)) == page and "12,345" not in page


def test_an_epsilon_never_stands_alone(formal_run: RunFolder) -> None:
    text = _parsed(_page_of(formal_run.path)).text
    for found in re.finditer(r"(epsilon|ε)\s*=?\s*\d", text):
        around = text[max(0, found.start() - 160) : found.end() + 160]
        assert re.search(r"delta|δ", around) and "patient" in around, around


def test_fifty_phenotypes_and_six_sites_stay_small(tmp_path: Path) -> None:
    sites = pc.align(pc.datasets.icu_network(patients=500, seed=0))
    model = pc.LocalTF(rank=50, rounds=2, seed=0).fit(sites)
    model.findings_ = pc.evaluate(model, sites, what=("carriers",))
    folder = RunFolder.create(tmp_path / "large")
    study = Study.parse({"study": {"name": "large"}, "data": {"dataset": "icu_network"}, "method": {"name": "cpals"}})
    folder.write_json(folder.study, {"study": study.to_json(), "sites": [s.name for s in sites], "versions": {}})
    Run.write(folder, model, sites)
    publish(folder, model, folder.read_json(folder.study), local=sites)
    folder.write_json(folder.metrics, {"fit": 0.2, "rounds": 2})
    assert write_report(folder).stat().st_size < 1.5e6


def test_report_of_a_mixture(tmp_path: Path, rng: np.random.Generator) -> None:
    sites = [pc.Site(n, features=np.concatenate([rng.normal(0, 1, (60, 3)), rng.normal(5, 1, (40, 3))])) for n in "ab"]
    model = pc.GaussianMixture(n_components=2, seed=0).fit(sites)
    study = Study.parse(
        {
            "study": {"name": "groups"},
            "features": {"columns": ["age", "creatinine", "<lactate>"]},
            "method": {"name": "gaussianmixture", "aggregation": "plain"},
        }
    )
    folder = RunFolder.create(tmp_path / "mixture")
    folder.write_json(folder.study, {"study": study.to_json(), "sites": ["a", "b"], "versions": {}})
    Run.write(folder, model, sites)
    publish(folder, model, folder.read_json(folder.study), local=sites)
    folder.write_json(folder.metrics, {"log_likelihood": model.log_likelihood_, "bic": model.bic_, "rounds": 3})
    page = _parsed(write_report(folder).read_text(encoding="utf-8"))
    assert "Group 2" in page.text and "<lactate>" in page.text and "60 % of patients" in page.text


def test_a_group_of_few_patients_is_not_described(tmp_path: Path, rng: np.random.Generator) -> None:
    from polyclinic.report.export.tables import export

    crowd = [rng.normal(0, 1, (60, 2)), rng.normal(6, 1, (60, 2))]
    sites = [pc.Site("a", features=np.concatenate([*crowd, rng.normal([40, -40], 0.5, (5, 2))]))]
    sites.append(pc.Site("b", features=np.concatenate(crowd)))
    model = pc.GaussianMixture(n_components=3, seed=0, n_starts=4).fit(sites)
    lone = int(np.argmax(model.means_[:, 0]))
    assert model.means_[lone, 0] > 35, "five patients have made a group"
    study = Study.parse({"study": {"name": "few"}, "method": {"name": "gaussianmixture", "aggregation": "plain"}})
    folder = RunFolder.create(tmp_path / "run")
    folder.write_json(folder.study, {"study": study.to_json(), "sites": ["a", "b"], "versions": {}})
    Run.write(folder, model, sites)
    publish(folder, model, folder.read_json(folder.study), local=sites)
    folder.write_json(folder.metrics, {"rounds": 3})
    text = _parsed(render(RunContents.read(folder))).text
    assert "it is not described" in text and text.count("size not shown") >= 2
    assert f"{model.means_[lone, 0]:.3g}" not in text
    export(folder)
    with np.load(folder.path / "exports" / "outcome.npz") as z:
        assert set(z.files) == {"weights_", "means_"}
        assert np.isnan(z["means_"][lone]).all() and np.isnan(z["weights_"]).sum() >= 2


def test_report_of_a_similarity(tmp_path: Path, rng: np.random.Generator) -> None:
    from polyclinic.methods.similarity.federated import ConsensusUnPSL

    sites = []
    for name in ("a", "b", "c"):
        X = rng.normal(size=(40, 5))
        sites.append(pc.Site(name, features=X, labels=(X[:, 1] > 0).astype(int)))
    model = ConsensusUnPSL(l1=0.02, l2=0.0, rounds=8).fit(sites)
    study = Study.parse({"study": {"name": "alike"}, "method": {"name": "unpsl", "aggregation": "plain"}})
    folder = RunFolder.create(tmp_path / "similarity")
    folder.write_json(folder.study, {"study": study.to_json(), "sites": ["a", "b", "c"], "versions": {}})
    Run.write(folder, model, sites)
    folder.write_json(folder.metrics, {"rounds": 8})
    run = RunContents.read(folder)
    assert run.kind == "similarity"
    page = _parsed(write_report(folder).read_text(encoding="utf-8"))
    first = re.search(r"Selected features(.*?)%?\d", page.text, re.S)
    assert first is not None and "feature" in first[1]
    assert "features count" in page.text


def test_a_federation_that_released_no_counts_shows_none(
    plain_run: RunFolder, copied: Callable[[RunFolder], RunFolder]
) -> None:
    """What a coordinator holds: the model and its card. Neither sites' folders nor ledgers nor counts."""
    import shutil

    run = copied(plain_run)
    for name in ("presence.json", "presence.npz", "findings.json"):
        (run.path / name).unlink()
    for name in ("sites", "ledgers"):
        shutil.rmtree(run.path / name)
    text = _parsed(render(RunContents.read(run))).text
    assert "could not be checked that none describes a single patient" in text
    assert "The ledgers are with the sites" in text
    for word in ("odds ratio", "prevalence", "shared by", "effective sample size"):
        assert word not in text, word


def test_reviewers_names_and_agreement_are_shown(
    plain_run: RunFolder, copied: Callable[[RunFolder], RunFolder]
) -> None:
    run = copied(plain_run)
    said = {"reviewers": 2, "phenotypes": 8, "meaningful": 0.75, "observed": 0.9, "kappa": 0.8}
    run.write_json(run.path / "review.json", {**said, "names": {"1": ["<heart>", "cardiac"]}})
    text = _parsed(render(RunContents.read(run))).text
    assert "75 % meaningful" in text and "kappa 0.80" in text and "clinicians: <heart>, cardiac" in text


def test_an_unfinished_run_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.json is not there"):
        write_report(RunFolder(tmp_path))
