"""JSON as a type: what ``json`` reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
JsonMap: TypeAlias = Mapping[str, Any]  # as it was read: whoever takes a value out of it checks what it is
