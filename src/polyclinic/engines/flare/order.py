"""An order: a study as the coordinator signed it, with its roster. It names a method and parameters, never code."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from polyclinic import __version__
from polyclinic.errors import ConfigError, MessageRefused, PolicyRefusal
from polyclinic.federation.envelope import Identity, digest
from polyclinic.federation.protocol import Roster, least_threshold
from polyclinic.federation.sums import SECURE
from polyclinic.study import Study
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.codelist import public_axis

__all__ = ["COORDINATOR", "Order", "host", "make_order", "read_order"]

COORDINATOR: Final = "coordinator"
LIMIT: Final = 16 * 2**20  # bytes of an order: vocabularies travel in it
ALIGNMENTS: Final = ("ring", "union")
ASYNCHRONOUS: Final = ("dpfact", "localtf")
LOCAL: Final = ("site", "sites", "data")  # sections of a simulation; between hosts every site brings its own node


@dataclass(frozen=True)
class Order:
    """What is asked, of whom, under which rules; everything here is covered by the coordinator's signature."""

    id: str
    study: Mapping[str, Any]
    files: Mapping[str, str]  # public vocabularies that the study names: file name -> text
    keys: Mapping[str, str]  # verification keys of sites and coordinator, hexadecimal
    quorum: int
    deadline: float
    edges: tuple[tuple[str, str], ...] = ()
    staleness: int | None = None
    per_site: int = 1  # nodes that each site hosts
    polyclinic: str = __version__
    signature: str = field(default="", compare=False)

    @property
    def sites(self) -> tuple[str, ...]:
        """Sites, by name."""
        return tuple(sorted(n for n in self.keys if n != COORDINATOR))

    @property
    def aggregation(self) -> str:
        """How contributions are added."""
        return str(self.study["method"].get("aggregation", "plain"))

    @property
    def alignment(self) -> str | None:
        """How the sites agree on codes before the first sum; None where every mode has a public list."""
        rule = self.study.get("tensor") or {}
        open_ = [m for m in rule.get("modes", ()) if m not in rule.get("vocabulary", {})]
        return str(rule["alignment"]) if open_ and rule.get("alignment") in ALIGNMENTS else None

    def body(self) -> dict[str, Any]:
        """What is signed."""
        return {k: v for k, v in asdict(self).items() if k != "signature"}

    def nodes(self, sites: Iterable[str]) -> tuple[str, ...]:
        """Nodes of the sum: the sites themselves, or those that they host (``north.00``, ``north.01`` ...)."""
        hosts = sorted({host(s) for s in sites})
        return tuple(f"{s}.{i:02d}" for s in hosts for i in range(self.per_site)) if self.per_site > 1 else tuple(hosts)

    def roster(self, sites: Iterable[str], attempt: int) -> Roster:
        """The pinned roster of one attempt; ``sites`` may leave out who refused. A hosted node has its host's key."""
        star = self.aggregation not in ("subspace", "cycle")
        nodes = self.nodes(sites)
        here = set(nodes)
        edges = frozenset((a, b) for a, b in self.edges if a in here and b in here)
        names = (*nodes, *((COORDINATOR,) if star else ()))
        return Roster(
            nodes,
            COORDINATOR if star else None,
            edges,
            threshold=self.least if star else len(nodes),
            attempt=attempt,
            keys={n: bytes.fromhex(self.keys[host(n)]) for n in names},
        )

    @property
    def least(self) -> int:
        """Sites that every sum needs: the quorum, and in a secure sum never below what hides a site, whatever was ordered."""
        return max(self.quorum, least_threshold(len(self.sites))) if self.aggregation in SECURE else self.quorum

    def parsed(self, folder: Path) -> Study:
        """The study, with its vocabularies laid out in ``folder``."""
        for name, text in self.files.items():
            path = folder / Path(name).name  # never a path of the sender's
            path.write_text(text, encoding="utf-8")
        return Study.parse(self.study, where=f"study {self.id}", folder=folder)

    def axis(self, mode: str) -> Axis:
        """The axis of a mode with a public list, as the order carries it: labels and names of no hospital."""
        name = str(self.study["tensor"]["vocabulary"][mode])
        return public_axis(mode, self.files[name], name)

    def encode(self) -> str:
        """One line of text."""
        return base64.b64encode(json.dumps({**self.body(), "signature": self.signature}).encode()).decode()


def host(node: str) -> str:
    """The site that hosts a node; a site's own name has no dot.

    >>> host("north.07"), host("north")
    ('north', 'north')
    """
    return node.partition(".")[0]


