"""The owner's rules hold before anything is computed."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from polyclinic.errors import PolicyRefusal
from polyclinic.privacy.accounting.accountant import Gaussian
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.ledger.ledger import Charge, Ledger
from polyclinic.privacy.policy.policy import Policy


def test_every_fault_is_named_at_once_and_the_exit_code_is_4() -> None:
    door = ReleaseGate("north", policy=Policy(methods=("dpem",), max_epsilon_per_study=1, min_patients=50, min_sites=3))
    with pytest.raises(PolicyRefusal) as e:
        door.admit("icu", "trip", Privacy(epsilon=4.0, delta=1e-3), sites=2, patients=12)
    assert len(e.value.faults) == 5
    assert e.value.exit_code == 4
    assert "12" not in str(e.value), "the number of patients must not be quoted: this text may leave"


def test_total_budget_counts_earlier_studies() -> None:
    ledger = Ledger()
    ledger.charge(Charge("old", "dpem", 1, "s", 0, Gaussian(3.0)))
    door = ReleaseGate("north", policy=Policy(max_epsilon_total=2.0, max_epsilon_per_study=1.5), ledger=ledger)
    assert 1.4 < ledger.epsilon(1e-6) < 1.5
    with pytest.raises(PolicyRefusal, match="all studies"):
        door.admit("new", "dpem", Privacy(epsilon=1.4), sites=3, patients=10)
    door.admit("new", "dpem", Privacy(epsilon=0.5), sites=3, patients=10)


def test_re_running_a_study_is_paid_from_the_same_budget() -> None:
    ledger = Ledger()
    policy = Policy(max_epsilon_per_study=1.0)
    door = ReleaseGate("north", policy=policy, ledger=ledger)
    door.admit("icu", "dpem", Privacy(epsilon=0.8), sites=3, patients=10)
    ledger.charge(Charge("icu", "dpem", 1, "s", 0, Gaussian(7.0)))
    again = ReleaseGate("north", policy=policy, ledger=ledger)
    with pytest.raises(PolicyRefusal, match="icu"):
        again.admit("icu", "dpem", Privacy(epsilon=0.8), sites=3, patients=10)
    again.admit("icu", "dpem", Privacy(epsilon=0.8), sites=3, patients=10, resume=True)


@pytest.mark.parametrize("privacy", [None, Privacy(epsilon=1.0, level="entry", clip=1.0)])
def test_a_site_with_a_limit_takes_no_part_without_a_patient_level_bound(privacy: Any) -> None:
    with pytest.raises(PolicyRefusal, match="patient-level"):
        ReleaseGate("n", policy=Policy(max_epsilon_total=9)).admit("s", "localtf", privacy, sites=3, patients=9)
    ReleaseGate("n", policy=Policy(max_epsilon_total=9, max_exact=12)).admit("s", "localtf", privacy, 3, 9)
    ReleaseGate("n", policy=Policy()).admit("s", "localtf", privacy, sites=3, patients=9)


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(ValidationError):
        Policy(max_epsilon=3)  # type: ignore[call-arg]
