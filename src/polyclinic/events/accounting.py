"""Row accounting: rows in = rows out + rows dropped, by named reason, at every step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from polyclinic.errors import DataError

__all__ = ["Step"]


@dataclass(frozen=True)
class Step:
    """One step of the way from the source to the tensor.

    Parameters
    ----------
    name
        What was done, e.g. ``"read diagnoses_icd"``.
    rows_in, rows_out
        Rows (of a wide table: cells) before and after.
    dropped
        Reason -> rows.

    Examples
    --------
    >>> Step("read labs", 10, 8, {"no code": 2}).to_json()["dropped"]
    {'no code': 2}
    >>> Step("read labs", 10, 9, {"no code": 2})
    Traceback (most recent call last):
    polyclinic.errors.DataError: [PC300] step 'read labs' lost rows: 10 in, 9 out, 2 dropped
      what to do: a key that should be unique occurs twice in a table it is joined with
    """

    name: str
    rows_in: int
    rows_out: int
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        gone = sum(self.dropped.values())
        if self.rows_in != self.rows_out + gone:
            raise DataError(
                f"step {self.name!r} lost rows: {self.rows_in} in, {self.rows_out} out, {gone} dropped",
                hint="a key that should be unique occurs twice in a table it is joined with",
            )

    def to_json(self) -> dict[str, Any]:
        """Plain values for the manifest."""
        return {
            "step": self.name,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "dropped": dict(sorted(self.dropped.items())),
        }
