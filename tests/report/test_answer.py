"""The first screen gives the answer with its size, names what predicts best, and its figures follow adjusted p-values."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.report.answer import _associations, answer, prediction
from polyclinic.report.cards import cards
from polyclinic.report.charts import clinical
from polyclinic.report.charts.pen import ChartAxis, Pen, frame, labels
from polyclinic.report.charts.rows import (
    EffectRow,
    FlowBox,
    ReplicationRow,
    SurvivalGroup,
    effect_rows,
    flow_boxes,
    grade,
)
from polyclinic.report.contents import RunContents
from polyclinic.report.html import render
from polyclinic.report.names import CardCode, suggest_name
from polyclinic.report.replication import ENOUGH, first_words, verdicts
from polyclinic.studies.run_folder import RunFolder


def _replicability(*rows: tuple[float, float | None, float | None]) -> dict[str, Any]:
    """Findings with one phenotype per (cosine, lower limit, r)."""
    columns = ["phenotype", "halves", "low", "high", "rho", "carried", "sites"]
    lines = [[k, cosine, low, 1.0, r, 3, 3] for k, (cosine, low, r) in enumerate(rows)]
    return {"patients": 2000, "replicability": {"columns": columns, "rows": lines}}


def _baselines(*rows: tuple[str, float, float, float, float]) -> dict[str, Any]:
    columns = ["model", "auc", "low", "high", "gain", "gain_low", "gain_high"]
    lines = [["covariates and phenotypes", 0.74, 0.7, 0.78, None, None, None]]
    lines += [[model, auc, auc - 0.04, auc + 0.04, gain, low, high] for model, auc, gain, low, high in rows]
    return {"outcome": {"auc": [0.74, 0.70, 0.78], "baselines": {"columns": columns, "rows": lines}}}


def test_a_phenotype_is_replicated_only_with_cosine_lower_limit_and_correlation() -> None:
    found = _replicability((0.9, 0.6, 0.2), (0.9, 0.3, 0.2), (0.9, 0.6, 0.05), (0.7, 0.6, 0.4), (0.9, 0.6, None))
    grades = ["replicated", "uncertain", "not replicated", "not replicated", "uncertain"]
    assert [v.grade for v in verdicts(found)] == grades
    assert all("cosine 0." in v.words and ("r = " in v.words or "r not tested" in v.words) for v in verdicts(found))
    assert first_words(found).startswith("1 of 5 phenotypes replicated when 2,000 patients were split in half. 2 are")
    assert grade({"grade": "uncertain", "halves": 1.0, "low": 1.0, "rho": 1.0}) == "uncertain", "as the run says"


def test_what_too_few_patients_cannot_show_is_undecided() -> None:
    found = _replicability((0.3, 0.1, 0.1))
    small, large = {**found, "patients": 94}, {**found, "patients": ENOUGH}
    few, many = verdicts(small)[0], verdicts(large)[0]
    assert not few.failed and few.words.startswith("undecided") and "94 patients are too few" in first_words(small)
    assert many.failed and "not as findings" in first_words(large)


def test_the_background_is_no_phenotype_that_could_replicate() -> None:
    found = _replicability((0.9, 0.6, 0.2), (0.9, 0.6, 0.2)) | {"background": [1]}
    assert first_words(found).startswith("1 of 1 ")


@pytest.mark.parametrize(
    ("best", "said"),
    [
        (("all raw codes", 0.88, -0.14, -0.18, -0.1), "they predict worse than all raw codes (0.88)."),
        (("record size", 0.73, 0.01, -0.02, 0.04), "they are not shown to predict better than record size (0.73)."),
        (
            ("age", 0.65, 0.09, 0.05, 0.13),
            "they predict better than every comparison. The best of these is age (0.65).",
        ),
    ],
)
def test_the_baseline_with_the_largest_auc_is_named_also_where_it_beats_the_model(best: Any, said: str) -> None:
    sentence = prediction(_baselines(("random", 0.55, 0.2, 0.1, 0.3), best))
    assert sentence.endswith(said) and "AUC 0.74, 95 % CI 0.70 to 0.78" in sentence


def test_the_sentence_says_where_adjustment_reverses_the_crude_ratio(plain_run: RunFolder) -> None:
    run = RunContents.read(plain_run)
    outcome = run.findings["outcome"]
    columns = [*outcome["effects"]["columns"], "crude"] if "crude" not in outcome["effects"]["columns"] else None
    rows = [dict(zip(outcome["effects"]["columns"], r)) for r in outcome["effects"]["rows"]]
    for row in rows:
        row |= {"odds_ratio": 1.2, "low": 0.9, "high": 1.5, "q": 0.5, "crude": 1.1}
    rows[0] |= {"odds_ratio": 0.51, "low": 0.4, "high": 0.6, "q": 0.001, "crude": 1.19}
    effects = {"columns": columns or outcome["effects"]["columns"], "rows": [list(r.values()) for r in rows]}
    changed = replace(run, findings={**run.findings, "outcome": {**outcome, "effects": effects}})
    made = answer(changed, cards(changed))
    assert made is not None
    text = " ".join(made.sentences)
    assert "adjustment reverses it (crude 1.19, adjusted 0.51)" in text and text.count("reverses") == 1
    assert "\N{DAGGER} Adjustment reverses the crude odds ratio." in made.note and made.forest.count("\N{DAGGER}") == 1
    plain = render(run)
    assert "adjustment reverses it" not in plain


def test_the_first_screen_has_the_numbers_of_the_findings(plain_run: RunFolder) -> None:
    run = RunContents.read(plain_run)
    page = render(run)
    first = re.sub(r"<[^>]*>", " ", page[page.index('class="answer"') : page.index("All phenotypes")])
    assert f"{run.findings['patients']:,} patients" in first
    assert "AUC {:.2f}".format(run.findings["outcome"]["auc"][0]) in first.replace("\u00a0", " ")
    largest = max((b for b in run.findings["outcome"]["baselines"]["rows"][1:]), key=lambda b: b[1])
    assert f"{largest[0]} ({largest[1]:.2f})" in first
    assert page.index('class="answer"') < page.index('aria-label="Forest plot"') < page.index("Patient flow")


def test_colour_and_star_follow_the_adjusted_p_value_not_the_interval() -> None:
    rows = [EffectRow(1, "a", ratio=(2.0, 1.1, 3.0), q=0.2), EffectRow(2, "b", ratio=(0.5, 0.3, 0.8), q=0.01)]
    svg = clinical.forest(rows)
    assert svg.count("ci flat") == 1 and svg.count("ci down") == 1 and "ci up" not in svg
    assert svg.count("*") == 1


def test_effects_that_cannot_be_told_apart_are_not_called_no_association() -> None:
    """Two phenotypes that exclude each other: the outcome goes with one of them, and no adjusted ratio belongs to either."""
    rng = np.random.default_rng(4)
    group = rng.random(600) < 0.4
    coords = np.concatenate([[[i, g, g], [i, g, 2]] for i, g in enumerate(group.astype(int))])
    axes = [pc.Axis("patient"), pc.Axis("diagnosis", ("a", "b")), pc.Axis("drug", ("x", "y", "z"))]
    tensor = pc.SparseTensor(coords, np.ones(len(coords)), (600, 2, 3), axes)
    sites = [pc.Site("north", tensor, labels=(rng.random(600) < np.where(group, 0.6, 0.2)).astype(int))]
    factors = [np.eye(2), np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])]
    model = pc.CPALS(rank=2, rounds=3, seed=0).fit(sites)
    model.result_ = replace(model.result_, factors=tuple(factors))
    found: dict[str, Any] = pc.evaluate(model, sites, what=("carriers", "outcome"), adjust=("site",)).to_json()
    rows = effect_rows(found, ["first", "second"])
    said = " ".join(_associations(rows, found["outcome"]))
    assert all(r.inseparable and r.inflation and r.inflation > 10 for r in rows)
    assert sorted(float(r.crude or 0) > 3 for r in rows) == [False, True]
    assert "cannot be told apart" in said and "Crude odds ratios: " in said and "No association" not in said
    assert clinical.forest(rows).count("cannot be told apart") == 2


def test_no_figure_repeats_a_class_or_has_more_bytes_than_its_marks_need(plain_run: RunFolder) -> None:
    page = render(RunContents.read(plain_run))
    figures = re.findall(r'<svg class="chart.*?</svg>', page)
    assert len(figures) >= 5
    for figure in figures:
        kinds = re.findall(r'<path class="([^"]*)"', figure)
        assert len(kinds) == len(set(kinds)) and not re.search("<(rect|circle|line) |style=", figure)
        marks = figure.count("<text") + figure.count("M")
        assert len(figure) < 600 + 80 * marks, figure[:200]


def test_the_flow_shows_no_exact_number_that_a_formal_study_did_not_release() -> None:
    boxes = [
        {"box": "source", "words": "in the source", "patients": None, "noisy": False, "released": False},
        {"box": "takes_part", "words": "take part", "patients": 5995, "noisy": True},
    ]
    told = flow_boxes({"flow": boxes}, {})
    assert [b.count for b in told] == ["not released", "about 5,995"] and told[1].lost == ""
    assert "about 5,995" in clinical.flow(told)
    assert clinical.flow([FlowBox("take part", None)]).count("not shown") == 2


def test_every_curve_has_a_band_and_its_numbers_at_risk() -> None:
    times = [0.0, 100.0, 200.0]
    points = tuple((t, 1 - t / 1000, 0.9 - t / 1000, 1.0) for t in times)
    groups = [SurvivalGroup(n, points, dict(zip(times, (300, 200, None)))) for n in ("with", "without")]
    svg = clinical.survival(groups, unit="days", title="Survival")
    assert svg.count("band s") == 2 and svg.count("line s") == 2
    assert svg.count(">300<") == 2 and svg.count("&lt;11") == 2 and "axis starts at" in svg


def test_the_replication_figure_has_the_gates_as_lines_and_one_point_a_phenotype() -> None:
    rows = [ReplicationRow(k + 1, f"p{k}", 0.9, 0.6, 1.0, 0.3, "replicated") for k in range(5)]
    svg = clinical.replication([*rows, ReplicationRow(6, "p6", 0.2, 0.0, 0.6, 0.4, "not replicated")])
    guides, dots = (re.findall(f'class="{kind}" d="([^"]*)"', svg) for kind in ("guide", "dot s."))
    assert "".join(guides).count("M") == 2 and "".join(dots).count("h0") == 6


@pytest.mark.parametrize(
    "span", [(0.28661, 0.28669), (0, 1), (0, 3.2e7), (0, 12_345), (1e-6, 5e-6), (-0.3, 0.4), (999.2, 1000.9)]
)
def test_labels_of_ticks_never_repeat_and_leave_room_for_the_title(span: tuple[float, float]) -> None:
    axis = ChartAxis("y", *span)
    texts = [text for _, text in axis.ticks]
    assert len(set(texts)) == len(texts) > 1
    pen = Pen(440)
    frame(pen, ChartAxis("x", 0, 1), axis, 200)
    first = min(float(m) for m in re.findall(r"M([\d.]+)", "".join(pen.shapes["rule"])))
    assert first - 7 - 7 * max(map(len, texts)) >= 20, "the title of the axis stands free"
    assert labels([0, 20_000]) == ["0", "20k"]


def test_names_use_every_mode_and_never_collide() -> None:
    def modes(*drugs: str) -> list[tuple[str, tuple[CardCode, ...]]]:
        heart = (CardCode("428", "heart failure", 1, 0.6), CardCode("401", "hypertension", 1, 0.1))
        return [("drug", tuple(CardCode(d, d, 1, 0.5) for d in drugs)), ("diagnosis", heart)]

    names: set[str] = set()
    for drugs in (("furosemide",), ("insulin",), ("furosemide", "insulin"), ("furosemide", "aspirin")):
        name = suggest_name(modes(*drugs), avoid=names)
        assert name and name not in names and name.startswith("Heart failure")
        names.add(name)
    assert suggest_name(modes("insulin")) == "Heart failure with insulin"
    assert suggest_name([("diagnosis", ())]) == ""
