"""Parameters: declared once, with bounds and the paper's symbol; they serve Python, TOML, the wire and the docs."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from polyclinic.errors import ConfigError
from polyclinic.privacy.budget import Privacy

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


def checked(model: type[Params], values: dict[str, Any], what: str) -> Any:
    """Make the parameters, or raise ONE error that names every wrong one."""
    try:
        return model(**values)
    except ValidationError as e:
        faults: dict[tuple[str, str], list[str]] = {}  # a value that fits none of a parameter's types is one fault
        for f in e.errors():
            first = str(f["loc"][0]) if f["loc"] else "parameters"
            inside = isinstance(values.get(first), dict | BaseModel) and f["input"] is not values.get(first)
            where = ".".join(str(x) for x in f["loc"]) if inside else first
            value = "" if f["type"] in ("missing", "extra_forbidden") else f" (got {f['input']!r})"
            known = ""
            if f["type"] == "extra_forbidden":
                close = get_close_matches(first, model.model_fields, 1)
                known = (
                    f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(model.model_fields))}"
                )
            faults.setdefault((where, value + known), []).append(f["msg"])
        told = [f"{where}: {' or '.join(dict.fromkeys(msgs))}{more}" for (where, more), msgs in faults.items()]
        raise ConfigError(f"{what}: wrong parameters", faults=told) from None
