"""Parameters: declared once, with bounds and the paper's symbol; they serve Python, TOML, the wire and the docs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from polyclinic.errors import ConfigError
from polyclinic.plugins import did_you_mean
from polyclinic.privacy.accounting.budget import Privacy

__all__ = ["Params", "checked"]


class Params(BaseModel):
    """What every federated method has."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)

    rounds: int = Field(100, ge=1, le=100_000, description="Rounds at most.")
    tol: float = Field(0.0, ge=0, description="Stop when the method's figure changes by less; 0 = run all rounds.")
    seed: int = Field(0, ge=0, description="Seed of every random choice but privacy noise.")
    aggregation: str = Field("plain", description="How sites' contributions are added: plain, masked, subspace, ...")
    variant: Literal["corrected", "paper"] = Field(
        "corrected", description="As corrected in docs/errata, or as printed."
    )
    privacy: Privacy | None = Field(None, description="Differential privacy asked for.")

    @property
    def starts(self) -> int:
        """Random starts of which the best is kept, where a method has them (``n_starts``); else one."""
        return int(dict(self).get("n_starts", 1))

    @property
    def columns(self) -> int:
        """Columns of the model where they are asked for by a number (``rank``, ``n_components``); 0 where they are not."""
        asked = [dict(self).get(name) for name in ("rank", "n_components")]
        return max((n for n in asked if isinstance(n, int)), default=0)

    @field_validator("aggregation")
    @classmethod
    def _known_sum(cls, value: str) -> str:
        from polyclinic.protocol.aggregators import unknown  # the sums need parameters first

        if said := unknown(value):
            raise ValueError(said)
        return value


M = TypeVar("M", bound=Params)


def checked(model: type[M], values: Mapping[str, object], what: str) -> M:
    """Make the parameters, or raise ONE error that names every wrong one."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as e:
        faults: dict[tuple[str, str], list[str]] = {}
        near: dict[tuple[str, str], str] = {}  # a value that fits none of a parameter's types is one fault
        for f in e.errors():
            first = str(f["loc"][0]) if f["loc"] else "parameters"
            inside = isinstance(values.get(first), dict | BaseModel) and f["input"] is not values.get(first)
            where = ".".join(str(x) for x in f["loc"]) if inside else first
            value = "" if f["type"] in ("missing", "extra_forbidden") else f" (got {f['input']!r})"
            faults.setdefault((where, value), []).append(f["msg"].removeprefix("Value error, "))
            if said := _near(f["type"], first, str(f["input"]), str(f.get("ctx", {}).get("expected", "")), model):
                near[where, value] = said
        told = [f"{at[0]}: {' or '.join(dict.fromkeys(said))}{at[1]}{near.get(at, '')}" for at, said in faults.items()]
        raise ConfigError(f"{what}: wrong parameters", faults=told) from None


def _near(kind: str, key: str, given: str, expected: str, model: type[Params]) -> str:
    """The nearest known key, or the nearest of the values that a parameter may have."""
    if kind == "extra_forbidden":
        known = sorted(model.model_fields)
        return f"; {did_you_mean(key, known) or 'known: ' + ', '.join(known)}"
    if kind == "literal_error":
        near = did_you_mean(given, re.findall(r"'([^']*)'", expected))
        return f"; {near}" if near else ""
    return ""
