"""The release gate of a hospital as its node file describes it, for tests of one release."""

from __future__ import annotations

from polyclinic.config import Node
from polyclinic.privacy.accounting.mechanisms import SimulatedNoise
from polyclinic.privacy.gate.gate import ReleaseGate, Waits
from polyclinic.privacy.gate.owner_rules import LedgerRule, ledger_of, noise_of, outbox_of, policy_of


def door_of(node: Node, *, study: str = "", exact: bool = True, wait: float = 0.0) -> ReleaseGate:
    """The gate of a site: its policy, its ledger, exact noise, stored releases and outbox."""
    return ReleaseGate(
        node.name,
        policy=policy_of(node),
        ledger=ledger_of(node),
        noise=noise_of(node) if exact else SimulatedNoise(),
        study=study,
        store=node.home / "releases",
        outbox=outbox_of(node),
        cohort=LedgerRule.model_validate(node.ledger).cohort,
        waits=Waits(decision=wait),
    )
