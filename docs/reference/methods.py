"""Write docs/reference/methods.md from the parameters that the methods declare: ``python docs/reference/methods.py``."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from polyclinic.studies.registry import BUILT_IN, find
from polyclinic.methods.moments.standardizing import FederatedPCA, Standardizer
from polyclinic.protocol.params import Params
from polyclinic.methods.rounds.factorization import FactorParams

PAGE = Path(__file__).with_suffix(".md")
HEAD = ["| parameter | meaning | default |", "|---|---|---|"]


def reference() -> str:
    """Every parameter of every method with its meaning and default."""
    lines = [
        "# Every parameter of every method",
        "",
        "Generated from the models that check them (`python docs/reference/methods.py`). The same names are keyword arguments in",
        "Python and keys of `[method]` in `study.toml`, except `seed` (there in `[study]`) and `privacy` (there `[privacy]`).",
        "",
        "## Common",
        "",
        "Every federated method:",
        "",
        *_table(Params, {}),
        "",
        "Every phenotype model also:",
        "",
        *_table(FactorParams, Params.model_fields),
    ]
    made = {key: find(key) for key in BUILT_IN} | {"standardizer": Standardizer, "pca": FederatedPCA}
    for key, cls in made.items():
        first = (inspect.getdoc(cls) or "").splitlines()[0]
        called = f' (`name = "{key}"`)' if key in BUILT_IN else ""
        lines += ["", f"## {cls.__name__}", "", f"{first}{called}", ""]
        declared = getattr(cls, "Params", None)
        if declared is None:
            lines += ["Arguments as in its docstring: see [the public names](public.md)."]
            continue
        common = {**Params.model_fields, **(FactorParams.model_fields if issubclass(declared, FactorParams) else {})}
        own = _table(declared, common)
        lines += own if len(own) > len(HEAD) else ["The common parameters only."]
    return "\n".join(lines) + "\n"


def _table(model: type[Params], known: Any) -> list[str]:
    """Rows of the parameters that are new, or have another default than the common one."""
    rows = []
    for name, field in model.model_fields.items():
        same = name in known and known[name].get_default() == field.get_default()
        if not same:
            text = (field.description or "").replace("|", "\\|")
            default = field.get_default()
            rows.append(f"| `{name}` | {text} | {'none' if default is None else f'`{default!r}`'} |")
    return [*HEAD, *rows]


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
