"""Write docs/reference/files.md from the models that check the two files: ``python docs/reference/files.py``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from polyclinic.privacy.gate.owner_rules import LedgerRule
from polyclinic.privacy.policy.policy import Policy
from polyclinic.config import Node, Study
from polyclinic.config.source import Source
from polyclinic.config.toml import section_in

PAGE = Path(__file__).with_suffix(".md")
OWNERS = {"policy": Policy, "ledger": LedgerRule}  # kept as written by the node; their own models check them
KEYS = {  # read by the engine between hospitals, which has no model for its keys
    "studies": (
        "`ask`: every study waits until the owner accepts it; `policy`: what the policy allows runs.",
        '`"ask"`',
    ),
    "alignment": (
        "`ring`: codes without a public list may be agreed on in secret; `union`: also by showing them; `public`: neither.",
        '`"ring"`',
    ),
    "max_codes": (
        "Longest list of codes, as padded to the next power of two, that is sent or helped on in an alignment by the ring.",
        "`65536`",
    ),
    "max_numbers": (
        "A study that asks for more numbers in one release, or for a larger model, is refused here.",
        "`4194304`",
    ),
    "max_disk_mb": ("A study whose files take more is refused here, and they are removed.", "none"),
    "max_rounds": ("A study of more rounds is refused here.", "`100000`"),
    "max_memory_mb": (
        "Memory that a study's worker may reserve (Linux; threads reserve 8 MB each, so at least 1000).",
        "none",
    ),
    "pace": (
        "Formal studies: this site answers at multiples of so many seconds at least, and is ready after 12 of them, also where a study "
        "asks for less. 0: as the study asks.",
        "`5`",
    ),
    "willing": (
        "The owner agrees that this site's part of exact sums may be computed by subtraction, so that the network may grow or shrink by this one site. Signed when the site joins.",
        "`false`",
    ),
    "witnesses": (
        '`"all"`: every other site of a study must confirm the newest ledger head before a release. Default: those that are present.',
        "none",
    ),
}
HEAD = ["| key | meaning | default |", "|---|---|---|"]


def reference() -> str:
    """Every key of both files with its meaning."""
    lines = [
        "# Every key of study.toml and node.toml",
        "",
        "Generated from the models that check the files (`python docs/reference/files.py`). Paths are relative to the folder of",
        "the file. An unknown key is refused, and the error lists the known keys. All faults are reported at once.",
    ]
    for model in (Study, Node):
        lines += ["", f"## {model.__name__.lower()}.toml"]
        for name, info in model.model_fields.items():
            section = OWNERS.get(name, section_in(info.annotation)) if model is Node else section_in(info.annotation)
            if section is None:
                lines += ["", f"### `[{name}]`", "", "Membership in a federation between hospitals.", "", *HEAD]
                lines += [f"| `{key}` | {meaning} | {default} |" for key, (meaning, default) in KEYS.items()]
                continue
            many = {"site": "[[site]]", "codes": "[codes.KIND]"}
            title = many.get(name, f"[{name}]") if model is Study else f"[{name}]"
            doc = re.sub(r"^``[^`]*``(, [^:]*)?: ", "", (section.__doc__ or "").strip().splitlines()[0])
            lines += ["", f"### `{title}`", "", doc[0].upper() + doc[1:], "", *HEAD]
            lines += [_row(key, f) for key, f in section.model_fields.items()]
            for inner in (section_in(f.annotation) for f in section.model_fields.values()):
                if inner is None or inner is Source:
                    continue
                heading, _, doc = (inner.__doc__ or "").strip().splitlines()[0].strip("`").partition("``")
                doc = doc.lstrip(": ")
                lines += ["", f"### `{heading}`", "", doc[0].upper() + doc[1:], "", *HEAD]
                lines += [_row(key, f) for key, f in inner.model_fields.items()]
    return "\n".join(lines) + "\n"


def _row(key: str, field: Any) -> str:
    default = "required"
    if not field.is_required():
        default = f"`{json.dumps(field.get_default(call_default_factory=True))}`".replace("`null`", "none")
    return f"| `{field.alias or key}` | {field.description} | {default} |"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
