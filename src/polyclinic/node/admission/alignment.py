"""Agreeing on codes before the first sum, between hosts: both halves of it, as mailboxes that the two ends of a study drive.

A study whose modes have no public list says how: ``[tensor] alignment = "ring"`` (nobody learns a code, see
``polyclinic.alignment.ecdh_ring``) or ``"union"`` (every site shows its list of codes to all; the owner must allow it)::

    codes     site -> coordinator     union: its list of codes, in the clear
    common    coordinator -> site     union: the union of all
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, cast

from polyclinic.alignment.ecdh_ring import MOST, RingCoordinator, RingSite, place, step_of
from polyclinic.alignment.union import to_axes, union
from polyclinic.node.admission.admission import setting_tree
from polyclinic.node.signed_study import COORDINATOR, StudyOrder
from polyclinic.node.site.context import SiteContext
from polyclinic.protocol.interfaces import Exchange, Message, Roster, Total
from polyclinic.protocol.wire.sealed import Identity, Party, SealedMessage, digest
from polyclinic.tensors.axis import Axis

Handlers = Mapping[str, Callable[[str, dict[str, object]], list[Message]]]


class Modes:
    """One mailbox for the exchanges of several modes."""

    def __init__(self, parts: Mapping[str, Exchange]) -> None:
        self.parts = parts

    def start(self) -> list[Message]:
        return [m for part in self.parts.values() for m in part.start()]

    def receive(self, message: Message) -> list[Message]:
        return self.parts[message.step.removeprefix("align ")].receive(message)

    def deadline(self) -> list[Message]:
        return [m for part in self.parts.values() for m in part.deadline()]

    def result(self) -> Total | Literal["pending", "done", "aborted"]:
        found = {part.result() for part in self.parts.values()}
        return "aborted" if "aborted" in found else "pending" if "pending" in found else "done"


class _Union(Party):
    """One end of the union of a mode: a site that shows its axis, or (without one) the coordinator."""

    def __init__(self, envelope: SealedMessage, axis: Axis | None = None) -> None:
        super().__init__(envelope)
        self.axis, self.lists = axis, dict[str, Axis]()

    def start(self) -> list[Message]:
        return [] if self.axis is None else [self.envelope.seal(COORDINATOR, "codes", {"axis": self.axis.to_json()})]

    def handlers(self) -> Handlers:
        return {"codes": self._codes} if self.me == COORDINATOR else {"common": self._common}

    def _codes(self, sender: str, body: dict[str, Any]) -> list[Message]:
        self.lists[sender] = Axis.from_json(body["axis"])
        if len(self.lists) < len(self.roster.sites):
            return []
        self._result = "done"
        common = union([self.lists[s] for s in self.roster.sites]).to_json()
        return [self.envelope.seal(s, "common", {"axis": common}) for s in self.roster.sites]

    def _common(self, sender: str, body: dict[str, Any]) -> list[Message]:
        self.axis, self._result = Axis.from_json(body["axis"]), "done"
        return []

    def deadline(self) -> list[Message]:
        self._result = "aborted" if self._result == "pending" else self._result
        return []


def office(order: StudyOrder, roster: Roster, identity: Identity) -> Modes:
    """The coordinator's side; on the ring it sees no code."""
    kind = RingCoordinator if order.alignment == "ring" else _Union
    return Modes({m: kind(SealedMessage(COORDINATOR, roster, step_of(m), identity)) for m in order.unlisted})


class SiteAligner:
    """A hospital's half; ``most``: the longest list that it sends or helps on (the owner's ``max_codes``)."""

    def __init__(self, order: StudyOrder, identity: Identity, most: int = MOST) -> None:
        self.order, self.identity, self.most = order, identity, most

    def side(self, context: SiteContext, roster: Roster) -> Modes:
        """The site's mailbox, on its own codes."""
        made: dict[str, Exchange] = {}
        for axis in context.site.counts().axes[1:]:
            if axis.name in self.order.unlisted:
                envelope = SealedMessage(self.identity.name, roster, step_of(axis.name), self.identity)
                ring = self.order.alignment == "ring"
                codes = axis.labels or ()
                made[axis.name] = (
                    RingSite(envelope, axis.name, codes, most=self.most) if ring else _Union(envelope, axis)
                )
        return Modes(made)

    def agreed(self, side: Exchange, attempt: int) -> dict[str, object]:
        """Which code stands where: the owner's; or the common lists."""
        found: dict[str, Any] = {}
        marks: dict[str, bytes] = {}
        for mode, part in cast(Modes, side).parts.items():
            if isinstance(part, RingSite):
                found[mode] = {"size": part.size, "places": part.places}
                marks[mode] = part.agreement
            elif isinstance(part, _Union) and part.axis is not None:
                found[mode] = part.axis.to_json()
        which = digest([self.order.alignment, attempt, marks]).hex()
        return {"how": self.order.alignment, "attempt": attempt, "agreed": found, "which": which}

    def apply(self, agreed: Mapping[str, Any], context: SiteContext) -> SiteContext:
        """The site on the common codes.

        Two agreements of the same size look alike, so the setting says which one this is, and with it the chain of the study: sites
        that were told different places share no sum.
        """
        site, found = context.site, agreed["agreed"]
        tensor = site.counts()
        if agreed["how"] == "union":
            site = to_axes(site, [Axis.from_json(found[a.name]) if a.name in found else None for a in tensor.axes[1:]])
        else:
            for n, a in enumerate(tensor.axes):
                if a.name in found:
                    places = {str(k): int(v) for k, v in found[a.name]["places"].items()}
                    tensor = place(tensor, n, places, int(found[a.name]["size"]))
            site = replace(site, tensor=tensor)
        hidden = agreed["how"] == "ring"  # the names are the site's own codes: others see places
        axes = [replace(a, names=None) if hidden and a.vocabulary == "data" else a for a in site.counts().axes[1:]]
        setting = {**setting_tree(site, axes), "alignment": agreed.get("which", agreed["attempt"])}
        return replace(context, site=site, setting=setting)
