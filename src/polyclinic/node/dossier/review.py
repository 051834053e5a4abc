"""What an owner reads before deciding, and the decision: one function for the command line and for the owner's page."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from typing import Any

from polyclinic.errors import PolyclinicError
from polyclinic.node.admission.membership import decide, pending, unpinned
from polyclinic.node.dossier.sources import gather
from polyclinic.node.dossier.study_protocol import protocol
from polyclinic.node.enrolment.folders import SiteFolder
from polyclinic.safe_text import one_line

Text = list[tuple[str, list[str]]]  # label -> lines


def operating_system_user() -> str:
    """Return the account that runs this process. Environment variables cannot change it."""
    return pwd.getpwuid(os.getuid()).pw_name


def study_text(folder: SiteFolder, study: Mapping[str, Any]) -> Text:
    """Return what a study asks: in the plain words of its dossier until it runs, then the signed order and its sites."""
    strangers, me = unpinned(folder, study), folder.node.name
    mark = {n: "this site" if n == me else "NOT PINNED" if n in strangers else "pinned" for n in study["roster"]}
    plain = [] if study["state"] not in ("waiting", "new") else _dossier(folder, study["order"])
    sites = [f"site {n}: {state}" for n, state in mark.items()]
    return [*plain, ("Signed order", list(study["words"])), ("Sites and their keys", sites)]


def _dossier(folder: SiteFolder, order: str) -> Text:
    """Return the dossier's study chapter, where this version can read all of it."""
    try:
        lines = protocol(gather(order, node=folder.node_path)).lines
    except PolyclinicError as e:
        return [("Dossier", [f"the dossier cannot be made: {one_line(e.what)}"])]
    return [(line.label, [one_line(x) for x in line.text if x]) for line in lines]


def take_decision(folder: SiteFolder, name: str, *, accept: bool, by: str) -> None:
    """Accept or refuse a study (its name or the digest of its order) or a release that waits (its id)."""
    box = next((b for b, p in pending(folder) if p.id == name), None)
    if box is not None:
        box.decide(name, approve=accept, by=by)
    else:
        decide(folder, name, accept=accept, by=by)
