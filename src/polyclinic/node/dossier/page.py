"""The dossier on paper: one HTML file that loads nothing and prints on A4, and the same as JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from polyclinic import __version__
from polyclinic.node.dossier.annexes import expert, impact, record
from polyclinic.node.dossier.audit_trail import model, trail
from polyclinic.node.dossier.sources import Sources
from polyclinic.node.dossier.study_protocol import protocol
from polyclinic.node.dossier.value import Dossier
from polyclinic.util.atomic_files import write_whole

if TYPE_CHECKING:
    from jinja2 import Environment

HERE: Final = Path(__file__).parent / "templates"
SIGNERS: Final = (
    "Principal investigator",
    "Owner of the data (hospital)",
    "Data protection officer",
    "Ethics board",
    "Expert (where a determination is made)",
)


def make_dossier(s: Sources) -> Dossier:
    """Every chapter, from what was found.

    ``"after"`` once anything was released or a run has ended; ``"before"`` until then.
    """
    found = [f"study {s.name!r}"]
    found += ["the coordinator's signed order"] if s.order is not None else ["the study file, which is not signed"]
    found += [f"node file of {s.node.name!r}"] if s.node is not None else []
    found += [f"ledger{'s' if len(s.books) > 1 else ''} of {', '.join(b.site for b in s.books)}"] if s.books else []
    found += ["run folder"] if s.run is not None else []
    parts = (protocol(s), record(s), impact(s), expert(s), trail(s), model(s))
    return Dossier(
        s.name,
        "before" if s.card is None else "after",
        parts,
        s.digests(),
        SIGNERS,
        f"polyclinic {__version__}",
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "" if s.card is None else s.card.headline,
        tuple(found),
    )


def render(d: Dossier) -> str:
    """The HTML."""
    style = (HERE / "dossier.css").read_text("utf-8")
    mark = "sha256-" + base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = _environment().get_template("dossier.html.j2")
    return str(page.render(d=d, style=Markup(style), style_hash=mark, digest=d.digest))


def write_dossier(d: Dossier, folder: Path, *, name: str = "dossier") -> tuple[Path, Path]:
    """Write ``dossier.html`` and ``dossier.json``; the JSON's digest stands on the paper."""
    page, data = folder / f"{name}.html", folder / f"{name}.json"
    write_whole(data, json.dumps(d.to_json(), indent=1, ensure_ascii=False) + "\n")
    return write_whole(page, render(d)), data


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
