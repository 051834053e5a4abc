"""Agreeing on codes before the first sum, between hosts: both halves of it.

A study whose modes have no public list says how: ``[tensor] alignment = "ring"`` (nobody learns a code, see
``polyclinic.alignment.ring``) or ``"union"`` (every site shows its list of codes to all; the owner must allow it).

    start    coordinator -> sites   who takes part; ring: lists travel from site to site, sealed
    tags     coordinator -> sites   ring: the finished tags; union: the list itself
    places   coordinator -> site    ring: where each of its own codes stands; union: the common list
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from polyclinic.alignment.ring import MOST, RingCoordinator, RingSite, place, step_of
from polyclinic.alignment.union import to_axes, union
from polyclinic.engines.flare.admission import Admission, hosted, setting_tree
from polyclinic.engines.flare.folders import SiteFolder, append_event, read_json, write_json
from polyclinic.engines.flare.order import COORDINATOR, Order
from polyclinic.errors import MessageRefused, PeerLost
from polyclinic.federation import wire
from polyclinic.federation.envelope import Envelope
from polyclinic.federation.protocol import Message, Roster
from polyclinic.privacy.owner import policy_of
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.site import Site

if TYPE_CHECKING:
    from polyclinic.engines.flare.lead import Lead

__all__ = ["SiteAlignment", "agree_on_codes"]

ATTEMPTS: Final = 5
EARLY: Final = 1024  # letters of neighbours kept before this site was asked to start


def _roster(order: Order, sites: Sequence[str], attempt: int) -> Roster:
    names = tuple(sorted(sites))
    keys = {n: bytes.fromhex(order.keys[n]) for n in (*names, COORDINATOR)}
    return Roster(names, COORDINATOR, threshold=len(names), attempt=attempt, keys=keys)


class SiteAlignment:
    """A hospital's half. What it has agreed on is kept in the study's folder, so that a restart changes nothing."""

    def __init__(self, order: Order, folder: SiteFolder, send: Callable[[list[Message]], Any]) -> None:
        self.order, self.folder, self._send = order, folder, send
        self.me = folder.node.name
        self._rings: dict[str, RingSite] = {}  # by mode
        self._tags: dict[str, Message] = {}
        self._early: deque[Message] = deque(maxlen=EARLY)
        self._lock = threading.RLock()
        self._moved = threading.Condition(self._lock)
        self._attempt = -1
        self._own: Admission | None = None  # the site on its own codes

    @property
    def _file(self) -> Path:
        return self.folder.study(self.order.digest) / "codes.json"  # the owner's: which code stands where

    def mine(self, m: Message) -> bool:
        """Whether a letter belongs to the alignment."""
        return m.step.startswith("align ")

    def put(self, m: Message) -> None:
        """A letter of a neighbour; one that comes before this site has started is kept."""
        with self._moved:
            if m.attempt != self._attempt:
                self._early.append(m)
                return
            out = self._receive(m)
            self._moved.notify_all()
        self._send(out)

    def _receive(self, m: Message) -> list[Message]:
        ring = self._rings.get(m.step.removeprefix("align "))
        out = [] if ring is None else ring.receive(m)
        for x in out:
            if x.to == COORDINATOR:
                self._tags[x.step.removeprefix("align ")] = x
        return [x for x in out if x.to != COORDINATOR]

    def answer(self, ask: Mapping[str, Any], protocol: str) -> tuple[dict[str, Any], Admission | None]:
        """One ask of the coordinator; after the last the site stands on the common codes."""
        phase, made = ask["phase"], self._own
        if made is None:
            raise MessageRefused(f"site {self.me!r} has nothing to align in study {self.order.id!r}")
        site = next(iter(made.sites.values()))
        modes = [a.name for a in site.counts().axes[1:] if a.vocabulary == "data"]
        if phase == "start":
            return self._start(ask, site, modes), None
        if int(ask["attempt"]) != self._attempt:
            return {"state": "lost"}, None
        if phase == "tags":
            return self._wait(site, modes, protocol), None
        if phase == "places":
            return self._finish(ask, made, site, modes, protocol)
        raise MessageRefused(f"unknown phase {phase!r} of the alignment")

    def _start(self, ask: Mapping[str, Any], site: Site, modes: list[str]) -> dict[str, Any]:
        sites = tuple(str(s) for s in ask["sites"])
        least = max(2, self.order.quorum, policy_of(self.folder.node).min_sites)
        if self.me not in sites or not set(sites) <= set(self.order.sites) or len(sites) < least:
            raise MessageRefused(f"an alignment of {len(sites)} sites, of which the order knows not all, or too few")
        most = int(self.folder.node.keys.get("max_codes", MOST))
        with self._moved:
            self._attempt, self._tags, self._rings = int(ask["attempt"]), {}, {}
            out: list[Message] = []
            if self.order.alignment == "ring":
                roster = _roster(self.order, sites, self._attempt)
                for mode in modes:
                    codes = _axis(site, mode).labels or ()
                    envelope = Envelope(self.me, roster, step_of(mode), self.folder.identity())
                    self._rings[mode] = RingSite(envelope, mode, codes, most=most)
                    out += self._rings[mode].start()
            early, self._early = [m for m in self._early if m.attempt == self._attempt], deque(maxlen=EARLY)
            for m in early:
                out += self._receive(m)
        self._send(out)
        counts = {m: len(_axis(site, m).labels or ()) for m in modes}
        append_event(self.folder.events, event="aligning", study=self.order.id, how=self.order.alignment, codes=counts)
        return {"state": "done"}

    def _wait(self, site: Site, modes: list[str], protocol: str) -> dict[str, Any]:
        """Ring: wait until every list has come home. Union: the lists, which the owner allowed to show."""
        if self.order.alignment == "union":
            return {"state": "done", "axes": [_axis(site, m).to_json() for m in modes]}
        end = time.monotonic() + self.order.deadline
        with self._moved:
            while len(self._tags) < len(modes):
                left = end - time.monotonic()
                if left <= 0:
                    return {"state": "lost"}
                self._moved.wait(left)
            return {"state": "done", "mail": [wire.encode_message(self._tags[m], protocol) for m in modes]}

    def _finish(
        self, ask: Mapping[str, Any], made: Admission, site: Site, modes: list[str], protocol: str
    ) -> tuple[dict[str, Any], Admission]:
        agreed: dict[str, Any] = {}
        if self.order.alignment == "union":
            agreed = {m: Axis.from_json(a).to_json() for m, a in zip(modes, ask["axes"], strict=True)}
        else:
            with self._lock:
                for raw in ask["letters"]:
                    self._receive(wire.decode_message(bytes(raw), protocol))
                waiting = [m for m in modes if self._rings[m].result() != "done"]
                if waiting:
                    raise MessageRefused(f"no places of {', '.join(waiting)} came")
                agreed = {m: {"size": self._rings[m].size, "places": self._rings[m].places} for m in modes}
                self._rings, self._tags = {}, {}
        value = {"how": self.order.alignment, "attempt": self._attempt, "agreed": agreed}
        after = self._apply(value, made)
        write_json(self._file, value)
        append_event(self.folder.events, event="aligned", study=self.order.id)
        return {"state": "done"}, after

    def kept(self, made: Admission) -> Admission:
        """The site on the codes that it agreed on before, if it did; otherwise as it is, with its own codes."""
        self._own = made
        return self._apply(read_json(self._file), made) if self._file.exists() else made

    def _apply(self, value: Mapping[str, Any], made: Admission) -> Admission:
        site = next(iter(made.sites.values()))
        tensor = site.counts()
        if value["how"] == "union":
            axes = [Axis.from_json(value["agreed"][a.name]) if a.name in value["agreed"] else None for a in tensor.axes]
            site = to_axes(site, axes[1:])
        else:
            for n, a in enumerate(tensor.axes):
                if a.name in value["agreed"]:
                    one = value["agreed"][a.name]
                    tensor = place(tensor, n, {str(k): int(v) for k, v in one["places"].items()}, int(one["size"]))
            site = replace(site, tensor=tensor)
        public = [_nameless(a) if value["how"] == "ring" else a for a in site.counts().axes[1:]]
        # two agreements of the same size look alike, so the setting says which one this is
        setting = {**setting_tree(site, public), "alignment": int(value["attempt"])}
        return replace(made, sites=hosted(site, tuple(made.sites)), setting=setting)


def _axis(site: Site, mode: str) -> Axis:
    return next(a for a in site.counts().axes[1:] if a.name == mode)


def _nameless(axis: Axis) -> Axis:
    """What the coordinator may see of an axis of the ring: places. The names are the site's own codes."""
    return replace(axis, names=None) if axis.vocabulary == "data" else axis


