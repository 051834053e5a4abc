"""Write docs/reference/files.md from the models that check the two files: ``python docs/reference/files.py``."""

from __future__ import annotations

import json
import re
from pathlib import Path

from polyclinic.study import Node, Study
from polyclinic.study import _section_in as section_in

PAGE = Path(__file__).with_suffix(".md")


def reference() -> str:
    """Every key of both files with its meaning."""
    lines = [
        "# Every key of study.toml and node.toml",
        "",
        "Generated from the models that check the files (`python docs/reference/files.py`). Paths are relative to the folder of",
        "the file. An unknown key is refused with the known ones beside it; all faults are reported at once.",
    ]
    for model in (Study, Node):
        lines += ["", f"## {model.__name__.lower()}.toml"]
        for name, info in model.model_fields.items():
            section = section_in(info.annotation)
            if section is None:
                lines += ["", f"### `[{name}]`", "", "Kept as written; docs/explanation/privacy.md lists its keys."]
                continue
            many = {"site": "[[site]]", "codes": "[codes.KIND]"}
            title = many.get(name, f"[{name}]") if model is Study else f"[{name}]"
            doc = re.sub(r"^``[^`]*``(, [^:]*)?: ", "", (section.__doc__ or "").strip().splitlines()[0])
            lines += [
                "",
                f"### `{title}`",
                "",
                doc[0].upper() + doc[1:],
                "",
                "| key | meaning | default |",
                "|---|---|---|",
            ]
            for key, f in section.model_fields.items():
                default = (
                    "required"
                    if f.is_required()
                    else f"`{json.dumps(f.get_default(call_default_factory=True))}`".replace("`null`", "none")
                )
                lines.append(f"| `{f.alias or key}` | {f.description} | {default} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
