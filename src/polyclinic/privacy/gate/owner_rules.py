"""What a hospital's own file says about privacy: sections ``[policy]`` and ``[ledger]`` of ``node.toml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from polyclinic.config import Node
from polyclinic.errors import ConfigError
from polyclinic.privacy.accounting.mechanisms import ExactNoise, Noise, RehearsalNoise
from polyclinic.privacy.gate.budget_holder import BudgetHolder
from polyclinic.privacy.gate.data_source import Claim, places_of
from polyclinic.privacy.guarantee import FORMAL
from polyclinic.privacy.ledger.balance import part_label
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.ledger.signed_head import Witness
from polyclinic.privacy.policy.policy import Policy


class LedgerRule(BaseModel):
    """``[ledger]``: where the ledger lies, and which patients pay."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str | None = Field(
        None, description="The .jsonl file. Default: next to the node file, outside what is erased."
    )
    simulated_noise_seed: int | None = Field(
        None,
        description="Only with [site] rehearsal = true: seeded noise, which protects no patient. Card and ledger say so.",
    )
    anchor: str | None = Field(
        None,
        description="Where each ledger head is also written: 'file:PATH', 'syslog' or 'none'. Default: the site's folder.",
    )
    cohort: str = Field("all", min_length=1, description="Name of the patients whose budget this is.")


def _faults(section: str, error: ValidationError, known: type[BaseModel]) -> list[str]:
    faults = []
    for f in error.errors():
        place = ".".join([section, *(str(x) for x in f["loc"])])
        detail = (
            f"; known: {', '.join(known.model_fields)}" if f["type"] == "extra_forbidden" else f" (got {f['input']!r})"
        )
        faults.append(f"{place}: {f['msg']}{detail}")
    return faults


def _read(node: Node) -> tuple[Policy, LedgerRule]:
    faults: list[str] = []
    policy, rule = Policy(), LedgerRule()
    try:
        policy = Policy.model_validate(node.policy)
    except ValidationError as e:
        faults += _faults("policy", e, Policy)
    try:
        rule = LedgerRule.model_validate(node.ledger)
    except ValidationError as e:
        faults += _faults("ledger", e, LedgerRule)
    if rule.path is not None and _erasable(node, node.path(rule.path)):
        faults.append(f"ledger.path: {rule.path!r} lies in {node.site.folder!r}, which `site erase` removes")
    if rule.anchor is not None and rule.anchor not in ("syslog", "none") and not rule.anchor.startswith("file:"):
        faults.append(f"ledger.anchor: {rule.anchor!r} is none of 'file:PATH', 'syslog', 'none'")
    if rule.simulated_noise_seed is not None and not node.site.rehearsal:
        faults.append(
            "ledger.simulated_noise_seed: whoever knows the seed subtracts the noise; refused unless [site] rehearsal = true"
        )
    if faults:
        raise ConfigError(f"node file of site {node.name!r}: wrong settings", faults=faults)
    return policy, rule


def _erasable(node: Node, path: Path) -> bool:
    """Whether a file lies in the folder that ``site erase`` removes."""
    home = node.home.resolve()
    return home != node.folder.resolve() and home in path.resolve().parents


def policy_of(node: Node) -> Policy:
    """The owner's rules; every wrong one is named.

    >>> node = Node.parse({"site": {"name": "north"}, "source": {"kind": "files"}, "policy": {"min_patients": 50}})
    >>> policy_of(node).min_patients
    50
    """
    return _read(node)[0]


def policy_between(node: Node) -> Policy:
    """The owner's rules for a study between hosts, with what holds there where the file does not say. Not in a rehearsal.

    Releases are reviewed by names, unless signed studies run by rule alone: there is nobody who would be asked. All formal studies
    together may cost as much as one may at most: without a limit, many studies over one patient would tell everything.

    >>> node = Node.parse({"site": {"name": "north"}, "source": {"kind": "files"}})
    >>> policy_of(node).review, policy_between(node).review, policy_between(node).max_epsilon_total
    ('none', 'names', 20.0)
    """
    policy = policy_of(node)
    if node.site.rehearsal:
        return policy
    values: dict[str, object] = {}
    if node.keys.get("studies", "ask") != "policy" and "review" not in node.policy:
        values["review"] = "names"
    if not policy.limited:
        values |= {"max_epsilon_total": FORMAL, "max_exact": policy.exact_a_year}
    return policy.model_copy(update=values)


