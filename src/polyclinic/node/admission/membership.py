"""What a site does outside of a run: join with keys born here, pin the other sites, look at studies, decide."""

from __future__ import annotations

import base64
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from polyclinic.config import Study
from polyclinic.errors import ConfigError, MessageRefused, PolicyRefusal, PolyclinicError
from polyclinic.node.admission.admission import asked, consent
from polyclinic.node.admission.offer import Offer
from polyclinic.node.enrolment.authority import read_request, request_of, site_name, willing_words
from polyclinic.node.enrolment.federation import coordinator_fingerprint
from polyclinic.node.enrolment.folders import (
    SiteFolder,
    append_event,
    private,
    read_events,
    read_json,
    write_json,
    write_key,
)
from polyclinic.node.enrolment.invitation import read_invite
from polyclinic.node.enrolment.joining import awaited, call
from polyclinic.node.enrolment.processes import alive, recorded
from polyclinic.node.enrolment.provisioning import package, request_zip
from polyclinic.node.enrolment.startup_files import site_kit
from polyclinic.node.signed_study import StudyOrder, read_order
from polyclinic.privacy.gate.outbox import Outbox
from polyclinic.privacy.gate.owner_rules import ledger_of, outbox_of, policy_between, policy_of
from polyclinic.privacy.gate.review import AHEAD
from polyclinic.privacy.ledger.entries import Accept, Approve, Refuse, Withdraw
from polyclinic.protocol.wire.sealed import Identity, digest
from polyclinic.studies import registry
from polyclinic.util.file_format import FORMAT


def request(folder: SiteFolder, invite_file: Path) -> tuple[Path, dict[str, str]]:
    """Make the site's keys HERE, and a request with their public halves; again: the same request."""
    invite = read_invite(invite_file)
    faults = []
    if invite["site"] != folder.node.name:
        faults.append(f"the invite is for {invite['site']!r}, the node file says {folder.node.name!r}")
    if re.search(r"\s", str(folder.path.resolve())):
        faults.append(f"{folder.path.resolve()}: FLARE cannot start its processes from a path with blanks")
    if faults:
        raise ConfigError("this site cannot join", faults=faults)
    site_name(folder.node.name)
    policy_of(folder.node)
    private(folder.path)
    if folder.invite.exists():
        before = folder.read_invite()
        if any(before.get(k) != invite[k] for k in ("authority", "coordinator", "site")):
            raise ConfigError(f"{folder.node.name!r} has joined another federation", hint="polyclinic site leave first")
    write_json(folder.invite, {**invite, "format": FORMAT})
    if not (folder.path / "identity.key").exists():
        write_key(folder.path / "identity.key", Identity.generate(folder.node.name)._key.private_bytes_raw())
    path = folder.path / f"{folder.node.name}.request.json"
    data, _ = request_zip(folder.path, folder.node.name, str(invite["project"]))
    value = request_of(folder.node.name, str(invite["project"]), data, folder.identity())
    if folder.node.keys.get("willing") is True:
        value["willing"] = folder.identity().sign(willing_words(folder.node.name, str(invite["project"]))).hex()
    write_json(path, value)
    return path, {"site": read_request(value).fingerprint, "coordinator": coordinator_fingerprint(invite)}


def send(folder: SiteFolder, *, wait: float, every: float = 2.0) -> str:
    """Send the request and wait for the coordinator's approval; returns "joined", or "waiting" if it has not come yet."""
    invite = folder.read_invite()
    if invite.get("enrol_port") is None:
        raise ConfigError(
            "this coordinator takes no requests over the network",
            hint="carry the request by hand: polyclinic site join INVITE --offline",
        )
    value = {
        "site": folder.node.name,
        "secret": invite["secret"],
        "request": read_json(folder.path / f"{folder.node.name}.request.json"),
    }
    answer = awaited(invite, "/join", value, wait, every)
    if answer is None:
        return "waiting"
    install(folder, answer.get("approval"))
    return "joined"


def complete(folder: SiteFolder, approval_file: Path) -> None:
    """Take the coordinator's approval from a file that somebody carried."""
    install(folder, read_json(approval_file), str(approval_file))


def install(folder: SiteFolder, value: Any, where: str = "the answer of the coordinator") -> None:
    """Check the coordinator's approval and write FLARE's kit; the private key never left this folder."""
    invite = folder.read_invite()
    try:
        body = {k: str(value[k]) for k in ("kind", "site", "package")}
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(invite["coordinator"]))
        key.verify(bytes.fromhex(value["signature"]), digest(body))
        signed = base64.b64decode(body["package"], validate=True)
    except (InvalidSignature, ValueError, KeyError, TypeError) as e:
        raise MessageRefused(
            f"{where}: not an approval by the coordinator of the invite ({type(e).__name__})"
        ) from None
    if body["site"] != folder.node.name:
        raise MessageRefused(f"{where}: the approval is for {body['site']!r}, this is {folder.node.name!r}")
    try:
        texts = package(folder.path, folder.node.name, signed, str(invite["authority_sha256"]))
    except ConfigError as e:
        raise MessageRefused(f"{where}: the certificate is not for this site's key", faults=e.faults) from None
    if texts["rootCA.pem"].strip() != str(invite["authority"]).strip():
        raise MessageRefused(f"{where}: the authority is not the invite's")
    site_kit(folder.workspace, folder.node.name, host=invite["host"], port=int(invite["port"]), texts=texts)
    write_json(folder.invite, {**invite, "secret": ""})  # it was for once
    append_event(folder.events, event="joined", host=invite["host"], port=invite["port"])


