"""The dossier on paper: one HTML file that loads nothing and prints on A4, and the same as JSON.

Its annexes: record of processing (Art. 30), impact assessment (Art. 35), expert determination (45 CFR 164.514(b)(1)).
"""

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
from polyclinic.node.dossier.audit_trail import model, trail
from polyclinic.node.dossier.sources import Sources
from polyclinic.node.dossier.study_protocol import categories, cohort, privacy, protocol, recipients, retention
from polyclinic.node.dossier.value import Dossier, DossierLine, DossierPart, Rows
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


MEASURES: Final = (
    (
        "Patients' records never leave the hospital; each outgoing value passes one release gate that checks the owner's rules and writes "
        "a signed line in the hospital's ledger before anything is sent."
    ),
    "Connections are outbound from the hospital, with certificates on both sides; keys are made at the hospital.",
    (
        "A study is followed only if the coordinator that the hospital joined has signed exactly it, and the owner's policy, or the "
        "owner, agrees."
    ),
    (
        "The ledger is chained by hashes and signed. An edited, removed or reordered line is found (polyclinic ledger verify). A ledger "
        "that was put back whole is found only by a head kept elsewhere."
    ),
)


def record(s: Sources) -> DossierPart:
    """Art. 30(1) of the GDPR, item by item."""
    h = s.by_hand
    purpose = str(s.study["study"].get("description", ""))
    return DossierPart(
        "art30",
        "Record of processing activities (Art. 30 GDPR)",
        (
            DossierLine("controller", "Controller", (h.controller,), by_hand=True),
            DossierLine("representative", "Representative, joint controllers", (h.representative,), by_hand=True),
            DossierLine("officer", "Data protection officer", (h.officer,), by_hand=True),
            DossierLine("purposes", "Purposes", (f"Research: {purpose}" if purpose else "",)),
            DossierLine("legal_basis", "Legal basis", (h.legal_basis,), by_hand=True),
            DossierLine("subjects", "Categories of data subjects", ("Patients of the hospital.", *cohort(s))),
            DossierLine("data", "Categories of personal data", categories(s)),
            DossierLine("recipients", "Categories of recipients", recipients(s)),
            DossierLine("transfers", "Transfers to third countries", (h.transfers,), by_hand=True),
            DossierLine("erasure", "Time limits for erasure", retention(s)),
            DossierLine("security", "Technical measures", _measures(s)),
            DossierLine("organisation", "Organisational measures", (h.organisation,), by_hand=True),
        ),
    )


def impact(s: Sources) -> DossierPart:
    """Art. 35(7): what is done, why, which risks, which measures, what remains."""
    h = s.by_hand
    return DossierPart(
        "dpia",
        "Annex to the impact assessment (Art. 35 GDPR)",
        (
            DossierLine("description", "Systematic description", _description(s)),
            DossierLine("necessity", "Necessity and proportionality", (h.necessity,), by_hand=True),
            DossierLine("risks", "Risks for patients", _risks(s)),
            DossierLine("measures", "Measures", (*_measures(s), *privacy(s)[:1])),
            DossierLine("remains", "What remains", _remains(s)),
            DossierLine("views", "Views of patients, of the officer, of the board", (h.views,), by_hand=True),
        ),
        note="Parts that software can write. It is not a legal assessment and does not conclude that data are anonymous.",
    )


def expert(s: Sources) -> DossierPart:
    """What an expert needs who is to determine the risk of identification."""
    audit = s.json("audit.json")
    cell = s.policy.min_cell if s.policy is not None else int(s.json("presence.json").get("minimum", 11))
    by = "this hospital's policy" if s.policy is not None else "the setting of the run"
    tables: tuple[Rows, ...] = ()
    if audit:
        shown = {k: v for k, v in audit.items() if isinstance(v, str | int | float | bool) and k != "summary"}
        rows = tuple((k.replace("_", " "), _plain(v)) for k, v in shown.items())
        tables = (
            Rows(
                "audit_figures", "Audit: canaries through the real method and release gate", ("figure", "value"), rows
            ),
        )
    return DossierPart(
        "expert",
        "Annex to an expert determination (45 CFR 164.514(b)(1))",
        (
            DossierLine("released", "What is released", _released(s)),
            DossierLine("attacks", "Attacks that are known", _attacks(s)),
            DossierLine("audit", "Attack results of this study", _audit(audit)),
            DossierLine(
                "cell",
                "Smallest displayed cell",
                (
                    (
                        f"Counts of patients from 1 to {cell - 1} are not shown, nor what gives them away in the same table: the "
                        f"smallest displayed count is {cell} (by {by}). This is suppression, not a guarantee."
                    ),
                ),
            ),
            DossierLine("expert", "Expert and method of the determination", (h := s.by_hand.expert,), by_hand=not h),
            DossierLine("determination", "Determination", ("",), by_hand=True),
        ),
        tables,
        note="The determination itself is the expert's.",
    )


