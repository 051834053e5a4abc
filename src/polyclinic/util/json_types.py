"""JSON as a type: what ``json`` reads and writes."""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["Json", "JsonObject"]

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
JsonObject: TypeAlias = dict[str, Json]