def fetch_roster(folder: SiteFolder) -> dict[str, Any]:
    """The signed list of sites, from the coordinator, with this site's certificate."""
    invite = folder.read_invite()
    if not joined(folder):
        raise ConfigError(f"{folder.node.name!r} has not joined yet", hint="polyclinic site join INVITE")
    if invite.get("enrol_port") is None:
        raise ConfigError("this coordinator hands out no roster over the network", hint="polyclinic site pin ROSTER")
    return call(invite, "/roster", {}, kit=folder.workspace / "startup")


def joined(folder: SiteFolder) -> bool:
    """Whether the coordinator's approval is here."""
    return (folder.workspace / "startup" / "client.crt").exists()


def leave(folder: SiteFolder) -> tuple[Path, str]:
    """Leave the federation: tell the coordinator, destroy this site's keys, set its studies aside.

    Returns where they are, and why the coordinator could not be told (empty if it was).
    """
    if not folder.path.exists():
        raise ConfigError(f"{folder.node.name!r} has not joined", hint="there is nothing to leave")
    if any(alive(p) for p in recorded(folder.pids)):
        raise ConfigError(f"{folder.node.name!r} is running", hint="polyclinic site stop")
    untold = _tell_of_leaving(folder)
    for secret in (*folder.path.rglob("*.key"), *folder.path.glob("*.request.json"), folder.invite):
        secret.unlink(missing_ok=True)
    for kit in (folder.workspace, folder.path / "request", folder.path / "nvflare"):
        shutil.rmtree(kit, ignore_errors=True)
    append_event(folder.events, event="left")
    aside = folder.path.with_name(f"federation-left-{time.strftime('%Y%m%dT%H%M%S')}")
    folder.path.rename(aside)
    return aside, untold


def _tell_of_leaving(folder: SiteFolder) -> str:
    """Tell the coordinator with this site's certificate. Returns what went wrong."""
    invite = read_json(folder.invite) if folder.invite.exists() else {}  # also of an earlier version
    if not joined(folder) or invite.get("enrol_port") is None:
        return "it has no port where a site can say so" if joined(folder) else ""
    try:
        call(invite, "/leave", {}, kit=folder.workspace / "startup")
    except PolyclinicError as e:
        return e.what
    return ""


def pin(folder: SiteFolder, roster: Path | dict[str, Any]) -> dict[str, str]:
    """Remember the other sites' keys, after the owner has compared their fingerprints."""
    roster_file = roster if isinstance(roster, Path) else "the roster"
    value, invite = read_json(roster) if isinstance(roster, Path) else roster, folder.read_invite()
    try:
        body = {"kind": value["kind"], "sites": {str(k): str(v) for k, v in value["sites"].items()}}
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(invite["coordinator"]))
        key.verify(bytes.fromhex(value["signature"]), digest(body))
    except (InvalidSignature, ValueError, KeyError, TypeError, AttributeError):
        raise MessageRefused(f"{roster_file}: not a roster of the coordinator that this site joined") from None
    known = read_json(folder.pins) if folder.pins.exists() else {}
    changed = [f"{n!r}: another key than the one pinned" for n, k in body["sites"].items() if known.get(n, k) != k]
    if changed:
        raise ConfigError(
            f"{roster_file}: keys have changed", faults=changed, hint=f"compare again, then remove {folder.pins}"
        )
    told, project = value.get("willing"), str(invite["project"])
    signed = told if isinstance(told, dict) else {}
    willing = {n: s for n, s in signed.items() if _is_willing(n, s, body["sites"], project)}
    write_json(folder.pins, {**known, **body["sites"]})
    write_json(folder.willing, willing)
    append_event(folder.events, event="pinned", sites=sorted(body["sites"]))
    return dict(body["sites"])


def _is_willing(name: str, signature: str, keys: Mapping[str, str], project: str) -> bool:
    """Return whether the site's own key signed it: a coordinator cannot make a site willing."""
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(keys[name]))
        key.verify(bytes.fromhex(signature), willing_words(name, project))
    except (InvalidSignature, ValueError, KeyError, TypeError):
        return False
    return True