def agree_on_codes(lead: Lead) -> None:
    """The coordinator's half: bring all sites that are ready onto common codes, unless they are; it sees no code on the ring."""
    sites = lead._ready()
    marks = {(lead.pulse.last(s).get("setting") or {}).get("alignment") for s in sites}
    if (lead.folder / "state.ckpt").exists() or (len(marks) == 1 and None not in marks):
        return  # a sum was taken on these codes: nobody changes them any more
    order = lead.order
    if len(sites) < 2:
        raise PeerLost(f"study {order.id!r}: {len(sites)} site is ready; agreeing on codes needs two")
    failed: list[str] = []
    for n in range(ATTEMPTS):
        attempt = time.time_ns() // 1_000_000 + n  # never used before, also after a restart
        failed = _attempt(lead, sites, {"what": "align", "attempt": attempt})
        if not failed:
            append_event(lead.events, event="aligned", how=order.alignment, sites=list(sites))
            lead.pulse.look(sites)
            return
        append_event(lead.events, event="alignment failed", attempt=n, sites=failed)
        lead._check_stop()
    raise PeerLost(
        f"study {order.id!r}: the sites could not agree on codes in {ATTEMPTS} attempts",
        faults=[f"{s!r} did not answer in time" for s in failed],
        hint="wait for them and resume: polyclinic coordinator resume",
    )


