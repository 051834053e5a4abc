"""Whose records a site of one process holds, and the door through which their owners pay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from polyclinic.config import Node, Study
from polyclinic.privacy.gate.budget_holder import BudgetHolder
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.records.sites.site import Site


def owners_of(study: Study, sites: Sequence[Site], joined: Mapping[str, Sequence[str]]) -> dict[str, tuple[Node, ...]]:
    """Site -> the nodes whose patients are in it; nobody where data were generated or given. In doubt: every node."""
    nodes = {n.name: n for n in study.nodes()}
    found = {}
    for s in sites:
        names = joined.get(s.name, (s.name,))
        known = len(nodes) > 1 and all(n in nodes for n in names)
        found[s.name] = tuple(nodes[n] for n in names) if known else tuple(nodes.values())
    return found


def door_in_process(
    site: str, study: str, ledgers: Path, payers: Sequence[BudgetHolder], store: Path | None = None, run: str = ""
) -> ReleaseGate:
    """The door of a site in one process. Real records are paid from their owners' books, whatever the run folder."""
    if not payers:
        book = Ledger(ledgers / f"{site}.jsonl", site=site)
        return ReleaseGate(site, ledger=book, study=study, store=store, cohort=site, run=run)
    *others, own = payers
    return ReleaseGate(
        site,
        policy=own.policy,
        ledger=own.ledger,
        study=study,
        store=store,
        cohort=own.cohort,
        run=run,
        beside=own.beside,
        others=others,
    )
