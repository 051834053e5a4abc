"""The sections of ``study.toml``: identity, tensor, codes, labels, features, method, privacy."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from polyclinic.config.toml import NAME, TomlSection


def hours(window: str) -> float | None:
    """The width of a time window in hours, or None for ``visit``, ``day`` and ``patient``.

    Examples
    --------
    >>> hours("6h"), hours("30d"), hours("visit")
    (6.0, 720.0, None)
    """
    if window in ("visit", "day", "patient"):
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([hd])", window)
    if not match or float(match[1]) <= 0:
        raise ValueError("not a window: use 'visit', 'day', 'patient', hours like '6h' or days like '30d'")
    return float(match[1]) * (24 if match[2] == "d" else 1)


def _window(value: str) -> str:
    hours(value)
    return value


def _per_kind(value: dict[str, int]) -> dict[str, int]:
    faults = [f"{k} = {v}" for k, v in value.items() if v < 1]
    if faults:
        raise ValueError(f"not a positive number of codes: {', '.join(faults)}")
    return value


class StudyRule(TomlSection):
    """``[study]``: its name, and how long it waits for whom."""

    name: str = Field(pattern=NAME, description="Name of the study.")
    seed: int = Field(0, ge=0, description="Seed of every random choice but privacy noise.")
    description: str = Field("", description="What the study asks, in words a data owner understands.")
    quorum: int | None = Field(
        None,
        ge=1,
        description="Sites that must answer a round; default: all. Between hosts more than half; secure sums: at least (n + 1)//2 + 1, and 3.",
    )
    deadline: float = Field(600.0, gt=0, description="Seconds a round waits for a site.")
    pace: float = Field(
        5.0,
        ge=0,
        le=15,
        description="Formal studies between hosts: a site answers at multiples of so many seconds, or says that it is busy; 0: at once.",
    )
    reading: float = Field(
        600.0,
        ge=0,
        le=86_400,
        description="Formal studies between hosts: seconds from the owner's agreement until a site says that it is ready; 0: at once.",
    )
    key: str = Field("", max_length=200, description="Of the patients' halves; public, fixed before data are read.")
    replicate: int | None = Field(
        None,
        ge=0,
        le=20,
        description="Split-half repeats of the replication test. Default: 1 for phenotypes by sums without [privacy], else 0.",
    )


class TensorRule(TomlSection):
    """``[tensor]``: which codes count as occurring together (docs/howto/ingest.md states the rule exactly)."""

    modes: tuple[str, ...] = Field(min_length=1, max_length=7, description="Kind of event of every feature mode.")
    window: Annotated[str, AfterValidator(_window)] = Field(
        "visit", description="visit, day, e.g. 6h or 30d, or patient (anywhere in the records)."
    )
    count: Literal["visits", "presence", "days", "product"] = Field(
        "visits",
        description="Value of a cell: visits (or days) with all its codes; 1; or the ways to take one event of each mode.",
    )
    top: Annotated[dict[str, int], AfterValidator(_per_kind)] = Field(
        default_factory=dict, description="Codes kept per kind, most frequent first."
    )
    top_by: Literal["patients", "visits"] = Field("patients", description="Frequency of a code: of patients or visits.")
    minimum_patients: int = Field(
        11,
        ge=1,
        description="A code of fewer patients, over all sites, is left out; not under [privacy].",
    )
    cap: float | None = Field(None, gt=0, description="Largest value of a cell (TRIP: 3).")
    vocabulary: dict[str, str] = Field(
        default_factory=dict, description="Per kind a public list of codes: CSV with columns code and (optional) name."
    )
    alignment: Literal["ring", "union"] | None = Field(
        None,
        description="Modes without a public list: agree on codes by private vocabulary alignment (no site shows a code), or show the lists.",
    )
    side_by_side: bool = Field(
        False, description="One mode of all codes, one code a cell, instead of codes that occur together."
    )
    ranges: str | None = Field(None, description="CSV code, low, high: results outside are abnormal labs.")

    @model_validator(mode="after")
    def _kinds_are_modes(self) -> Self:
        faults = [f"mode {m!r} is listed twice" for m in sorted({m for m in self.modes if self.modes.count(m) > 1})]
        for key in ("top", "vocabulary"):
            faults += [f"{key}.{k} is not one of the modes" for k in getattr(self, key) if k not in self.modes]
        faults += [f"top.{k} and vocabulary.{k}: choose one" for k in self.top if k in self.vocabulary]
        faults += [f"mode {m!r} contains '+' or ':'" for m in self.modes if set("+:") & set(m)]
        if self.side_by_side and "time" in self.modes:
            faults.append("side_by_side: the mode 'time' has no codes of its own")
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @property
    def axes(self) -> tuple[str, ...]:
        """Modes of the tensor: the kinds, or one with all of them side by side."""
        return ("+".join(self.modes),) if self.side_by_side else self.modes

    @property
    def hours(self) -> float | None:
        """Width of the window, None for ``visit``, ``day`` and ``patient``."""
        return hours(self.window)

    @property
    def placed(self) -> bool:
        """Whether events occur together in a visit or on a day, each of which is a place of its own."""
        return self.window in ("visit", "day")


class CodeRule(TomlSection):
    """``[codes.KIND]``: how codes of one kind are grouped."""

    to: str = Field(
        "normal",
        description="as-is, normal, rubric, ccs, ccsr, chapter, block, path:2; of OMOP concepts ingredient, atc:3, ancestors:LIST.csv; or a CSV "
        "file code,group[,name], of phecodes, or accepted pairs of polyclinic align.",
    )
    unmapped: Literal["drop", "keep"] = Field("drop", description="What happens to a code that has no group.")
    mixed: bool = Field(False, description="Allow ICD-9 and ICD-10 codes side by side in one mode.")


class LabelRule(TomlSection):
    """``[labels]``: the outcome of a patient."""

    outcome: str = Field(description="mortality, readmission, or the name of a boolean column of the source.")
    days: int = Field(30, ge=1, description="Readmission: within so many days of a discharge.")

    def words(self) -> str:
        """The outcome in words, for people."""
        return (
            f"readmission within {self.days} days" if self.outcome == "readmission" else self.outcome.replace("_", " ")
        )


class FeatureRule(TomlSection):
    """``[features]``: columns of a feature matrix (similarity, mixtures)."""

    columns: tuple[str, ...] = Field(
        (), description="Which columns, in this order; empty: every number column, by name."
    )
    label: str | None = Field(None, description="Column of the class.")
    missing: Literal["refuse", "random"] = Field(
        "refuse",
        description="Empty values: refuse the table, or take them as missing at random (gaussianmixture, latentclass).",
    )


class MethodRule(BaseModel):
    """``[method]``: its name; every other key is a parameter that the method itself checks."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str = Field(
        min_length=1,
        description="topics, dpem, trip, sumals, dpfact, localtf, unpsl, gaussianmixture ... Default for a tensor: topics, with [privacy] dpem.",
    )

    @property
    def parameters(self) -> dict[str, Any]:
        """The free parameters, as written."""
        return dict(self.__pydantic_extra__ or {})


class PrivacyAsked(TomlSection):
    """``[privacy]``: the guarantee the study asks for (docs/explanation/privacy)."""

    level: Literal["patient", "entry"] = Field("patient", description="Neighbouring data differ by a patient or entry.")
    epsilon: float = Field(gt=0, description="Bound on the privacy loss over the whole study.")
    delta: float = Field(1e-6, gt=0, lt=1, description="Probability with which the bound may fail.")
    max_sites_per_patient: int | None = Field(None, ge=1, description="At how many sites one patient may appear.")
    clip: float | None = Field(None, gt=0, description="Gradient bound of the papers' mechanism.")
    count_cap: float | None = Field(None, gt=0, description="Largest count (level entry).")
