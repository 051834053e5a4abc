"""Draw docs/images/architecture.svg: the subjects of src/polyclinic and the way of one sum. ``python docs/images/architecture.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PICTURE: Final = Path(__file__).with_suffix(".svg")
LAYERS: Final = (  # from top to bottom: imports go down only
    ("hosts", ("cli", "web", "auditing", "node")),
    ("results", ("report", "studies")),
    ("after the fit", ("analysis", "datasets")),
    ("fit", ("methods", "aggregation", "alignment")),
    ("interfaces", ("protocol",)),
    ("values", ("models",)),
    ("what may leave", ("privacy",)),
    ("data in", ("records",)),
    ("algebra", ("tensors",)),
    ("base", ("config", "util")),
)
WAY: Final = (
    ("site", "contribute", "methods: one hospital's part x_k of a sum"),
    ("site", "release gate", "privacy/gate: check, noise, charge in the ledger"),
    ("site", "exchange", "aggregation: plain, masked or decentralised"),
    ("coordinator", "total", "only the sum over hospitals (masked, decentralised)"),
    ("coordinator", "update_public", "methods: the next public state, checked by every site"),
)
INK, SITE, COORDINATOR, CORE, HOST = "#1f2933", "#d9ebf7", "#fbe7cf", "#eef2f5", "#e3dff2"


def box(x: float, y: float, width: float, height: float, fill: str, text: str, small: str = "") -> str:
    """Return one labelled rectangle."""
    middle = x + width / 2
    lines = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{INK}"/>',
        f'<text x="{middle}" y="{y + (height / 2 + 5 if not small else 20)}" text-anchor="middle" font-weight="600">{text}</text>',
    ]
    if small:
        lines.append(f'<text x="{middle}" y="{y + 38}" text-anchor="middle" font-size="11">{small}</text>')
    return "\n".join(lines)


def layers() -> str:
    """Return the left half: one row of boxes per layer."""
    parts = ['<text x="20" y="28" font-weight="600">Imports go down only</text>']
    for row, (label, subjects) in enumerate(LAYERS):
        y, width = 44 + 44 * row, 330 / len(subjects)
        parts.append(f'<text x="108" y="{y + 21}" text-anchor="end" font-size="12">{label}</text>')
        fill = HOST if row == 0 else CORE
        parts += [box(118 + k * width, y, width - 8, 34, fill, name) for k, name in enumerate(subjects)]
    return "\n".join(parts)


def way() -> str:
    """Return the right half: the way of one sum."""
    parts = ['<text x="490" y="28" font-weight="600">The way of one sum</text>']
    for row, (party, name, small) in enumerate(WAY):
        y = 44 + 88 * row
        parts.append(box(490, y, 370, 52, SITE if party == "site" else COORDINATOR, f"{party}: {name}", small))
        if row + 1 < len(WAY):
            parts.append(f'<path d="M675 {y + 52} v 34" stroke="{INK}" marker-end="url(#arrow)"/>')
    return "\n".join(parts)


def drawing() -> str:
    """Return the whole picture."""
    title = "Subjects of src/polyclinic in layers, and the way of one sum from a site to the coordinator"
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 500" role="img" font-family="sans-serif" font-size="14">\n'
        f"<title>{title}</title>\n"
        '<rect width="880" height="500" fill="#ffffff"/>\n'
        '<defs><marker id="arrow" markerWidth="8" markerHeight="8" refX="6" refY="3" orient="auto">'
        f'<path d="M0 0 L6 3 L0 6 z" fill="{INK}"/></marker></defs>\n{layers()}\n{way()}\n</svg>\n'
    )


if __name__ == "__main__":
    PICTURE.write_text(drawing(), encoding="utf-8")
