"""Where a dossier's statements come from: the signed order or the study file, the owner's policy, the ledger, the run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import Field

from polyclinic.config import Node, Study
from polyclinic.config.toml import TomlFile, TomlSection
from polyclinic.errors import ConfigError, PolyclinicError
from polyclinic.node.signed_study import COORDINATOR, StudyOrder, read_order
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.card.card import Card, make_card
from polyclinic.privacy.card.release_history import ReleaseHistory
from polyclinic.privacy.facts import AggregatorFacts, MethodFacts
from polyclinic.privacy.gate.owner_rules import ledger_of, policy_of
from polyclinic.privacy.ledger.entries import Entry
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.policy.policy import Policy
from polyclinic.protocol.aggregators import facts_of
from polyclinic.protocol.interfaces import Method
from polyclinic.studies import registry
from polyclinic.studies.run_folder import RunFolder


class Institution(TomlSection):
    """What no file of a study knows; every key is optional, and what is left out gets a place to write."""

    controller: str = Field("", description="Who decides on purposes and means: name and address.")
    representative: str = Field("", description="Representative or joint controllers, with contacts.")
    officer: str = Field("", description="Data protection officer, with contact.")
    investigator: str = Field("", description="Principal investigator.")
    legal_basis: str = Field("", description="Legal basis: articles, law, consent, waiver.")
    transfers: str = Field("", description="Transfers to third countries and their safeguards.")
    organisation: str = Field("", description="Organisational measures: who has access, training, contracts.")
    necessity: str = Field("", description="Why the purpose cannot be reached with less.")
    views: str = Field("", description="Views of patients or their representatives, of the officer, of the board.")
    expert: str = Field("", description="The expert and the methods of the determination.")


class ByHand(TomlFile):
    """``--facts FILE``: ``[institution]``, what only people know."""

    institution: Institution = Institution()


@dataclass(frozen=True, eq=False)
class Book:
    """One site's ledger, as far as this study is concerned."""

    site: str
    ledger: Ledger
    run: str | None  # digest of the order; None: by the name of the study

    def lines(self, study: str) -> tuple[Entry, ...]:
        """Lines about this study, the owner's rules and the ledger's keys among them."""
        return tuple(e for e in self.ledger.entries if self._about(e, study))

    def _about(self, e: Entry, study: str) -> bool:
        if e.kind in ("began", "key", "policy", "gap", "note"):
            return True
        told = vars(e.body)
        if self.run is None:
            return study in (told.get("study"), told.get("order"))
        return self.run in (told.get("order"), told.get("run"))

    @cached_property
    def faults(self) -> tuple[str, ...]:
        """Lines that do not hold together."""
        return self.ledger.verify()


@dataclass(frozen=True, eq=False)
class Sources:
    """Everything that was found for one study."""

    study: Mapping[str, Any]
    order: StudyOrder | None = None
    node: Node | None = None
    policy: Policy | None = None
    books: tuple[Book, ...] = ()
    run: RunFolder | None = None
    by_hand: Institution = field(default_factory=Institution)
    named: tuple[str, ...] = ()  # sites, where no order lists them
    files: Path | None = None  # where the study's lists of codes lie, without an order

    @property
    def name(self) -> str:
        """Name of the study."""
        return str(self.study["study"]["name"])

    @property
    def sites(self) -> tuple[str, ...]:
        """Who takes part, as far as it is known."""
        return self.order.sites if self.order is not None else self.named

    @cached_property
    def method(self) -> Any:
        """The method with its parameters."""
        with TemporaryDirectory() as place:
            if self.order is not None:
                study = self.order.parsed(Path(place))
            else:
                study = Study.parse(self.study, folder=self.files)
            try:
                return registry.ordered(study)  # what runs between hospitals, the count of patients per code included
            except ConfigError:  # it needs pooled data
                return registry.make(study)

    @property
    def facts(self) -> MethodFacts:
        """What the method says of itself."""
        return self.method.facts if isinstance(self.method, Method) else MethodFacts()

    @property
    def adder(self) -> AggregatorFacts:
        """The way to add."""
        return facts_of(str(self.study["method"].get("aggregation", "plain")))

    @property
    def asked(self) -> Privacy | None:
        """What the study asks for."""
        value = self.study.get("privacy")
        return Privacy(**value) if value else None

    @cached_property
    def card(self) -> Card | None:
        """The card of the run, or of this site's lines; None before anything was released."""
        if self.run is not None and (self.run.path / "outcome.json").is_file():
            return Card.from_dict(self.run.read_json(self.run.path / "outcome.json")["privacy"])
        charges = [e.charge for b in self.books for e in b.lines(self.name) if e.charge is not None]
        if not charges:
            return None
        axes = () if self.order is None else tuple(self.order.axis(m) for m in self._public())
        rounds = len({(c.number, c.round, c.step) for c in charges})
        return make_card(self.facts, ReleaseHistory(charges[0].method, tuple(charges), rounds, axes, self.asked))

    def _public(self) -> list[str]:
        tensor = dict(self.study.get("tensor") or {})
        return [m for m in tensor.get("modes", ()) if m in tensor.get("vocabulary", {})]

    def json(self, name: str) -> dict[str, Any]:
        """A file of the run folder, or nothing."""
        path = None if self.run is None else self.run.path / name
        if path is None or not path.is_file():
            return {}
        value = json.loads(path.read_text(encoding="utf-8"))
        return value if isinstance(value, dict) else {}

    def digests(self) -> dict[str, str]:
        """What ties the dossier to its sources."""
        made = {"study": _sha(json.dumps(dict(self.study), sort_keys=True, separators=(",", ":")).encode())}
        if self.order is not None:
            made |= {
                "order": self.order.digest,
                "coordinator_key": self.order.keys[COORDINATOR],
                "coordinator_signature": self.order.signature,
            }
        if self.policy is not None:
            made["policy"] = _sha(self.policy.model_dump_json().encode())
        for b in self.books:
            head = b.ledger.head
            made[f"ledger_{b.site}"] = f"{head.count} lines, {head.hash}"
            if head.key:
                made[f"ledger_{b.site}_key"] = head.key
        if self.run is not None:
            for file in [*sorted(self.run.path.glob("model.*")), self.run.path / "metrics.json"]:
                if file.is_file():
                    made[file.name] = _sha(file.read_bytes())
        return made


