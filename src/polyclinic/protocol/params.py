"""Parameters: declared once, with bounds and the paper's symbol; they serve Python, TOML, the wire and the docs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from typing_extensions import TypeVar

from polyclinic.errors import ConfigError
from polyclinic.plugins import did_you_mean
from polyclinic.privacy.accounting.budget import Privacy


class Params(BaseModel):
    """What every federated method has."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)
    removed: ClassVar[Mapping[str, str]] = {}  # parameters of earlier versions, and what to use instead

    rounds: int = Field(100, ge=1, le=100_000, description="Rounds at most.")
    tol: float = Field(0.0, ge=0, description="Stop when the method's figure changes by less; 0 = run all rounds.")
    seed: int = Field(0, ge=0, description="Seed of every random choice but privacy noise.")
    aggregation: str = Field("plain", description="How sites' contributions are added: plain, masked, median, ...")
    variant: Literal["corrected", "paper"] = Field(
        "corrected", description="Corrected algorithm, or as printed in the paper (see the page of errata)."
    )
    privacy: Privacy | None = Field(None, description="Differential privacy asked for.")

    @property
    def starts(self) -> int:
        """Random starts of which the best is kept, where a method has them (``n_starts``); else one."""
        return int(dict(self).get("n_starts", 1))

    @property
    def columns(self) -> int:
        """Columns of the model where they are asked for by a number (``rank``, ``n_components``); 0 where they are not."""
        counts = [dict(self).get(name) for name in ("rank", "n_components")]
        return max((n for n in counts if isinstance(n, int)), default=0)

    @field_validator("aggregation")
    @classmethod
    def _known_sum(cls, value: str) -> str:
        from polyclinic.protocol.aggregators import unknown  # the sums need parameters first

        if fault := unknown(value):
            raise ValueError(fault)
        return value


M = TypeVar("M", bound=Params)
P = TypeVar("P", bound=Params, default=Any)


def checked(model: type[M], values: Mapping[str, object], what: str) -> M:
    """Make the parameters, or raise ONE error that names every wrong one."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as e:
        faults: dict[tuple[str, str], list[str]] = {}
        hints: dict[tuple[str, str], str] = {}  # a value that fits none of a parameter's types is one fault
        for f in e.errors():
            first = str(f["loc"][0]) if f["loc"] else "parameters"
            nested = isinstance(values.get(first), dict | BaseModel) and f["input"] is not values.get(first)
            place = ".".join(str(x) for x in f["loc"]) if nested else first
            value = "" if f["type"] in ("missing", "extra_forbidden") else f" (got {f['input']!r})"
            unknown = f["type"] == "extra_forbidden"
            text = f"not a parameter of {what}" if unknown and not nested else f["msg"].removeprefix("Value error, ")
            faults.setdefault((place, value), []).append(text)
            if suggestion := _near(f["type"], first, str(f["input"]), str(f.get("ctx", {}).get("expected", "")), model):
                hints[place, value] = suggestion
        lines = [
            f"{at[0]}: {' or '.join(dict.fromkeys(suggestion))}{at[1]}{hints.get(at, '')}"
            for at, suggestion in faults.items()
        ]
        raise ConfigError(f"{what}: wrong parameters", faults=lines) from None


# What other libraries call our parameters.
ELSEWHERE: Final = {"n_components": "rank", "n_topics": "rank", "max_iter": "rounds", "random_state": "seed"}


def _near(kind: str, key: str, given: str, expected: str, model: type[Params]) -> str:
    """The nearest known key, or the nearest of the values that a parameter may have."""
    if kind == "extra_forbidden":
        if key in model.removed:
            return f"; {model.removed[key]}"
        names = sorted(model.model_fields)
        if ELSEWHERE.get(key) in names:
            return f"; did you mean {ELSEWHERE[key]!r}?"
        return f"; {did_you_mean(key, names) or 'known: ' + ', '.join(names)}"
    if kind == "model_type" and key == "privacy":
        return f"; write privacy=pc.Privacy(epsilon={given}, delta=1e-6)"
    if kind == "literal_error":
        suggestion = did_you_mean(given, re.findall(r"'([^']*)'", expected))
        return f"; {suggestion}" if suggestion else ""
    return ""


SECTION: Final = re.compile(r"^(Parameters|Attributes|See Also|References|Examples)\n-{3,}\n", re.M)


def documented(cls: type[Parameterized]) -> str:
    """Return a class's docstring with all declared parameters, and with the attributes that its bases describe."""
    summary, *sections = SECTION.split(inspect.cleandoc(cls.__doc__ or ""))
    texts = dict(zip(sections[::2], sections[1::2], strict=True))
    if "Parameters" in texts or cls.Params is Params:
        return inspect.cleandoc(cls.__doc__ or "")
    rows = [f"{name} : default {f.get_default()!r}\n    {f.description}" for name, f in cls.Params.model_fields.items()]
    for base in cls.__mro__[1:]:
        parts = SECTION.split(inspect.cleandoc(base.__dict__.get("__doc__") or ""))
        if "Attributes" in parts:
            inherited = parts[parts.index("Attributes") + 1].strip()
            texts["Attributes"] = f"{texts.get('Attributes', '').strip()}\n{inherited}".strip()
            break
    texts = {"Parameters": "\n".join(rows), **texts}
    order = ("Parameters", "Attributes", "See Also", "References", "Examples")
    body = [f"{name}\n{'-' * len(name)}\n{texts[name].strip()}" for name in order if name in texts]
    return "\n\n".join([summary.strip(), *body])


class Parameterized(Generic[P]):
    """Anything made from declared parameters: keyword arguments, all faults at once, scikit-learn's get/set_params."""

    Params: ClassVar[type[Params]] = Params
    params: P

    def __init__(self, *unnamed: object, **params: object) -> None:
        if unnamed:
            own = [n for n in self.Params.model_fields if n not in Params.model_fields]
            name = min(own or ["rounds"], key=lambda n: n not in ("rank", "n_components"))
            what, hint = type(self).__name__, f"{name}={unnamed[0]!r}"
            raise ConfigError(f"{what}: the value {unnamed[0]!r} has no parameter name", hint=f"write {what}({hint})")
        self.params = cast(P, checked(self.Params, params, type(self).__name__))

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        cls.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=f.get_default(), annotation=f.annotation)
                for n, f in cls.Params.model_fields.items()
            ]
        )
        if cls.__dict__.get("__doc__"):
            cls.__doc__ = documented(cls)

    if not TYPE_CHECKING:  # a parameter reads like an attribute (model.rank), as in scikit-learn

        def __getattr__(self, name: str) -> object:
            if name in type(self).Params.model_fields and "params" in self.__dict__:
                return getattr(self.params, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        """A parameter that is assigned is checked like any other; it takes effect at the next fit."""
        if name in type(self).Params.model_fields:
            self.set_params(**{name: value})
        else:
            object.__setattr__(self, name, value)

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """The parameters, by name."""
        return {n: getattr(self.params, n) for n in self.Params.model_fields}

    def set_params(self, **params: object) -> Self:
        """Change some parameters; checked like new ones."""
        self.params = cast(P, checked(self.Params, {**self.get_params(), **params}, type(self).__name__))
        return self

    def with_params(self, **params: object) -> Self:
        """A new, unfitted one with some parameters changed."""
        return type(self)(**{**self.get_params(), **params})

    def __repr__(self) -> str:
        changed = {
            n: v
            for n, v in self.get_params().items()
            if v != self.Params.model_fields[n].get_default() or n in ("rank",)
        }
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in changed.items())})"
