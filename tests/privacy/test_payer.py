"""Who pays, and from which patients' budget: one owner, several owners, parts of one node."""

from __future__ import annotations

import inspect
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyclinic.errors import ConfigError, LedgerError, PolicyRefusal
from polyclinic.privacy.accounting.accountant import (
    FINE,
    ZCDP,
    DiscreteGaussian,
    Gaussian,
    SubsampledGaussian,
    Unbounded,
    calibrate,
    epsilon,
    epsilon_rdp,
    from_json,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    to_json,
)
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.accounting.charge import Charge
from polyclinic.privacy.gate.budget_holder import BudgetHolder
from polyclinic.privacy.gate.gate import ReleaseGate, Waits
from polyclinic.privacy.ledger.balance import Account, Balance, cost, part_label
from polyclinic.privacy.ledger.entries import Accept, CloseLine, Counted, Evaluate, Refuse, Reserve, Rules, Withdraw
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.policy.policy import Policy, StudyRequest, price
from polyclinic.privacy.release import Contribution, Step

ONE, TWO = "1" * 32, "2" * 32


def eps(mu2: float) -> float:
    return epsilon([Gaussian(mu2**-0.5)], 1e-6)


def charge(cohort: str, multiplier: float = 10.0, study: str = "s", **more: Any) -> Charge:
    return Charge(study, "m", 1, "x", 0, Gaussian(multiplier), cohort=cohort, **more)


def test_defaults_of_the_door() -> None:
    """Who says nothing waits for nobody, sets nothing aside for leaks, and has no patients."""
    door = inspect.signature(ReleaseGate).parameters
    told = {n: door[n].default for n in ("waits", "run", "cohort", "beside", "others")}
    assert told == {
        "waits": Waits(decision=0.0, resumption=14 * 86_400.0),
        "run": "",
        "cohort": "all",
        "beside": (),
        "others": (),
    }
    admit, release = inspect.signature(ReleaseGate.admit).parameters, inspect.signature(ReleaseGate.release).parameters
    assert {n: admit[n].default for n in ("sites", "patients", "resume", "margin")} == {
        "sites": 1,
        "patients": 0,
        "resume": False,
        "margin": 0.0,
    }
    assert {n: release[n].default for n in ("share", "attempt", "number")} == {"share": 1.0, "attempt": 0, "number": -1}
    with pytest.raises(PolicyRefusal, match="fewer than 1 patients"):
        ReleaseGate("n", policy=Policy(min_patients=1)).admit("s", "m")


def test_the_rules_are_in_the_book_once_for_every_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0)
    book = Ledger(tmp_path / "l.jsonl")
    for order, policy in (("a", Policy()), ("b", Policy()), ("c", Policy(min_sites=2)), ("d", Policy())):
        assert BudgetHolder(policy, book).reserve(order, "s", Privacy(0.1), 0.0, 60.0) == []
    rules = [e.body for e in book.entries if isinstance(e.body, Rules)]
    assert len(rules) == 3
    assert [r.text for r in rules] == ["{}", '{"min_sites":2}', "{}"]
    reserves = [e.body for e in book.entries if isinstance(e.body, Reserve)]
    assert [r.policy for r in reserves] == [rules[0].digest, rules[0].digest, rules[1].digest, rules[2].digest]
    assert reserves[0].until == 1_000_060
    assert reserves[0].events == price(Privacy(0.1))


def test_a_payer_without_rules_sets_nothing_aside_and_pays(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "l.jsonl")
    payer = BudgetHolder(None, book, "adults")
    assert payer.study_faults(StudyRequest("s", "m", Privacy(9.0), 1, 0, "o")) == []
    assert payer.reserve("o", "s", Privacy(9.0), 0.0, 60.0) == []
    payer.asks_exactly("o", "what")
    payer.refuse("o", ["why"])
    assert book.count == 0
    payer.pay(charge("whatever"))
    assert [c.cohort for c in book.charges()] == ["adults"]


def test_refusing_frees_what_is_open_and_only_that(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "l.jsonl")
    payer = BudgetHolder(Policy(), book)
    payer.refuse("o", ["why"])
    assert not [e for e in book.entries if isinstance(e.body, Refuse)]
    payer.reserve("o", "s", Privacy(0.1), 0.0, 60.0)
    payer.refuse("o", ["why"])
    assert [(e.body.order, e.body.by, e.body.reasons) for e in book.entries if isinstance(e.body, Refuse)] == [
        ("o", "policy", ("why",))
    ]
    assert not book.tally.open
    assert not book.tally.withdrawn, "a rule may be changed, and the order be asked again"


