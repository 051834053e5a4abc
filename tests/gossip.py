"""What a coordinator's signs of life carry between the sites about their books, for tests that ask the sites themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polyclinic.node.messages import Ping, seal_ask, tree_of
from polyclinic.privacy.ledger.rollback_check import Relay
from polyclinic.privacy.ledger.signed_head import Witness
from polyclinic.protocol.wire import encoding as wire


def gossip(order: Any, identity: Any, desks: dict[str, Any], folder: Path) -> None:
    """Everybody tells everybody what they know of their books."""
    keys = {n: bytes.fromhex(k) for n, k in order.keys.items()}
    relay = Relay(order.digest, keys, Witness(folder / "witness.json"))
    for _ in range(3):
        for site, desk in desks.items():
            ask = tree_of(Ping(books=relay.bundle(site)))
            answer = wire.decode(desk.answer(seal_ask(identity, order.digest, site, "gossip", ask)))
            if isinstance(answer.get("books"), bytes):
                relay.heard(site, answer["books"])