def make_order(study: Study, id: str, keys: Mapping[str, str], identity: Identity) -> Order:
    """Sign a study for a roster.

    Parameters
    ----------
    keys
        Verification keys of the sites that are asked, hexadecimal.
    """
    values = {k: v for k, v in study.to_json().items() if k not in LOCAL}
    files: dict[str, str] = {}

    def carry(place: dict[str, Any], key: str, name: str) -> None:
        path = study.path(place[key])
        if not path.is_file():
            raise ConfigError(f"study {study.name!r}: {path} is not there", hint="a study carries the files it names")
        files[name] = path.read_text(encoding="utf-8")
        place[key] = name

    rule = values.get("tensor")
    if rule is not None:
        for kind in dict(rule.get("vocabulary", {})):
            carry(rule["vocabulary"], kind, f"{kind}.csv")
        if rule.get("ranges"):
            carry(rule, "ranges", "ranges.csv")
        for kind, how in values.get("codes", {}).items():
            if str(how.get("to", "")).endswith(".csv"):
                carry(how, "to", f"groups-{kind}.csv")
        missing = [m for m in rule["modes"] if m not in rule.get("vocabulary", {})]
        how = rule.get("alignment")
        if missing and how not in ALIGNMENTS:
            raise ConfigError(
                f"study {study.name!r}: no public vocabulary of {', '.join(missing)}",
                hint="[tensor] vocabulary = {mode = 'codes.csv'}; or alignment = 'ring': the sites agree on codes in secret",
            )
        if missing and (study.privacy is not None or study.study.nodes_per_site > 1):
            raise ConfigError(
                f"study {study.name!r}: alignment = {how!r} with [privacy] or nodes_per_site",
                hint="which codes occur at a site is data, too, and no bound covers it: give public lists",
            )
    names = tuple(sorted(keys))
    adder = str(study.chosen().parameters.get("aggregation", "plain"))
    edges: tuple[tuple[str, str], ...] = ()
    per_site = study.study.nodes_per_site
    if per_site > 1 and (adder != "subspace" or study.privacy is not None):
        raise ConfigError(
            f"study {study.name!r}: nodes_per_site is for aggregation = 'subspace' without [privacy]",
            hint="a site's own sum is better protected than its nodes' letters",
        )
    if adder in ("subspace", "cycle"):
        from polyclinic.federation.fold import roster_for
        from polyclinic.federation.sums import by_name

        hosted = [f"{n}.{i:02d}" for n in names for i in range(per_site)] if per_site > 1 else list(names)
        edges = tuple(sorted(roster_for(by_name(adder), hosted).edges))
    quorum = study.study.quorum or len(names)
    if adder in SECURE:
        quorum = max(quorum, least_threshold(len(names)))
    if quorum > len(names):
        raise ConfigError(
            f"every sum needs {quorum} sites, and the roster has {len(names)}",
            hint="lower [study] quorum, or approve more sites; secure sums need at least 3",
        )
    staleness = study.study.staleness
    if staleness is not None and (adder != "plain" or study.chosen().name.lower() not in ASYNCHRONOUS):
        raise ConfigError(
            f"study {study.name!r}: staleness is for {' and '.join(ASYNCHRONOUS)} with aggregation = 'plain' only",
            hint="a secure sum needs everybody at the same round",
        )
    order = Order(
        id,
        values,
        files,
        {**keys, COORDINATOR: identity.public.hex()},
        quorum,
        study.study.deadline,
        edges,
        staleness,
        per_site,
    )
    return Order(**{**order.body(), "edges": edges, "signature": identity.sign(_digest(order)).hex()})


def _digest(order: Order) -> bytes:
    return digest(["polyclinic order 1", json.dumps(order.body(), sort_keys=True)])


def read_order(text: str, coordinator: bytes) -> Order:
    """The order, if the pinned coordinator signed exactly this; refused otherwise."""
    if len(text) > LIMIT:
        raise MessageRefused(f"an order of {len(text):,} characters exceeds the limit of {LIMIT:,}")
    try:
        value = json.loads(base64.b64decode(text, validate=True))
        value["edges"] = tuple((str(a), str(b)) for a, b in value["edges"])
        order = Order(**value)
        Ed25519PublicKey.from_public_bytes(coordinator).verify(bytes.fromhex(order.signature), _digest(order))
    except InvalidSignature:
        raise PolicyRefusal(
            "the study was not signed by the coordinator that this site joined",
            hint="somebody forged it, or the coordinator has a new key: compare fingerprints and join again",
        ) from None
    except (ValueError, TypeError, KeyError) as e:
        raise MessageRefused(f"not an order ({type(e).__name__})") from None
    return order
