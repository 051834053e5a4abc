"""``[people]`` and ``[evaluate]`` of a study: what is known of patients beside their codes, and what follows the fit."""

from __future__ import annotations

from typing import Final, Literal, Self

from pydantic import Field, model_validator

from polyclinic.config.sections import hours
from polyclinic.config.toml import TomlSection

Act = Literal["carriers", "people", "outcome", "survival", "completion", "replicate"]


STEPS: Final = 2_000  # of a survival table: an order could ask for more than a hospital's memory holds


class SurvivalRule(TomlSection):
    """``[people] survival``: columns of the days to an event (or until last seen) and of whether it came."""

    time: str = Field(description="Column of days.")
    event: str = Field(description="Column of 0 (last seen then) or 1 (the event came then).")
    grid: str = Field("30d", description="Step of the curves.")
    until: str = Field("730d", description="How long patients are followed.")

    @model_validator(mode="after")
    def _days(self) -> Self:
        for key in ("grid", "until"):
            width = hours(getattr(self, key))
            if width is None or width % 24:
                raise ValueError(f"{key} = {getattr(self, key)!r} is no number of days; write e.g. '30d'")
        if self.end > STEPS * self.width:
            raise ValueError(
                f"until = {self.until!r} is more than {STEPS:,} steps of {self.grid!r}; write a longer grid"
            )
        return self

    @property
    def width(self) -> float:
        """Days of a step."""
        return (hours(self.grid) or 24.0) / 24

    @property
    def end(self) -> float:
        """Days that are followed."""
        return (hours(self.until) or 24.0) / 24


class PeopleRule(TomlSection):
    """``[people]``: one row a patient, made at the site, never sent. Columns are read where labels are."""

    outcome: str | None = Field(None, description="As [labels] outcome: mortality, readmission, or a boolean column.")
    days: int = Field(30, ge=1, description="Readmission: within so many days of a discharge.")
    age: tuple[float, ...] = Field((), description="Public bands of age, e.g. [0, 50, 70, 120].")
    sex: bool = Field(False, description="Whether sex (F, M) is read.")
    columns: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, max_length=100, description="Other columns with PUBLIC levels."
    )
    survival: SurvivalRule | None = Field(None, description="Time to an event.")

    @model_validator(mode="after")
    def _bands(self) -> Self:
        faults = []
        if self.age and (len(self.age) < 2 or any(b <= a for a, b in zip(self.age, self.age[1:]))):
            faults.append(f"age = {list(self.age)}: bands rise, e.g. [0, 50, 70, 120]")
        faults += [f"columns.{n} has no level" for n, levels in self.columns.items() if not levels]
        faults += [f"columns.{n}: {n} has a key of its own" for n in self.columns if n in ("age", "sex")]
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are read."""
        columns = [*(["age"] if self.age else []), *(["sex"] if self.sex else []), *self.columns]
        return (*columns, *((self.survival.time, self.survival.event) if self.survival else ()))


class EvaluateRule(TomlSection):
    """``[evaluate]``: what follows the fit."""

    what: tuple[Act, ...] | None = Field(None, description="Acts; default: all that [people] and [labels] allow.")
    adjust: tuple[str, ...] | None = Field(None, description="age, sex, size, site, columns; default: all but size.")
    baselines: bool = Field(True, description="Also AUCs of covariates alone, record sizes, random factors, raw codes.")
    support: bool = Field(True, description="Count patients per code, to decide which codes are shown.")
    ranks: tuple[int, ...] = Field(
        (), max_length=20, description="Other ranks to compare with the method's, in the same run; not with [privacy]."
    )
    share: float = Field(0.3, gt=0, lt=1, description="With [privacy]: part of mu^2 that pays for the findings.")
    max_carried: int = Field(8, ge=1, description="With [privacy]: a patient counts for so many phenotypes.")
    planning_size: int | None = Field(None, ge=1, description="With [privacy]: public guess of the number of patients.")
    rate: float = Field(0.1, gt=0, lt=1, description="With [privacy]: public guess of the share with the outcome.")