def _attempt(lead: Lead, sites: tuple[str, ...], common: dict[str, Any]) -> list[str]:
    """One attempt with all sites; returns those that failed."""
    answers: Mapping[str, Mapping[str, Any]] = {}
    for ask in ({"phase": "start", "sites": list(sites)}, {"phase": "tags"}):
        answers = lead._all(sites, {**common, **ask})
        failed = [s for s, a in answers.items() if a["state"] != "done"]
        if failed:
            return failed
    ring = lead.order.alignment == "ring"
    letters = _ring(lead, answers, common["attempt"]) if ring else _union(answers)
    done = {s: lead._all((s,), {**common, "phase": "places", **letters[s]})[s] for s in sites}
    return [s for s, a in done.items() if a["state"] != "done"]


def _ring(lead: Lead, answers: Mapping[str, Mapping[str, Any]], attempt: int) -> dict[str, dict[str, Any]]:
    roster, protocol = _roster(lead.order, tuple(answers), attempt), lead._protocol
    desks: dict[str, RingCoordinator] = {}
    out: dict[str, list[bytes]] = {s: [] for s in answers}
    for s in sorted(answers):
        for raw in answers[s]["mail"]:
            m = wire.decode_message(bytes(raw), protocol)
            if m.sender != s:
                raise MessageRefused(f"{s!r} sent a letter under the name of {m.sender!r}")
            mode = m.step.removeprefix("align ")
            if mode not in desks:
                desks[mode] = RingCoordinator(Envelope(COORDINATOR, roster, step_of(mode), lead.identity))
            for x in desks[mode].receive(m):
                out[x.to].append(wire.encode_message(x, protocol))
    return {s: {"letters": letters} for s, letters in out.items()}


def _union(answers: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    lists = [[Axis.from_json(a) for a in answers[s]["axes"]] for s in sorted(answers)]
    common = [union(axes).to_json() for axes in zip(*lists, strict=True)]
    return {s: {"axes": common} for s in answers}
