"""Draw docs/images/federation.svg: hospitals, one secure sum, one model. ``python docs/images/federation.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PICTURE: Final = Path(__file__).with_suffix(".svg")
INK, SITE, COORDINATOR, RESULT = "#1f2933", "#d9ebf7", "#fbe7cf", "#dcefdc"
HOSPITALS: Final = ("Hospital A", "Hospital B", "Hospital C")
STEPS: Final = ("records (OMOP, FHIR, CSV)", "local update", "release gate and ledger")


def box(x: float, y: float, width: float, height: float, fill: str, lines: tuple[str, ...]) -> str:
    """Return a rectangle with a bold first line and smaller lines below it."""
    parts = [f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{INK}"/>']
    for row, text in enumerate(lines):
        style = 'font-weight="600"' if row == 0 else 'font-size="12"'
        parts.append(f'<text x="{x + width / 2}" y="{y + 22 + 18 * row}" text-anchor="middle" {style}>{text}</text>')
    return "\n".join(parts)


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """Return a line with an arrow head at its end."""
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{INK}" stroke-width="1.5" marker-end="url(#head)"/>'


def picture() -> str:
    """Return the whole picture."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 340" font-family="sans-serif" font-size="14">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>',
        '<rect width="860" height="340" fill="white"/>',
    ]
    for row, name in enumerate(HOSPITALS):
        y = 20 + 105 * row
        parts += [box(20, y, 230, 86, SITE, (name, *STEPS)), arrow(252, y + 43, 366, 137 + 28 * row)]
    parts.append('<text x="262" y="318" font-size="12">masked contribution, no record</text>')
    coordinator = ("Coordinator", "sees the secure sum", "of all hospitals,", "not one hospital's part")
    result = ("One model", "phenotypes", "prevalence, outcomes", "replication", "privacy card", "report")
    parts += [box(370, 122, 210, 86, COORDINATOR, coordinator), arrow(582, 165, 636, 165)]
    parts.append(box(640, 102, 200, 124, RESULT, result))
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