def exact_floor(node: Node) -> int:
    """So many patients must be here for an exact study between hosts: what the file says, else as many as a report shows.

    Who orders a study chooses its cohort (days, ages, a first code), and could choose one patient. Not in a rehearsal.

    >>> node = Node.parse({"site": {"name": "north"}, "source": {"kind": "files"}})
    >>> exact_floor(node), exact_floor(node.model_copy(update={"policy": {"min_patients": 3}}))
    (11, 3)
    """
    policy = policy_of(node)
    return policy.min_patients if node.site.rehearsal or "min_patients" in node.policy else policy.min_cell


def ledger_of(node: Node) -> Ledger:
    """The site's ledger, next to the node file: deleting the site's folder must not delete what was spent.

    One that an earlier version began inside the folder is moved out, with its head file: a second ledger would start from
    nothing, and the first would be erased with the folder.
    """
    rule = _read(node)[1]
    if rule.path:
        return _book(node, rule, node.path(rule.path))
    current, earlier = node.path(f"{node.name}.ledger.jsonl"), node.home / "ledger.jsonl"
    if earlier.exists() and not current.exists():
        head = earlier.with_name(earlier.name + ".head")
        if head.exists():  # first: a crash between the two leaves a ledger that is still found, and whole
            head.replace(current.with_name(current.name + ".head"))
        earlier.replace(current)
    return _book(node, rule, current)


def _book(node: Node, rule: LedgerRule, path: Path) -> Ledger:
    """The book in a file. It is the one book of the node's records, unless no real patient is behind them."""
    ledger = Ledger(path, site=node.name, **_anchor(node, rule, path))
    if not node.site.rehearsal:
        disjoint = policy_of(node).cohorts_disjoint
        ledger.claim = lambda: Claim(str(path.resolve()), node.name, places_of(node), rule.cohort if disjoint else "")
    return ledger


def _anchor(node: Node, rule: LedgerRule, path: Path) -> dict[str, Any]:
    """A head elsewhere: a book that was deleted, cut or put back is then found. By default in the site's folder.

    It is called after its book: two node files of one folder share the site's folder, and one's head would say that the
    other's book was cut.
    """
    word = rule.anchor
    if word == "syslog":
        return {"syslog": True}
    if word == "none":
        return {}
    return {"anchor": node.home / f"{path.name}.anchor" if word is None else node.path(word.removeprefix("file:"))}


def noise_of(node: Node) -> Noise:
    """Where a real site's noise comes from: exact arithmetic and a secure source; seeded in a declared rehearsal only."""
    seed = _read(node)[1].simulated_noise_seed
    if seed is None:
        return ExactNoise()
    return RehearsalNoise(np.random.default_rng([seed, *node.name.encode()]))


def outbox_of(node: Node) -> Path:
    """The folder of releases that wait for the owner."""
    return node.home / "outbox"


def witness_of(node: Node) -> Witness:
    """What this site keeps of everybody's books; of its own, what others showed it."""
    return Witness(node.home / "federation" / "witness.json")


def payers_of(owners: Mapping[str, Sequence[Node]], site: str, run: str) -> tuple[BudgetHolder, ...]:
    """Who pays for what leaves a site of one process: every owner whose patients are in it.

    A node that was divided into several sites pays for each by itself, beside the others of this very run: their patients are
    others (the study says at how many sites one may be). Nothing that was spent before is forgotten, whatever the parts are called.

    Parameters
    ----------
    owners
        Site -> nodes whose patients are in it.
    site
        The one that pays.
    run
        A name that no other run has.
    """
    holders = []
    for node in owners[site]:
        policy, rule = _read(node)
        parts = [s for s, nodes in owners.items() if any(n.name == node.name for n in nodes)]
        if len(parts) == 1:
            holders.append(BudgetHolder(policy, ledger_of(node), rule.cohort))
            continue
        label = {s: part_label(run, s) for s in parts}
        undivided = policy.model_copy(update={"cohorts_disjoint": False})  # the owner speaks of other cohorts
        holders.append(
            BudgetHolder(undivided, ledger_of(node), label[site], tuple(v for s, v in label.items() if s != site))
        )
    return tuple(holders)
