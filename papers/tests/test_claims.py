"""Claims are data: three verdicts by the interval, a reason by its conditions, and every file can be read."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from polyclinic.errors import ConfigError
from polyclinic_papers.claims import Rule, _read, judge, together
from polyclinic_papers.interval import Interval, Several

PAPERS = sorted(p.name.removesuffix(".toml") for p in (files("polyclinic_papers") / "claims").iterdir())
PAGE = Path(__file__).resolve().parents[2] / "docs" / "papers" / "results.md"
LOW, HIGH, ACROSS = Interval(-2.0, -3.0, -1.0, 5), Interval(2.0, 1.0, 3.0, 5), Interval(0.1, -1.0, 1.2, 5)


@pytest.mark.parametrize(
    ("rule", "low", "high", "across"),
    [
        ("x < 0", "holds", "does not hold", "undecided"),
        ("x > 0", "does not hold", "holds", "undecided"),
        ("x <= -1", "holds", "does not hold", "undecided"),
        ("x >= bar", "does not hold", "holds", "undecided"),
        ("x within 1", "does not hold", "does not hold", "undecided"),
        ("x.mean < 0.5", "holds", "does not hold", "holds"),
    ],
)
def test_the_interval_decides(rule: str, low: str, high: str, across: str) -> None:
    found = [Rule.read(rule).judge({"x": x, "bar": 1.0}) for x in (LOW, HIGH, ACROSS)]
    assert found == [low, high, across]


def test_several_must_all_hold_and_one_that_fails_decides() -> None:
    assert Rule.read("x < 0").judge({"x": Several([LOW, LOW])}) == "holds"
    assert Rule.read("x < 0").judge({"x": Several([LOW, ACROSS])}) == "undecided"
    assert Rule.read("x < 0").judge({"x": Several([ACROSS, HIGH])}) == "does not hold"
    assert together(["holds", "undecided", "does not hold"]) == "does not hold"


def test_a_rule_that_cannot_be_read_and_a_figure_that_was_not_measured_are_told() -> None:
    with pytest.raises(ConfigError, match="no rule: 'x below 3'"):
        Rule.read("x below 3")
    with pytest.raises(ConfigError, match="no figure 'x' was measured"):
        Rule.read("x < 3").judge({"y": 1.0})
    with pytest.raises(ConfigError, match=r"no claims 'trip\.nothing'"):
        judge("trip.nothing", {})


def test_a_reason_is_given_where_its_condition_is_met() -> None:
    words = {"few": 20, "many": 100, "soft_auc": ACROSS}
    (early,) = judge("localtf.rmse.soft", {}, soft_early=HIGH, soft_late=LOW, **words)
    assert early.verdict == "does not hold" and "before it has converged, it does; at the end" in early.why
    (late,) = judge("localtf.rmse.soft", {}, soft_early=LOW, soft_late=LOW, **words)
    assert "it does not either" in late.why
    (fine,) = judge("localtf.rmse.soft", {}, soft_early=HIGH, soft_late=HIGH, **words)
    assert (fine.verdict, fine.why) == ("holds", "") and fine.rule == ("soft_early > 0", "soft_late > 0")
    assert fine.figures == {"soft_early": HIGH, "soft_late": HIGH}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_file_of_claims_can_be_read(paper: str) -> None:
    entries = [entry for section in _read(paper).values() for entry in section.values()]
    assert entries and all(e["claim"] and e["ours"] for e in entries)


def test_the_page_of_results_states_these_claims_and_counts_them() -> None:
    """What the docs show is what the files say, and the table of verdicts adds up."""
    text = "\n".join(p.read_text(encoding="utf-8") for p in sorted(PAGE.parent.glob("results*.md")))
    rows = re.findall(
        r"^\| (.+?) \| .* \| (holds|does \*\*not\*\* hold|undecided|no signal) \| .*\|$", text, flags=re.M
    )
    rows = [row for row in rows if row[0] != "paper"]  # the heading of the table at the top
    known = [_pattern(e["claim"]) for p in PAPERS for s in _read(p).values() for e in s.values()]
    assert not [r for r, _ in rows if not any(re.fullmatch(k, r) for k in known)]
    counted = [
        tuple(map(int, n))
        for n in re.findall(r"^\| [\w ]+ \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| \d+ \|", text, flags=re.M)
    ]
    verdicts = [v for _, v in rows]
    written = ("holds", "does **not** hold", "undecided", "no signal")
    assert [sum(c[k] for c in counted) for k in range(4)] == [verdicts.count(v) for v in written]


def test_a_claim_that_a_control_gets_too_has_no_signal() -> None:
    words = {"model": "TRIP", "alone": 0.1, "asserted": False}
    (fooled,) = judge("trip.discovery", {"random factors": {"joint": 0.9}}, joint=0.95, **words)
    assert (fooled.verdict, fooled.controls) == ("no signal", {"random factors": "holds"})
    assert fooled.why == "random factors: gets the claim too"
    (fine,) = judge("trip.discovery", {"random factors": {"joint": 0.2}}, joint=0.95, **words)
    assert (fine.verdict, fine.controls) == ("holds", {"random factors": "does not hold"})
    (failed,) = judge("trip.discovery", {"random factors": {"joint": 0.9}}, joint=0.5, **words)
    assert failed.verdict == "does not hold", "a control cannot mend a claim that fails"


def test_where_there_is_nothing_to_lose_there_is_no_signal() -> None:
    words = {"data": "colon", "by": "sample", "share": LOW}
    (claim,) = judge("unpsl.few", {"permuted labels": {"cost": LOW, "gain": LOW}}, cost=LOW, gain=ACROSS, **words)
    assert claim.verdict == "no signal" and "gain > 0 is not met" in claim.why
    (claim,) = judge("unpsl.few", {"permuted labels": {"cost": LOW, "gain": LOW}}, cost=LOW, gain=HIGH, **words)
    assert claim.verdict == "holds" and claim.controls == {"permuted labels": "does not hold"}


def _pattern(template: str) -> str:
    return ".+".join(re.escape(part) for part in re.split(r"\{[^}]*\}", template))
