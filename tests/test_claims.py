"""What the pages on privacy say, compared with the code that has to be so."""

from __future__ import annotations

import inspect
import itertools
import math
import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

import polyclinic as pc
from polyclinic.errors import PolicyRefusal
from polyclinic.methods.dpem import budget_plan as plan
from polyclinic.node.refusals import Why
from polyclinic.privacy.accounting.accountant import Gaussian, epsilon, prop_2_8
from polyclinic.privacy.accounting.noise_grid import LEAST
from polyclinic.privacy.card.card import Card
from polyclinic.privacy.gate.owner_rules import LedgerRule
from polyclinic.privacy.ledger.signed_head import BOOKS
from polyclinic.privacy.policy.policy import Policy
from polyclinic.protocol.aggregators import NAMES, facts_of, kind_of
from polyclinic.protocol.interfaces import least_threshold
from polyclinic_papers.decentralised.subspace import Subspace

ROOT = Path(__file__).resolve().parent.parent
NAMED = (
    "explanation/guarantees",
    "explanation/privacy",
    "explanation/threat-model",
    "howto/privacy-officers",
    "faq-ethics",
)
PAGES = {n.rpartition("/")[2]: " ".join((ROOT / "docs" / f"{n}.md").read_text().split()) for n in NAMED}


def raw(name: str) -> str:
    return next(ROOT / "docs" / f"{n}.md" for n in NAMED if n.endswith(name)).read_text()


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page: str) -> None:
    found = re.findall(r"`((?:tests|privacy|auditing|analysis|docs)/[\w/-]+(?:\.py|\.md)?)`", raw(page))
    gone = [f for f in found if not any((base / f).exists() for base in (ROOT, ROOT / "src" / "polyclinic"))]
    assert not gone


@pytest.mark.parametrize("page", PAGES)
def test_commands_that_are_named_exist(page: str) -> None:
    from typer.main import get_command

    from polyclinic.cli import verbs
    from polyclinic.cli.node import ledger, site

    groups = {"ledger": get_command(ledger.app), "site": get_command(site.app)}
    for words in re.findall(r"polyclinic ((?:ledger|site|audit|report)(?: [a-z|]+)?)(?=[ `\n])", raw(page)):
        first, _, rest = words.partition(" ")
        assert first in verbs()
        if first in groups:
            assert set(rest.split("|")) <= set(groups[first].commands), words  # type: ignore[attr-defined]


def test_the_node_file_on_the_page_is_one() -> None:
    block = next(b for b in re.findall(r"```toml\n(.*?)```", raw("privacy"), re.S) if "[policy]" in b)
    value = tomllib.loads(block)
    policy = Policy.model_validate(value["policy"])
    assert LedgerRule.model_validate(value["ledger"]).cohort == "adults"
    assert Policy().min_cell == policy.min_cell == 11 and "counts from 1 to 10" in PAGES["privacy"].lower()


def test_who_gets_a_formal_guarantee() -> None:
    row = next(x for x in raw("privacy").splitlines() if x.startswith("| formal"))
    formal = {
        n
        for n in dir(pc)
        if inspect.isclass(c := getattr(pc, n)) and getattr(getattr(c, "facts", None), "formal", False)
    }
    assert formal == set(re.findall(r"`([A-Z]\w+)`", row))


def test_words_and_numbers_of_refusals() -> None:
    assert (
        "nine words: version, roster, declined, overlap, away, disk, disagrees, malformed, closed."
        in PAGES["threat-model"]
    )
    assert get_args(Why) == (
        "version",
        "roster",
        "declined",
        "overlap",
        "away",
        "disk",
        "disagrees",
        "malformed",
        "closed",
    )
    assert "exit code 4 here" in PAGES["privacy"] and PolicyRefusal.exit_code == 4