def test_several_owners_all_agree_and_all_pay(tmp_path: Path) -> None:
    books = {n: Ledger(tmp_path / f"{n}.jsonl") for n in "abc"}
    others = [BudgetHolder(Policy(), books["b"]), BudgetHolder(Policy(max_epsilon_total=0.5), books["c"])]
    door = ReleaseGate("joined", policy=Policy(), ledger=books["a"], others=others, run="o")
    with pytest.raises(PolicyRefusal, match=r"allowed 0\.5"):
        door.admit("s", "dpem", Privacy(0.9), 3, 50)
    assert not any(b.tally.open for b in books.values())
    door.admit("s", "dpem", Privacy(0.4), 3, 50)
    assert all("o" in b.tally.open for b in books.values())
    (m,) = calibrate(0.4, 1e-6)
    step = Step(1, "x", {"x": (3,)}, bound=9.0, sensitivity=1.0, multiplier=m)
    door.release(step, Contribution({"x": np.ones(3)}))
    assert [round(b.epsilon(1e-6), 6) for b in books.values()] == [0.4, 0.4, 0.4]
    with pytest.raises(PolicyRefusal, match=r"allowed 0\.5"):
        door.release(
            step.__class__(2, "y", {"x": (3,)}, bound=9.0, sensitivity=1.0, multiplier=m),
            Contribution({"x": np.ones(3)}),
        )
    assert len(books["a"].charges()) == 1, "its own book last: nothing left"
    door.close()
    assert not any(b.tally.open for b in books.values())
    alone = ReleaseGate("x", ledger=Ledger(), others=[BudgetHolder(Policy(min_patients=9), books["b"])])
    with pytest.raises(PolicyRefusal, match="fewer than 9"):
        alone.admit("t", "dpem", None, 3, 5)


def test_of_a_run_the_dearest_part_counts_and_runs_add_up() -> None:
    tally = Balance()
    for cohort, m in (
        (part_label(ONE, "a"), 10.0),
        (part_label(ONE, "b"), 5.0),
        (part_label(TWO, "a"), 10.0),
        ("all", 20.0),
    ):
        tally.add(charge(cohort, m))
    whole = 1 / 25 + 1 / 100 + 1 / 400
    assert tally.epsilon(1e-6) == pytest.approx(eps(whole))
    assert tally.epsilon(1e-6, study="s") == pytest.approx(eps(whole))
    assert tally.epsilon(1e-6, study="other") == 0.0
    assert tally.epsilon(1e-6, more=0.01) == pytest.approx(eps(whole + 0.01))
    a, b = part_label(ONE, "a"), part_label(ONE, "b")
    assert tally.epsilon(1e-6, part=a, beside=(b,)) == pytest.approx(eps(whole - 1 / 25 + 1 / 100))
    assert tally.epsilon(1e-6, study="s", part=a, beside=(b,)) == pytest.approx(eps(whole - 1 / 25 + 1 / 100))
    assert tally.epsilon(1e-6, part=a) == pytest.approx(eps(whole + 1 / 100)), (
        "parts of its run that it does not know count"
    )
    assert tally.epsilon(1e-6, cohort=a) == pytest.approx(eps(1 / 100))


def test_what_is_set_aside_for_parts_counts_with_what_they_spent() -> None:
    tally = Balance()
    a, b = part_label(ONE, "a"), part_label(ONE, "b")
    tally.add(charge(a, 10.0))
    tally.add(Reserve("p", "s", b, (Gaussian(8.0),)))
    tally.add(Reserve("q", "s", a, (Gaussian(20.0),)))
    tally.add(Reserve("r", "t", "all", (Gaussian(30.0),)))
    assert tally.epsilon(1e-6) == pytest.approx(eps(max(1 / 64, 1 / 100 + 1 / 400) + 1 / 900))
    assert tally.epsilon(1e-6, apart="p") == pytest.approx(eps(1 / 100 + 1 / 400 + 1 / 900))
    assert tally.epsilon(1e-6, study="s") == pytest.approx(eps(max(1 / 64, 1 / 100 + 1 / 400)))
    assert tally.epsilon(1e-6, part=b, beside=(a,)) == pytest.approx(eps(1 / 64 + 1 / 900))


def test_accounts_without_a_part() -> None:
    assert Account(0.5).without([0.2, 0.2]).mu2 == pytest.approx(0.1)
    assert Account(0.5).without([0.6]).mu2 == 0.0
    assert Account(0.5).without([math.inf]).mu2 == 0.5
    kept = Account(0.5, [ZCDP(0.1)], 2).without([0.1])
    assert (kept.others, kept.unbounded) == ([ZCDP(0.1)], 2)
    with pytest.raises(ValueError, match="no name of a run"):
        part_label("x", "a")


def test_prices() -> None:
    assert price(None) == ()
    assert price(Privacy(1.0, 1e-4, level="entry", clip=1.0)) == ()
    plain, more = cost(price(Privacy(1.0))), cost(price(Privacy(1.0), 0.01))
    assert more == pytest.approx(1.01 * plain)


def test_old_kinds_of_events_are_added_with_gaussian_ones() -> None:
    account = Account()
    account.add(ZCDP(0.01))
    alone = account.epsilon(1e-6)
    assert alone == pytest.approx(epsilon([ZCDP(0.01)], 1e-6))
    account.add(Gaussian(10.0))
    assert account.epsilon(1e-6) == pytest.approx(epsilon([ZCDP(0.01), Gaussian(10.0)], 1e-6))
    assert account.epsilon(1e-6, 0.02) > account.epsilon(1e-6) > alone
    assert account.beyond == 1


