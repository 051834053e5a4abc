"""Draw the flow diagrams of the guide pages as SVG files next to this script: ``make pictures``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
INK, SITE, COORDINATOR, RESULT = "#1f2933", "#d9ebf7", "#fbe7cf", "#dcefdc"
FILL: Final = {"s": SITE, "c": COORDINATOR, "r": RESULT}
WIDTH, HEIGHT, GAP = 168, 92, 34
FLOWS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {  # name -> title, boxes as "party|heading|line|line"
    "release": (
        "The way of one release",
        (
            "s|records|at the hospital",
            "s|sum|over patients,|clipped to a bound",
            "s|noise|drawn once",
            "s|release check|policy, budget,|ledger line",
            "c|total|sum over hospitals",
        ),
    ),
    "ledger": (
        "What the privacy officer does",
        (
            "s|policy|limits in node.toml",
            "s|study admitted|full cost reserved",
            "s|each release|one signed line",
            "r|ledger show|what was spent",
            "r|ledger verify|nothing was changed",
        ),
    ),
    "audit": (
        "An audit with canaries",
        (
            "s|synthetic patients|in or out,|by coin toss",
            "s|real method|real noise",
            "c|releases|what an attacker sees",
            "r|guess|who was in?",
            "r|verdict|epsilon and mu|against the ledger",
        ),
    ),
    "ingest": (
        "From records to a tensor",
        (
            "s|source|OMOP, FHIR, CSV",
            "s|events|patient, visit, time,|kind, code",
            "s|cohort and codes|rows dropped|for a named reason",
            "s|tensor|patients x codes|x codes",
            "r|manifest|every row counted",
        ),
    ),
    "findings": (
        "From a fit to findings",
        (
            "s|two halves|of the patients",
            "c|two fits|by secure sums",
            "r|replication|do both halves|agree?",
            "r|prevalence|patients with|the phenotype",
            "r|outcome|odds ratios, AUC",
        ),
    ),
    "courier": (
        "A study through folders",
        (
            "s|site|signs and encrypts",
            "s|outbox|files",
            "c|your transport|SFTP, rsync, USB",
            "c|inbox|of the coordinator",
            "c|total|sum over hospitals",
        ),
    ),
    "resume": (
        "After a crash",
        (
            "s|killed|at any moment",
            "s|same command|started again",
            "s|stored releases|same bytes,|no new charge",
            "r|same model|bit for bit",
        ),
    ),
    "vocabularies": (
        "Private vocabulary alignment",
        (
            "s|own codes|hashed and|encrypted (ECDH)",
            "s|next site|encrypts again",
            "s|all sites|encrypted by all",
            "c|union|of encrypted codes",
            "s|own rows|each site finds|its own codes",
        ),
    ),
    "zeros": (
        "Two meanings of an empty cell",
        (
            "s|empty cell|code not recorded",
            "r|zeros observed|the patient does|not have it",
            "r|zeros missing|not known, the fit|ignores the cell",
        ),
    ),
    "dossier": (
        "A dossier for the ethics board",
        (
            "c|study file|question, data,|method",
            "s|policy|limits, retention",
            "s|ledger|releases, decisions",
            "r|dossier|two-page summary,|annexes",
            "r|signatures|officer, board",
        ),
    ),
    "model": (
        "Use a model at a new hospital",
        (
            "c|model file|codes, weights,|privacy card",
            "s|new hospital|own patients",
            "s|apply|phenotype scores",
            "s|adapt|own phenotypes|in addition",
        ),
    ),
    "parts": (
        "Four parts that you can add",
        (
            "s|source|reads records",
            "s|method|what is summed",
            "c|aggregator|how it is summed",
            "r|report section|what is shown",
        ),
    ),
}


def drawing(name: str) -> str:
    """Return one flow diagram: boxes from left to right, joined by arrows."""
    title, boxes = FLOWS[name]
    width = len(boxes) * (WIDTH + GAP) - GAP + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT + 60}" role="img" font-family="sans-serif" font-size="14">',
        f'<title>{title}</title>\n<rect width="{width}" height="{HEIGHT + 60}" fill="#ffffff"/>',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>',
    ]
    for k, box in enumerate(boxes):
        party, *lines = box.split("|")
        x = 10 + k * (WIDTH + GAP)
        parts.append(
            f'<rect x="{x}" y="10" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{FILL[party]}" stroke="{INK}"/>'
        )
        for row, text in enumerate(lines):
            style = 'font-weight="600"' if row == 0 else 'font-size="12"'
            parts.append(f'<text x="{x + WIDTH / 2}" y="{36 + 20 * row}" text-anchor="middle" {style}>{text}</text>')
        if k:
            parts.append(
                f'<line x1="{x - GAP + 2}" y1="56" x2="{x - 3}" y2="56" stroke="{INK}" marker-end="url(#head)"/>'
            )
    legend = (("s", "at the hospital"), ("c", "at the coordinator"), ("r", "result"))
    for k, (party, text) in enumerate(legend):
        x = 10 + 150 * k
        parts.append(
            f'<rect x="{x}" y="{HEIGHT + 26}" width="14" height="14" fill="{FILL[party]}" stroke="{INK}"/>'
            f'<text x="{x + 20}" y="{HEIGHT + 38}" font-size="12">{text}</text>'
        )
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    for flow in FLOWS:
        (HERE / f"{flow}.svg").write_text(drawing(flow), encoding="utf-8")