def studies(folder: SiteFolder) -> list[dict[str, Any]]:
    """Every study that was asked of this site, as the owner reads it, with its state here."""
    found = []
    last = {e["study"]: e for e in read_events(folder.events) if "study" in e and e["event"] != "message refused"}
    for place in sorted(folder.studies.glob("*/order.json")) if folder.studies.exists() else ():
        try:
            order = read_order(read_json(place)["order"], bytes.fromhex(folder.read_invite()["coordinator"]))
        except PolyclinicError as e:
            found.append({"study": place.parent.name, "state": "refused", "reasons": [e.what]})
            continue
        event = last.get(order.id, {})
        offer = Offer(order)
        kept = {**offer.plain(), "words": offer.words(), "shown": offer.digest()}
        found.append({**kept, "state": event.get("event", "new"), "reasons": event.get("reasons", [])})
    known = {f["study"] for f in found}
    return found + [
        {"study": s, "state": e["event"], "reasons": [e.get("what", ""), *e.get("reasons", [])]}
        for s, e in last.items()
        if s not in known
    ]


def undecided(folder: SiteFolder) -> list[tuple[str, Study]]:
    """Studies that wait for this site's owner, by name."""
    over = ledger_of(folder.node).tally.closed
    known = asked(folder) if folder.invite.exists() else []
    waiting = [o for o in known if consent(o, folder) is None and o.digest not in over]
    return [(o.id, o.parsed(private(folder.study(o.digest) / "files"))) for o in waiting]


def unpinned(folder: SiteFolder, study: Mapping[str, Any]) -> list[str]:
    """Sites of a study whose keys the owner has not compared and pinned."""
    pins = read_json(folder.pins) if folder.pins.exists() else {}
    return [n for n, k in study.get("roster", {}).items() if n != folder.node.name and pins.get(n) != k]


def refusals(folder: SiteFolder) -> list[dict[str, object]]:
    """Studies that this site refused."""
    return [s for s in studies(folder) if s["state"] == "refused"]


def pending(folder: SiteFolder) -> list[tuple[Outbox, Any]]:
    """Releases that wait for the owner. What an accepted study covers does not wait."""
    box, book = Outbox(outbox_of(folder.node)), ledger_of(folder.node).tally
    waiting = [p for p in box.all() if p.state == "pending"]
    return [(box, p) for p in waiting if not book.approves(str(p.facts.get("order")), str(p.facts.get("step")), "")]


def named(folder: SiteFolder, study: str) -> StudyOrder:
    """The one order that a name, or the start of a digest, stands for here."""
    known = asked(folder)
    fits = [o for o in known if o.id == study or (len(study) >= 8 and o.digest.startswith(study))]
    if len(fits) != 1:
        raise ConfigError(
            f"{'several orders' if fits else 'no study or release'} {study!r} {'were' if fits else 'was'} asked of this site",
            faults=[f"asked: {', '.join(f'{o.id} ({o.digest[:12]})' for o in known) or 'nothing yet'}"],
            hint="polyclinic site review shows what is asked; the digest in brackets names one order",
        )
    return fits[0]


def show(folder: SiteFolder, found: Sequence[Mapping[str, Any]]) -> None:
    """Remember which order the owner was shown under which name: a name that stands for another later is not agreed to."""
    kept = read_json(folder.shown) if folder.shown.exists() else {}
    now = {s["study"]: {"order": s["order"], "words": s["shown"]} for s in found if "words" in s}
    if any(kept.get(k) != v for k, v in now.items()):
        write_json(folder.shown, {**kept, **now})


def steps_of(folder: SiteFolder, order: StudyOrder) -> list[str]:
    """Kinds of steps that accepting this order releases: none where the owner wants to read each release."""
    if policy_between(folder.node).review != "names":
        return []
    try:
        method = registry.ordered(order.parsed(private(folder.study(order.digest) / "files")))
    except PolyclinicError:  # of a version or a plug-in that is not here: its releases wait as they come
        return []
    return list(method.facts.steps)


def decide(folder: SiteFolder, study: str, *, accept: bool, by: str = "owner") -> None:
    """The owner's word about a study, by its name or the digest of its order; it holds for that order and no other."""
    order = named(folder, study)
    shown, kept = Offer(order).digest(), (read_json(folder.shown) if folder.shown.exists() else {}).get(order.id)
    if accept and order.id == study and kept is not None and kept != {"order": order.digest, "words": shown}:
        raise PolicyRefusal(
            f"{study!r} is not what was shown under that name",
            faults=[f"shown: order {kept['order'][:12]}, now: order {order.digest[:12]}"],
            hint="polyclinic site review shows what is asked now; read it, then decide again",
        )
    book, before = ledger_of(folder.node), consent(order, folder)
    if accept:
        book.write(Accept(order.digest, by, shown))
        for name in steps_of(folder, order):
            book.write(Approve(order.digest, name, AHEAD, by, f"shown {shown}"))
    else:
        book.write(Withdraw(order.digest, by) if before else Refuse(order.digest, by, shown=shown))
    append_event(folder.events, event="accepted" if accept else "rejected", study=order.id, order=order.digest)
