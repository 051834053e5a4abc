"""Write ``protocol/parameter_types.py`` anew from the estimators' declared parameters: ``python tests/models/keywords.py``."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import polyclinic as pc
from polyclinic.methods.rounds.step_size import Schedule
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.protocol import parameter_types as keywords
from polyclinic.protocol.estimator import Configured

HEAD = '''"""Parameters of every estimator as types: what an editor completes, and what a type checker refuses.

Written by ``python tests/models/keywords.py`` from the declared parameters; a test keeps it equal to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

if TYPE_CHECKING:
    from polyclinic.methods.rounds.step_size import Schedule
    from polyclinic.privacy.accounting.budget import Privacy

__all__ = {names}
'''

ONE = '''

class {name}Keywords(TypedDict, total=False):
    """What ``{name}(...)`` takes."""

{fields}


class {name}Typed:
    """What ``{name}`` was given."""

{fields}

    if TYPE_CHECKING:

        def __init__(self, **params: Unpack[{name}Keywords]) -> None: ...
'''


def text(kind: Any) -> str:
    """A type as it is written."""
    if kind is None or kind is type(None):
        return "None"
    if kind in (int, float, str, bool, bytes):
        return str(kind.__name__)
    if kind is Privacy:
        return "Privacy"
    if kind is Schedule:
        return "Schedule | Mapping[str, float]"
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
    names = sorted(f"{n}{end}" for n in estimators() for end in ("Keywords", "Typed"))
    out = [HEAD.format(names=str(names).replace("'", '"'))]
    for name, cls in estimators().items():
        fields = "\n".join(f"    {f}: {text(info.annotation)}" for f, info in cls.Params.model_fields.items())
        out.append(ONE.format(name=name, fields=fields))
    return "".join(out)


if __name__ == "__main__":
    Path(keywords.__file__).write_text(rendered(), encoding="utf-8")
