"""Write ``polyclinic/__init__.pyi`` anew from the public names and the declared parameters: ``python tests/models/keywords.py``."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import polyclinic as pc
from polyclinic.methods.rounds.step_size import Schedule
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.protocol.estimator import Configured

STUB = Path(pc.__file__).with_suffix(".pyi")
HEAD = '''"""Public names, and the parameters of every estimator: what an editor completes, and what a type checker refuses.

Written by ``python tests/models/keywords.py`` from the tables of ``__init__.py`` and the declared parameters.
"""

from collections.abc import Mapping
from typing import Literal

{imports}

__version__: str
__all__: list[str]
_WHERE: dict[str, str]
_MODULES: dict[str, str]
'''

ONE = """
class {name}({base}):
{fields}
    def __init__(
        self,
        *,
{keywords}
    ) -> None: ...
"""


def text(kind: Any) -> str:
    """A type as it is written."""
    if kind is None or kind is type(None):
        return "None"
    if kind in (int, float, str, bool, bytes):
        return str(kind.__name__)
    if kind is Privacy:
        return "Privacy"
    if kind is Schedule:
        return "_Schedule | Mapping[str, float]"
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return text(inside[0])
    if origin in (Union, types.UnionType):
        parts = list(dict.fromkeys(text(k) for k in inside))
        return "object" if "object" in parts else " | ".join(parts)
    if origin is Literal:
        return f"Literal[{', '.join(repr(v) for v in inside)}]".replace("'", '"')
    if origin in (tuple, dict, list):
        held = ", ".join("..." if k is Ellipsis else text(k) for k in inside)
        return f"{'Mapping' if origin is dict else origin.__name__}[{held}]"
    return "object"  # whatever the validator of the parameter reads


def estimators() -> dict[str, type[Configured[Any]]]:
    """Public estimators with declared parameters."""
    found = {n: getattr(pc, n) for n in pc.__all__}
    return {n: c for n, c in sorted(found.items()) if isinstance(c, type) and issubclass(c, Configured)}


def rendered() -> str:
    """The file."""
    typed, imports, classes = estimators(), [], []
    for name, cls in typed.items():
        package, module = pc._WHERE[name].rsplit(".", 1)
        imports.append(f"from {package} import {module} as _{module}")
        kinds = {f: text(info.annotation) for f, info in cls.Params.model_fields.items()}
        fields = "".join(f"    {f}: {kind}\n" for f, kind in kinds.items())
        keywords = "\n".join(f"        {f}: {kind} = ...," for f, kind in kinds.items())
        classes.append(ONE.format(name=name, base=f"_{module}.{name}", fields=fields, keywords=keywords))
    imports += [f"from {module} import {name} as {name}" for name, module in pc._WHERE.items() if name not in typed]
    for name, module in pc._MODULES.items():
        imports.append(f"from {module.rsplit('.', 1)[0]} import {name} as {name}")
    imports += ["from polyclinic.methods.rounds.step_size import Schedule as _Schedule"]
    lines = "\n".join(sorted(set(imports)))
    return HEAD.format(imports=lines) + "\n".join(classes)


if __name__ == "__main__":
    STUB.write_text(rendered(), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "check", "-q", "--fix", str(STUB)], check=True)
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(STUB)], check=True)