def test_the_ends_of_the_accountant() -> None:
    """No noise costs everything, nothing costs nothing, and a kind that is not Gaussian has no mu."""
    assert gaussian_mu([Gaussian(0.0)]) == math.inf
    assert gaussian_mu([Gaussian(-1.0)]) == math.inf
    assert gaussian_mu([]) == 0.0
    assert gaussian_mu([DiscreteGaussian(10.0, FINE)]) == pytest.approx(0.1)
    assert gaussian_mu([DiscreteGaussian(10.0, FINE * 0.999)]) is None
    assert gaussian_mu([Gaussian(10.0), ZCDP(0.1)]) is None
    assert gaussian_delta(1.0, 0.0) == 0.0
    assert gaussian_delta(0.0, 1.0) == pytest.approx(math.erf(0.5 / math.sqrt(2)))
    assert gaussian_epsilon(0.0, 1e-6) == 0.0
    assert gaussian_epsilon(1e-7, 1e-6) == 0.0
    assert gaussian_epsilon(math.inf, 1e-6) == math.inf
    for mu in (0.1, 1.0, 5.0, 40.0):
        found = gaussian_epsilon(mu, 1e-6)
        assert gaussian_delta(found, mu) <= 1e-6 < gaussian_delta(found * (1 - 1e-9), mu)
    for spent in (epsilon, epsilon_rdp):
        assert spent([], 1e-6) == 0.0
        assert spent([Gaussian(10.0), Unbounded()], 1e-6) == math.inf
        for delta in (0.0, 1.0, -0.1, math.nan):
            with pytest.raises(ConfigError, match="not a probability"):
                spent([], delta)
    assert epsilon([DiscreteGaussian(10.0, 5.0, 3)], 1e-6) == pytest.approx(epsilon_rdp([ZCDP(0.005, 3)], 1e-6))
    assert epsilon([DiscreteGaussian(10.0, FINE, 3)], 1e-6) == epsilon([Gaussian(10.0, 3)], 1e-6)
    assert epsilon_rdp([DiscreteGaussian(10.0, FINE)], 1e-6) == pytest.approx(epsilon_rdp([Gaussian(10.0)], 1e-6))


@pytest.mark.parametrize(
    "event", [Gaussian(9.0, 2), DiscreteGaussian(9.0, 7.0), ZCDP(0.1, 3), SubsampledGaussian(0.1, 2.0), Unbounded(4)]
)
def test_events_are_written_and_read_back(event: Any) -> None:
    assert from_json(to_json(event)) == event
    assert type(event)(*[v for k, v in vars(event).items() if k != "count"]).count == 1
    with pytest.raises(LedgerError, match="unknown privacy event"):
        from_json({**to_json(event), "strange": 1})


def test_decisions_change_what_an_order_may() -> None:
    tally = Balance()
    for body in (Accept("a", "dpo"), Accept("b", "dpo"), Reserve("a", "s", events=(Gaussian(9.0),)), Reserve("b", "s")):
        tally.add(body)
    assert tally.accepted == {"a", "b"}
    tally.add(Withdraw("a", "dpo"))
    assert (tally.accepted, tally.withdrawn, set(tally.open)) == ({"b"}, {"a"}, {"b"})
    assert "withdrew" in tally.over("a")
    tally.add(Refuse("b", "policy"))
    assert (tally.accepted, tally.withdrawn, set(tally.open)) == ({"b"}, {"a"}, set()), "a rule is no person"
    tally.add(Refuse("b", "dpo"))
    assert (tally.accepted, tally.withdrawn) == (set(), {"a", "b"})
    tally.add(Accept("a", "dpo"))
    assert (tally.accepted, tally.withdrawn) == ({"a"}, {"b"})
    assert tally.over("a") == ""
    assert tally.over("") == ""
    tally.add(charge("all", run="a", release="r"))
    tally.add(CloseLine("a", "finished"))
    assert "closed" in tally.over("a")
    assert tally.releases == {}
    for order, when in (("o", "2026"), ("o", "2027"), ("p", "2027")):
        tally.add(Evaluate(order, "all"), when)
    assert tally.exact == {"o": "2026", "p": "2027"}
    assert Balance.restore(tally.state()).state() == tally.state()


def test_a_list_of_sites_is_written_once_and_not_without_rules(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "l.jsonl")
    BudgetHolder(None, book).counts("o", ["a", "b", "c", "d"], (), "what", write=True)
    assert book.count == 0
    payer = BudgetHolder(Policy(), book)
    payer.counts("o", ["a", "b", "c", "d"], (), "what", write=False)
    assert book.count == 0
    for sites in (["a", "b", "c", "d"], ["d", "c", "b", "a"]):
        payer.counts("o", sites, (), "what", write=True)
    for write in (False, True):  # the difference of the two sums is the part of d
        with pytest.raises(PolicyRefusal, match="the sum over a, b, c") as refused:
            payer.counts("p", ["a", "b", "c"], (), "the sum over a, b, c", write=write)
        assert refused.value.faults
    assert [(e.body.order, e.body.sites) for e in book.entries if isinstance(e.body, Counted)] == [
        ("o", ("a", "b", "c", "d"))
    ]
