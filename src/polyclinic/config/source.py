"""``[source]`` of a node: where the records are."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from polyclinic.config.toml import TomlSection
from polyclinic.plugins import did_you_mean, plugged

SourceKind = Literal["files", "omop", "mimic3", "mimic4", "eicu", "synpuf", "fhir", "meds", "matrix"]

BUILT_IN: Final[tuple[str, ...]] = get_args(SourceKind)
SERVERS: Final = ("postgresql", "postgres", "mssql", "oracle", "snowflake", "bigquery", "databricks", "odbc")


class WideKind(TomlSection):
    """``[source.wide.KIND]``: one kind of event spread over several columns of a row."""

    columns: tuple[str, ...] = Field(min_length=1, description="The columns.")
    code: Literal["value", "column"] = Field("value", description="The code is the cell's value or the column's name.")
    without: tuple[str, ...] = Field((), description="Values that mean 'did not happen', e.g. No.")


class TableRule(TomlSection):
    """``[[source.tables]]``: one of several tables of a source of kind files."""

    file: str = Field(description="CSV or Parquet; a folder or pattern, too.")
    key: str | None = Field(
        None,
        description="Column that both have: events get the columns of the row with their key. Without: rows are events.",
    )
    columns: dict[str, str] = Field(
        default_factory=dict, description="Name in the source -> name in this table, or '=text'."
    )


class Source(TomlSection):
    """``[source]``: where the records are. Which keys apply depends on ``kind`` (docs/howto/ingest.md)."""

    kind: str = Field(
        description=f"One of {', '.join(BUILT_IN)}; or one that is plugged in (docs/howto/new-source.md)."
    )
    options: dict[str, Any] = Field(default_factory=dict, description="A plugged-in kind: its own keys.")
    events: str | None = Field(None, description="files, meds: event table (CSV, Parquet; a folder or pattern).")
    labels: str | None = Field(None, description="files: table of patient_id, label.")
    columns: dict[str, str] = Field(default_factory=dict, description="files: canonical name -> name in the file.")
    wide: dict[str, WideKind] = Field(default_factory=dict, description="files: kinds spread over several columns.")
    systems: dict[str, str] = Field(default_factory=dict, description="files: kind -> code system, e.g. icd9cm.")
    kinds: dict[str, str] = Field(default_factory=dict, description="meds: first part of a code -> kind.")
    missing: tuple[str, ...] = Field(("",), description="files: texts that mean 'no value', in events and labels.")
    time_format: str | tuple[str, ...] | None = Field(
        None,
        description="files: how times are written, if not 2020-12-31 23:59: %d.%m.%Y, or days (since an index date). A list: the first that fits.",
    )
    path: str | None = Field(None, description="Any kind: stands for events, features, folder, database or url.")
    folder: str | None = Field(None, description="Folder of CSV, Parquet or ndjson tables.")
    database: str | None = Field(None, description="omop: an SQLite or DuckDB file.")
    url: str | None = Field(
        None,
        description="omop, mimic3, mimic4, eicu: postgresql://..., mssql://..., odbc:... (docs/howto/ingest.md); or env:NAME.",
    )
    password: str | None = Field(None, description="Of the database: env:NAME or file:PATH.")
    db_schema: str | None = Field(None, alias="schema", description="omop: schema of the tables.")
    tables: Annotated[
        Annotated[dict[str, str], Tag("names")] | Annotated[tuple[TableRule, ...], Tag("several")],
        Discriminator(lambda value: "names" if isinstance(value, dict) else "several"),
    ] = Field(
        default_factory=dict, description="Standard table name -> name here. files: several tables, [[source.tables]]."
    )
    codes: Literal["standard", "source"] = Field(
        "standard", description="omop: standard concepts or source codes; eicu: ICD-9, or (source) diagnosisstring."
    )
    split: str | None = Field(None, description="Column that divides the patients into sites (simulation).")
    elsewhere: int | None = Field(
        None, ge=0, description="At how many other hospitals a patient may be. None: unknown."
    )
    features: str | None = Field(None, description="matrix: CSV or Parquet, one row a patient.")
    label: str | None = Field(None, description="files, matrix: column of the outcome or class.")
    positive: tuple[str, ...] = Field((), description="Values of label that mean yes; empty: 1, true, yes.")

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    @property
    def table_names(self) -> dict[str, str]:
        """Standard table name -> name here."""
        return self.tables if isinstance(self.tables, dict) else {}

    @property
    def parts(self) -> tuple[TableRule, ...]:
        """The tables of a source of several, ``events`` with them."""
        if isinstance(self.tables, dict):
            return ()
        return (*((TableRule(file=self.events),) if self.events else ()), *self.tables)

    @field_validator("kind")
    @classmethod
    def _known(cls, value: str) -> str:
        plugins = plugged("polyclinic.sources")
        if value not in BUILT_IN and value not in plugins:
            hint = did_you_mean(value, [*BUILT_IN, *plugins])
            raise ValueError(f"{value!r} is none of {', '.join([*BUILT_IN, *plugins])}{'; ' if hint else ''}{hint}")
        return value

    @model_validator(mode="after")
    def _own_keys(self) -> Self:
        if self.parts and self.kind != "files":
            raise ValueError(f"[[source.tables]] are of a source of kind 'files', this one is {self.kind!r}")
        if self.options and self.kind in BUILT_IN:
            raise ValueError(f"options are of a plugged-in source, {self.kind} has its keys in [source] itself")
        return self

    @model_validator(mode="before")
    @classmethod
    def _path_stands_for(cls, values: object) -> object:
        """``path`` means what the kind needs; the place it stands for is filled in."""
        if not isinstance(values, dict) or not isinstance(values.get("path"), str):
            return values
        path, kind = values["path"], values.get("kind")
        place = {"files": "events", "meds": "events", "matrix": "features"}.get(str(kind), "folder")
        if place == "folder" and path.partition(":")[0] in (*SERVERS, "env"):
            place = "url"
        elif place == "folder" and path.lower().endswith((".db", ".sqlite", ".sqlite3", ".duckdb")):
            place = "database"
        if values.get(place) not in (None, path):
            raise ValueError(f"path and {place} are both given")
        return {**{k: v for k, v in values.items() if k != "path"}, place: path}