def gather(target: str, *, node: Path | None = None, facts: Path | None = None) -> Sources:
    """Find everything about a study.

    Parameters
    ----------
    target
        A study file, a run folder, or (with ``node``) the name or the digest of a study that was asked of this site.
    node
        The hospital's own file: its policy, its retention and its ledger are then part of the dossier.
    facts
        A file with ``[institution]``: what only people know.
    """
    hand = ByHand.read(facts).institution if facts is not None else Institution()
    owner = None if node is None else Node.read(node)
    path = Path(target)
    if path.is_dir():
        made = _of_run(RunFolder(path), owner)
    elif path.suffix == ".toml" and path.is_file():
        made = _of_file(path, owner)
    elif node is not None and owner is not None:
        made = _of_site(target, node)
    else:
        raise ConfigError(
            f"{target}: neither a study file (.toml) nor a run folder",
            hint="at a site name the study and the node file: polyclinic dossier STUDY --node node.toml",
        )
    policy = None if owner is None else policy_of(owner)
    return Sources(**{**vars(made), "node": owner, "policy": policy, "by_hand": hand})


def _of_file(path: Path, owner: Node | None) -> Sources:
    study = Study.read(path)
    names = tuple(n.name for n in study.nodes()) if study.site or study.sites else ()
    made = Sources(study.to_json(), named=names, files=study.folder)
    return made if owner is None else Sources(**{**vars(made), "books": _books(owner, None)})


def _of_run(run: RunFolder, owner: Node | None) -> Sources:
    told = run.read_json(run.study)
    order = None
    if (run.path / "order.json").is_file():
        text = str(run.read_json(run.path / "order.json")["order"])
        order = _own(text, run.path)
    books = tuple(Book(p.stem, Ledger(p, site=p.stem), None) for p in sorted(run.ledgers.glob("*.jsonl")))
    if owner is not None:
        books = _books(owner, None if order is None else order.digest)
    study = dict(order.study) if order is not None else dict(told["study"])
    sites = tuple(s if isinstance(s, str) else str(s["name"]) for s in told.get("sites", ()))
    return Sources(study, order, books=books, run=run, named=sites, files=run.path)


def _own(text: str, place: Path) -> StudyOrder:
    """The order of a run folder: signed by the key that it names; at the coordinator also by the coordinator's own."""
    import base64

    own = place.parent.parent / "identity.key"
    try:
        named = bytes.fromhex(json.loads(base64.b64decode(text))["keys"][COORDINATOR])
    except (ValueError, KeyError, TypeError) as e:
        raise ConfigError(f"{place / 'order.json'}: not an order ({type(e).__name__})") from None
    if own.is_file():
        from polyclinic.protocol.wire.sealed import Identity

        named = Identity.from_bytes(COORDINATOR, own.read_bytes()).public
    return read_order(text, named)


def _of_site(name: str, node: Path) -> Sources:
    from polyclinic.node.admission.admission import asked
    from polyclinic.node.enrolment.folders import SiteFolder

    folder = SiteFolder.of(node)
    try:
        known = asked(folder)
    except PolyclinicError as e:
        raise ConfigError(f"{name!r}: no study is known here ({e.what})", hint=e.hint) from None
    fits = [
        o
        for o in known
        if name in (o.id, str(o.study["study"]["name"])) or (len(name) >= 8 and o.digest.startswith(name))
    ]
    if len(fits) != 1:
        raise ConfigError(
            f"{len(fits)} studies are called {name!r} here",
            faults=[f"asked: {', '.join(f'{o.id} ({o.digest[:12]})' for o in known) or 'nothing yet'}"],
            hint="the digest in brackets names one order",
        )
    (order,) = fits
    return Sources(dict(order.study), order, books=_books(folder.node, order.digest))


def _books(owner: Node, run: str | None) -> tuple[Book, ...]:
    ledger = ledger_of(owner)
    return (Book(owner.name, ledger, run),) if ledger.path is not None and ledger.path.exists() else ()


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
