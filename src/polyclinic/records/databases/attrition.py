"""Row and patient accounting: rows in = rows out + rows dropped, by named reason, at every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from polyclinic.errors import DataError

STEPS: Final = ("opt-out", "cohort", "age", "washout", "study period", "observation period", "visit types", "look-back")


@dataclass(frozen=True)
class Stage:
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
    >>> Stage("read labs", 10, 8, {"no code": 2}).to_json()["dropped"]
    {'no code': 2}
    >>> Stage("read labs", 10, 9, {"no code": 2})
    Traceback (most recent call last):
    polyclinic.errors.DataError: [PC300] step 'read labs' lost rows: 10 in, 9 out, 2 dropped
      what to do: a key that should be unique occurs twice in a table it is joined with
    >>> Stage("read labs", 10, 7, {"no code": 2})
    Traceback (most recent call last):
    polyclinic.errors.DataError: [PC300] step 'read labs' lost rows: 10 in, 7 out, 2 dropped
      what to do: a row is left out without a reason: the query of events gives every row, its reason in the column dropped
    """

    name: str
    rows_in: int
    rows_out: int
    dropped: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        dropped = sum(self.dropped.values())
        if self.rows_in != self.rows_out + dropped:
            too_many = self.rows_in < self.rows_out + dropped
            raise DataError(
                f"step {self.name!r} lost rows: {self.rows_in} in, {self.rows_out} out, {dropped} dropped",
                hint="a key that should be unique occurs twice in a table it is joined with"
                if too_many
                else "a row is left out without a reason: the query of events gives every row, its reason in the column dropped",
            )

    def to_json(self) -> dict[str, object]:
        """Plain values for the manifest."""
        return {
            "step": self.name,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "dropped": dict(sorted(self.dropped.items())),
        }


@dataclass(frozen=True)
class Attrition:
    """What is left after a step: patients and rows."""

    step: str
    patients: int
    rows: int

    def to_json(self) -> dict[str, object]:
        """Plain values for the manifest."""
        return {"step": self.step, "patients": self.patients, "rows": self.rows}


def added(tables: Sequence[Sequence[Attrition]]) -> tuple[Attrition, ...]:
    """One table of several sites; a site without a step keeps what it had before.

    >>> a = [Attrition("in the source", 9, 90), Attrition("cohort", 5, 50)]
    >>> [x.patients for x in added([a, [Attrition("in the source", 4, 40)]])]
    [13, 9]
    """
    out = []
    last = [Attrition("", 0, 0) for _ in tables]
    for step in ("in the source", *STEPS):
        if not any(a.step == step for t in tables for a in t):
            continue
        last = [next((a for a in t if a.step == step), was) for t, was in zip(tables, last, strict=True)]
        out.append(Attrition(step, sum(a.patients for a in last), sum(a.rows for a in last)))
    return tuple(out)


def shared(attrition: Sequence[Attrition], minimum: int) -> list[dict[str, object]]:
    """The table as others may see it: no number, and no difference of two shown ones, between 1 and ``minimum`` - 1.

    How many take part is known besides (sizes of sites), so the last number decides first. The source is next, then the steps
    from the end: a table of fewer steps shows the same numbers.

    Examples
    --------
    >>> a = [Attrition("in the source", 100, 900), Attrition("opt-out", 97, 880), Attrition("cohort", 60, 500)]
    >>> [x["patients"] for x in shared(a, 11)]
    [100, None, 60]
    """
    visible: dict[int, int] = {}
    for k in sorted(range(len(attrition)), key=lambda k: (k != len(attrition) - 1, k != 0, -k)):
        n = attrition[k].patients
        if not any(0 < abs(n - other) < minimum for other in (0, *visible.values())):
            visible[k] = n
    return [{"step": a.step, "patients": visible.get(k)} for k, a in enumerate(attrition)]
