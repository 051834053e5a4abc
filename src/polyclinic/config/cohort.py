"""The sections of ``study.toml`` that say who, when and which visits: ``[cohort]``, ``[time]``, ``[visits]``."""

from __future__ import annotations

import re
from datetime import date
from itertools import pairwise
from typing import Any, Final, Self

from pydantic import Field, model_validator

from polyclinic.config.toml import TomlSection

BINS: Final = 12  # of one width, where only the width is given


class CohortRule(TomlSection):
    """``[cohort]``: whose records take part, and from which day on they are looked at (the index date)."""

    definition: int | None = Field(None, description="OMOP: cohort_definition_id of the site's COHORT table.")
    sql: str | None = Field(
        None,
        description="Name of a SELECT subject_id, cohort_start_date, cohort_end_date that lies at the owner's node.",
    )
    sha256: str | None = Field(
        None, pattern=r"^[0-9a-f]{64}$", description="Digest of that file: it runs only if the owner's has the same."
    )
    atlas: str | None = Field(
        None, description="OMOP: JSON file of an ATLAS cohort definition; it travels in the study."
    )
    first: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="First visit with one of these codes of every kind named, e.g. {diagnosis = ['I50'], visits = ['inpatient']}.",
    )
    age: tuple[int, int] | None = Field(None, description="Age in years at the index date: from, to.")
    washout: int = Field(0, ge=0, description="Days of observation before the index date.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = [k for k in ("definition", "sql", "atlas", "first") if getattr(self, k)]
        if len(ways) > 1:
            raise ValueError(f"{' and '.join(ways)}: choose one way to define the cohort")
        if (self.sql is None) != (self.sha256 is None):
            raise ValueError("sql and sha256 belong together: the digest of the file that the owner has")
        if self.age is not None and self.age[0] > self.age[1]:
            raise ValueError(f"age from {self.age[0]} to {self.age[1]}")
        return self


class TimeRule(TomlSection):
    """``[time]``: the study period, and the look-back around the index date."""

    start: date | None = Field(None, description="First day of the study period.")
    end: date | None = Field(None, description="Last day.")
    before: int | None = Field(None, ge=0, description="Look-back: events from so many days before the index date ...")
    after: int | None = Field(None, ge=0, description="... to so many days after it.")
    bins: tuple[int, ...] = Field(
        (),
        max_length=25,
        description="Edges, in days since the index date, of the mode 'time', e.g. [-365, -30, 0] (the last one is a day of "
        "the last bin); or the width of twelve bins from the index date on, '30d' (with `before`, `after`: as many as fill them).",
    )

    @model_validator(mode="before")
    @classmethod
    def _width(cls, values: Any) -> object:
        """Edges of bins of one width."""
        bins = values.get("bins") if isinstance(values, dict) else None
        if not isinstance(bins, str):
            return values
        match = re.fullmatch(r"([1-9][0-9]{0,3})d", bins.strip())
        days_before, days_after = values.get("before"), values.get("after")
        if match is None:
            raise ValueError(f"bins: {bins!r} is no width in days such as '30d', and no list of edges")
        width = int(match[1])
        ends = [x for x in (days_before, days_after) if isinstance(x, int)]
        first = -(-(days_before or 0) // width) if ends else 0
        # The last edge is a day of the last bin, which is as wide as the others (or holds one day more: `after` itself).
        end = (days_after or 0) if ends else width * BINS - 1
        last = max(round((end + 1) / width), 0)
        return {**values, "bins": (*(width * k for k in range(-first, last)), end)}

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.start is not None and self.end is not None and self.start > self.end:
            raise ValueError(f"start {self.start} is after end {self.end}")
        if self.bins and (len(self.bins) < 3 or any(a >= b for a, b in pairwise(self.bins[:-1]))):
            raise ValueError("bins: at least three edges, each larger than the one before")
        if self.bins and self.bins[-2] > self.bins[-1]:  # equal: the last bin is one day
            raise ValueError(f"bins: the last edge {self.bins[-1]} is before {self.bins[-2]}")
        return self

    @property
    def window(self) -> tuple[int | None, int | None]:
        """First and last day since the index date that count: of the look-back, and within the bins."""
        low = None if self.before is None else -self.before
        high = self.after
        if self.bins:
            low = self.bins[0] if low is None else max(low, self.bins[0])
            high = self.bins[-1] if high is None else min(high, self.bins[-1])
        return low, high

    @property
    def labels(self) -> tuple[str, ...]:
        """What the bins are called, in order: the public axis of the mode 'time'."""
        return tuple(bin_label(a, b, n == len(self.bins) - 1) for n, (a, b) in enumerate(pairwise(self.bins), start=1))

    @property
    def relative(self) -> bool:
        """Whether it needs an index date."""
        return self.before is not None or self.after is not None or bool(self.bins)


class VisitRule(TomlSection):
    """``[visits]``: which visits count."""

    types: tuple[str, ...] = Field(
        min_length=1,
        description="inpatient, outpatient, emergency; an OMOP concept (with its descendants); or as the source writes it.",
    )


class ExcludeRule(TomlSection):
    """``[exclude]`` of a node: patients who opted out; read at every ingest."""

    patients: str = Field(description="CSV file, one identifier of a patient a line under a header.")


def bin_label(low: int, high: int, last: bool) -> str:
    """What a bin of relative time is called; the last one holds its end, too.

    >>> bin_label(-365, -30, False), bin_label(-30, 0, True)
    ('-365 to -31 days', '-30 to 0 days')
    """
    return f"{low} to {high if last else high - 1} days"