def test_thresholds_and_sums_of_the_threat_model() -> None:
    assert "max((n + c) // 2 + 1, c + 2)" in PAGES["threat-model"]
    for survivors, sites in re.findall(
        r"(\d+) of (\d+)(?=[,)])",
        re.search(r"\(3 of 3[^)]*\)", PAGES["threat-model"])[0],  # type: ignore[index]
    ):
        assert least_threshold(int(sites)) == int(survivors)
    named = set(
        re.findall(
            r"`(\w+)`", " ".join(x.split("|")[1] for x in raw("threat-model").splitlines() if re.match(r"\| `\w+`", x))
        )
    )
    assert named == {*NAMES, "subspace", "cycle"}
    robust = re.search(r"\| `median`[^|]*\| \*\*each\*\*", raw("threat-model"))
    assert robust is not None
    for name in NAMES:
        shows = facts_of(name).reveals == "each"
        row = next(
            x for x in raw("threat-model").splitlines() if re.match(r"\| `\w+`", x) and f"`{name}`" in x.split("|")[1]
        )
        assert ("**each**" in row.split("|")[2]) == shows, name
    assert "10⁻⁶ bit" in PAGES["threat-model"] and inspect.signature(Subspace).parameters["bits"].default == 1e-6
    assert "after eight ledgers" in PAGES["threat-model"] and BOOKS == 8
    assert "one percent more is reserved" in PAGES["privacy"]
    assert Subspace.margin == 0.01 and not any(kind_of(n).margin for n in NAMES)


def test_what_an_epsilon_means_in_figures() -> None:
    for eps, told in ((2.0, "7.4"), (1.0, "2.7"), (0.1, "1.1")):
        assert told in PAGES["guarantees"] and f"{math.exp(eps):.1f}" == told
    assert "by a factor of at most 2.7" in PAGES["faq-ethics"]


@pytest.mark.parametrize(("name", "epochs"), [("MIMIC", 20), ("CMS", 49), ("synthetic", 39)])
def test_the_papers_settings(name: str, epochs: int) -> None:
    _, claimed, exact, tight = (
        x.strip()
        for x in re.search(rf"\| ({name}, {epochs} epochs) \|([^|]*)\|([^|]*)\|([^|]*)\|", raw("privacy")).groups()  # type: ignore[union-attr]
    )
    rho = 2 * epochs * 1e-3
    assert round(math.sqrt(4 * rho * math.log(1e4)), 1) == float(claimed)
    assert round(prop_2_8(rho, 1e-4), 3) == float(exact)
    assert round(epsilon([Gaussian((2 * 1e-3) ** -0.5, 2 * epochs)], 1e-4), 3) == float(tight)


def test_every_line_of_a_card_is_explained() -> None:
    whole = Card(
        "m",
        "formal",
        1.0,
        1e-6,
        "patient",
        claimed=1.0,
        releases=1,
        assumptions=("a",),
        reasons=("r",),
        saw={"the coordinator": "s"},
        attacks=("k",),
        audit={"verdict": "passed"},
        books="b",
        agreement="g",
    )
    labels = {"... saw" if k.endswith(" saw") else k for k, _ in whole.rows()}
    after = raw("privacy-officers").split("| line | what it says | legal meaning |\n|---|---|---|\n")[1]
    table = [x.split("|")[1] for x in itertools.takewhile(lambda x: x.startswith("| "), after.splitlines())]
    explained = {w.strip() for cell in table for w in cell.split(",")}
    assert labels == {"... saw" if k.endswith(" saw") else k for k in explained}


def test_shares_of_the_budget_that_dpem_spends_aside() -> None:
    assert "half a percent of the budget counts the patients first" in PAGES["privacy"]
    assert "two percent of the budget test whether it fits" in PAGES["privacy"]
    assert "at least eight grid steps of noise" in PAGES["privacy"]
    assert (plan.SIZE, plan.VOTE, LEAST) == (0.005, 0.02, 8.0)


def test_more_than_fifty_errata() -> None:
    assert "more than fifty numbered places" in PAGES["faq-ethics"]
    assert len(set(re.findall(r"\bE\d\.\d+\b", (ROOT / "docs" / "errata.md").read_text()))) > 50