def _measures(s: Sources) -> tuple[str, ...]:
    made = [*MEASURES]
    made.append(f"Way to add: {s.adder.name}; " + (s.adder.sentence or f"it reveals {_reveals(s)}") + ".")
    if s.card is not None and s.card.noise != "none":
        made.append(f"Noise: {s.card.noise}; {s.card.mechanism}.")
    elif s.asked is not None:
        made.append("Noise is drawn at each hospital before a value leaves, by exact arithmetic between hosts.")
    return tuple(made)


def _reveals(s: Sources) -> str:
    return "the total only" if s.adder.reveals == "total" else "each hospital's contribution to the party that adds"


def _description(s: Sources) -> tuple[str, ...]:
    return (
        f"Study {s.name!r}: {s.study['study'].get('description') or 'the study file does not say what it asks'}",
        *categories(s),
        f"{len(s.sites)} hospitals take part." if s.sites else "The hospitals are not named yet.",
    )


def _risks(s: Sources) -> tuple[str, ...]:
    each = s.adder.reveals == "each"
    known = s.facts.known(each=each, exact=s.asked is None)
    made = [
        f"Shown to work on what this method releases without noise or with the noise asked for: {a}." for a in known
    ]
    if not made:
        made.append("No attack that was shown to work on this method applies to values with the noise asked for.")
    if s.adder.pooled:
        made.append(f"Parties that pool what they see: {s.adder.pooled}.")
    made += [
        "A hospital's own staff see the patients' data, as before; that is not changed by the study.",
        "A lying hospital can spoil the model; it is not noticed unless a robust rule was chosen, which hides less.",
        "A stolen database, or a patient at more hospitals than was assumed, is not covered.",
    ]
    return tuple(made)


def _remains(s: Sources) -> tuple[str, ...]:
    if s.card is None:
        return ("Known only after the run: its card says what holds; until then nothing is claimed.",)
    made = [f"{s.card.headline[:1].upper()}{s.card.headline[1:]}."]
    if s.card.epsilon is not None and s.card.guarantee == "formal":
        import math

        e, d = s.card.epsilon, s.card.delta or 0.0
        made.append(
            f"Whatever anybody concludes from everything that was released, the odds of that conclusion are at most "
            f"{math.exp(min(e, 700.0)):.3g} times larger or smaller because one patient was included, but for a probability of "
            f"{d:g} (epsilon {e:.4g}, delta {d:g}, patient-level, formal)."
        )
    made += [f"But: {r}." for r in s.card.reasons]
    return tuple(made)


def _released(s: Sources) -> tuple[str, ...]:
    charges = [(b.site, e.charge) for b in s.books for e in b.lines(s.name) if e.charge is not None]
    if not charges:
        if s.card is not None:
            return (f"{s.card.releases} sums, and the public model. The ledgers with each line stay at the hospitals.",)
        return (
            "Nothing yet. The steps above are what may be released. Each becomes a line of the ledger before it leaves.",
        )
    numbers = sum(c.scalars for _, c in charges)
    unpaid = sum(not c.paid for _, c in charges)
    return (
        f"{len(charges)} releases of {numbers:,} numbers in all, by {len({n for n, _ in charges})} hospital(s).",
        f"{unpaid} of them without noise." if unpaid else "All of them with noise.",
    )


def _attacks(s: Sources) -> tuple[str, ...]:
    if s.card is not None and s.card.attacks:
        return tuple(f"{a}." for a in s.card.attacks)
    known = s.facts.known(each=s.adder.reveals == "each", exact=s.asked is None)
    return tuple(f"{a}." for a in known) or ("None that was shown to work applies to values with this noise.",)


def _audit(audit: dict[str, object]) -> tuple[str, ...]:
    if not audit:
        return (
            "No audit was made of this study: polyclinic audit STUDY --out RUN measures whether canaries are seen.",
        )
    told = audit.get("summary")
    if isinstance(told, dict):
        return tuple(f"{k[:1].upper()}{k[1:]}: {v}." for k, v in told.items())
    return (f"An audit was made: {audit.get('verdict', 'its figures are below')}.",)


def _plain(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
