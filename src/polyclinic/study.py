"""The two files of a study: ``study.toml`` (what, identical everywhere) and ``node.toml`` (where, never leaves).

This is the only module that reads TOML. All faults of a file are reported together, an unknown key with the known
ones beside it. Paths in a file are relative to the folder of that file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from polyclinic.errors import ConfigError

__all__ = ["Method", "Node", "Source", "SourceKind", "Study", "TensorRule", "hours", "secret"]

SourceKind = Literal["files", "omop", "mimic3", "mimic4", "eicu", "synpuf", "fhir", "meds", "matrix"]

CENTRAL: Final = frozenset({"cpals", "cpsgd"})  # methods that see the union: nothing is aggregated
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$"


def hours(window: str) -> float | None:
    """The width of a time window in hours, or None for ``visit`` and ``day``.

    Examples
    --------
    >>> hours("6h"), hours("30d"), hours("visit")
    (6.0, 720.0, None)
    """
    if window in ("visit", "day"):
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([hd])", window)
    if not found or float(found[1]) <= 0:
        raise ValueError("not a window: use 'visit', 'day', hours like '6h' or days like '30d'")
    return float(found[1]) * (24 if found[2] == "d" else 1)


def secret(value: str, folder: Path) -> str:
    """A value that may be kept elsewhere: ``env:NAME`` or ``file:PATH``; anything else is itself."""
    if value.startswith("env:"):
        name = value[4:]
        if name not in os.environ:
            raise ConfigError(f"environment variable {name} is not set", hint=f"export {name}=... before the command")
        return os.environ[name]
    if value.startswith("file:"):
        path = folder / value[5:]
        if not path.is_file():
            raise ConfigError(f"{path}: no such file", hint="write the secret there, readable by you only")
        return path.read_text(encoding="utf-8").strip()
    return value


def _window(value: str) -> str:
    hours(value)
    return value


def _per_kind(value: dict[str, int]) -> dict[str, int]:
    bad = [f"{k} = {v}" for k, v in value.items() if v < 1]
    if bad:
        raise ValueError(f"not a positive number of codes: {', '.join(bad)}")
    return value


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Identity(_Section):
    """``[study]``: its name, and how long it waits for whom."""

    name: str = Field(pattern=NAME, description="Name of the study.")
    seed: int = Field(0, ge=0, description="Seed of every random choice but privacy noise.")
    description: str = Field("", description="What the study asks, in words a data owner understands.")
    quorum: int | None = Field(None, ge=1, description="Sites that must answer a round; default: all.")
    deadline: float = Field(600.0, gt=0, description="Seconds a round waits for a site.")
    staleness: int | None = Field(
        None,
        ge=0,
        description="Asynchronous (dpfact, localtf; plain): rounds a contribution may be old; needs a quorum.",
    )


class TensorRule(_Section):
    """``[tensor]``: which codes count as occurring together (docs/howto/ingest.md states the rule exactly)."""

    modes: tuple[str, ...] = Field(min_length=1, max_length=7, description="Kind of event of every feature mode.")
    window: Annotated[str, AfterValidator(_window)] = Field("visit", description="visit, day, or e.g. 6h, 30d.")
    top: Annotated[dict[str, int], AfterValidator(_per_kind)] = Field(
        default_factory=dict, description="Codes kept per kind, most frequent first."
    )
    top_by: Literal["patients", "visits"] = Field("patients", description="Frequency of a code: of patients or visits.")
    minimum_patients: int = Field(1, ge=1, description="A code of fewer patients is dropped.")
    cap: float | None = Field(None, gt=0, description="Largest value of a cell (TRIP: 3).")
    vocabulary: dict[str, str] = Field(
        default_factory=dict, description="Per kind a public list of codes: CSV with columns code and (optional) name."
    )
    ranges: str | None = Field(None, description="CSV code, low, high: results outside are abnormal labs.")

    @model_validator(mode="after")
    def _kinds_are_modes(self) -> Self:
        faults = [f"mode {m!r} is listed twice" for m in sorted({m for m in self.modes if self.modes.count(m) > 1})]
        for key in ("top", "vocabulary"):
            faults += [f"{key}.{k} is not one of the modes" for k in getattr(self, key) if k not in self.modes]
        faults += [f"top.{k} and vocabulary.{k}: choose one" for k in self.top if k in self.vocabulary]
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @property
    def hours(self) -> float | None:
        """Width of the window, None for ``visit`` and ``day``."""
        return hours(self.window)


class CodeRule(_Section):
    """``[codes.KIND]``: how codes of one kind are grouped."""

    to: str = Field(
        "normal", description="as-is, normal, rubric, ccs, ccsr, chapter, block, or a CSV file code,group[,name]."
    )
    unmapped: Literal["drop", "keep"] = Field("drop", description="What happens to a code that has no group.")
    mixed: bool = Field(False, description="Allow ICD-9 and ICD-10 codes side by side in one mode.")


class LabelRule(_Section):
    """``[labels]``: the outcome of a patient."""

    outcome: str = Field(description="mortality, readmission, or the name of a boolean column of the source.")
    days: int = Field(30, ge=1, description="Readmission: within so many days of a discharge.")


class FeatureRule(_Section):
    """``[features]``: columns of a feature matrix (similarity, mixtures)."""

    columns: tuple[str, ...] = Field((), description="Which columns, in this order; empty: every number column.")
    label: str | None = Field(None, description="Column of the class.")


class Method(BaseModel):
    """``[method]``: its name; every other key is a parameter that the method itself checks."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str = Field(min_length=1, description="trip, dpfact, localtf, dpem, cpals, cpsgd, unpsl, gaussianmixture ...")

    @property
    def parameters(self) -> dict[str, Any]:
        """The free parameters, as written."""
        return dict(self.__pydantic_extra__ or {})


class PrivacyAsked(_Section):
    """``[privacy]``: the guarantee the study asks for (docs/explanation/privacy)."""

    level: Literal["patient", "entry"] = Field("patient", description="Neighbouring data differ by a patient or entry.")
    epsilon: float = Field(gt=0, description="Bound on the privacy loss over the whole study.")
    delta: float = Field(1e-6, gt=0, lt=1, description="Probability with which the bound may fail.")
    max_sites_per_patient: int | None = Field(None, ge=1, description="At how many sites one patient may appear.")
    clip: float | None = Field(None, gt=0, description="Gradient bound of the papers' mechanism.")
    count_cap: float | None = Field(None, gt=0, description="Largest count (level entry).")


class WideKind(_Section):
    """``[source.wide.KIND]``: one kind of event spread over several columns of a row."""

    columns: tuple[str, ...] = Field(min_length=1, description="The columns.")
    code: Literal["value", "column"] = Field("value", description="The code is the cell's value or the column's name.")
    without: tuple[str, ...] = Field((), description="Values that mean 'did not happen', e.g. No.")


class Source(_Section):
    """``[source]``: where the records are. Which keys apply depends on ``kind`` (docs/howto/ingest.md)."""

    kind: SourceKind = Field(description=f"One of {', '.join(get_args(SourceKind))}.")
    events: str | None = Field(None, description="files, meds: event table (CSV, Parquet; a folder or pattern).")
    labels: str | None = Field(None, description="files: table of patient_id, label.")
    columns: dict[str, str] = Field(default_factory=dict, description="files: canonical name -> name in the file.")
    wide: dict[str, WideKind] = Field(default_factory=dict, description="files: kinds spread over several columns.")
    systems: dict[str, str] = Field(default_factory=dict, description="files: kind -> code system, e.g. icd9cm.")
    kinds: dict[str, str] = Field(default_factory=dict, description="meds: first part of a code -> kind.")
    missing: tuple[str, ...] = Field(("",), description="files: texts that mean 'no value'.")
    time_format: str | None = Field(
        None, description="files: how times are written, if not 2020-12-31 23:59: %d.%m.%Y."
    )
    path: str | None = Field(None, description="Any kind: stands for events, features, folder, database or url.")
    folder: str | None = Field(None, description="Folder of CSV, Parquet or ndjson tables.")
    database: str | None = Field(None, description="omop: an SQLite or DuckDB file.")
    url: str | None = Field(None, description="omop: postgresql://..., or env:NAME.")
    password: str | None = Field(None, description="omop: env:NAME or file:PATH.")
    db_schema: str | None = Field(None, alias="schema", description="omop: schema of the tables.")
    tables: dict[str, str] = Field(default_factory=dict, description="Standard table name -> name here.")
    codes: Literal["standard", "source"] = Field("standard", description="omop: standard concepts or source codes.")
    split: str | None = Field(None, description="Column that divides the patients into sites (simulation).")
    features: str | None = Field(None, description="matrix: CSV or Parquet, one row a patient.")
    label: str | None = Field(None, description="files, matrix: column of the outcome or class.")
    positive: tuple[str, ...] = Field((), description="Values of label that mean yes; empty: 1, true, yes.")

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _path_stands_for(cls, values: Any) -> Any:
        """``path`` means what the kind needs; the place it stands for is filled in."""
        if not isinstance(values, dict) or not isinstance(values.get("path"), str):
            return values
        path, kind = values["path"], values.get("kind")
        place = {"files": "events", "meds": "events", "matrix": "features"}.get(str(kind), "folder")
        if place == "folder" and path.startswith(("postgresql://", "postgres://", "env:")):
            place = "url"
        elif place == "folder" and path.lower().endswith((".db", ".sqlite", ".sqlite3", ".duckdb")):
            place = "database"
        if values.get(place) not in (None, path):
            raise ValueError(f"path and {place} are both given")
        return {**{k: v for k, v in values.items() if k != "path"}, place: path}


class SiteEntry(_Section):
    """``[[site]]``: one hospital of a simulation, by its node file."""

    node: str = Field(description="Path of its node.toml.")
    name: str | None = Field(None, pattern=NAME, description="Another name than the node's own.")


class Split(_Section):
    """``[sites]``: hospitals of a simulation, by their node files or by splitting one source."""

    nodes: tuple[str, ...] = Field((), description="Paths of node.toml files.")
    source: Source | None = Field(None, description="A source given in place, as in [source] of a node file.")
    split: bool = Field(False, description="Split a node's patients by the source's site column.")


class Generated(BaseModel):
    """``[data]``: a generated network for simulation; other keys go to the generator."""

    model_config = ConfigDict(frozen=True, extra="allow")

    dataset: str = Field(min_length=1, description="Name of a generator, e.g. icu_network.")

    @property
    def parameters(self) -> dict[str, Any]:
        """The generator's own keys."""
        return dict(self.__pydantic_extra__ or {})


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    _folder: Path = PrivateAttr(default=Path())

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read and check a file; every fault is in the one :class:`~polyclinic.errors.ConfigError`."""
        file = Path(path)
        try:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"{file}: cannot be read ({getattr(e, 'strerror', None) or 'not UTF-8 text'})") from None
        except tomllib.TOMLDecodeError as e:
            raise ConfigError(
                f"{file}: not TOML", faults=[str(e)], hint="quote texts, one key = value a line"
            ) from None
        return cls.parse(values, where=str(file), folder=file.resolve().parent)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, where: str = "", folder: Path | None = None) -> Self:
        """Check plain values (a dictionary as TOML gives it)."""
        faults, made = cls._together(values), None
        try:
            made = cls.model_validate(dict(values))
        except ValidationError as e:
            faults = [*(_fault(cls, f) for f in e.errors()), *faults]
        if faults or made is None:
            raise ConfigError(
                f"{where or cls.__name__.lower()}: wrong {cls.__name__.lower()} file",
                faults=faults,
                hint="correct every line above; docs/reference/files.md lists all keys",
            )
        made._folder = folder or Path()
        return made

    @classmethod
    def _together(cls, values: Mapping[str, Any]) -> list[str]:
        """Faults between sections, looked for even where a section is wrong in itself."""
        return []

    @property
    def folder(self) -> Path:
        """Folder of the file: paths in it are relative to this."""
        return self._folder

    def path(self, name: str | Path) -> Path:
        """A path written in the file, made absolute."""
        return self.folder / Path(name).expanduser()

    def to_json(self) -> dict[str, Any]:
        """Plain values; :meth:`parse` reads them back."""
        return self.model_dump(mode="json", exclude_none=True, by_alias=True)

    def digest(self) -> str:
        """Hash of everything in the file: two sites with one digest run the same study."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()


class Study(_File):
    """What is asked: identical at every site.

    Examples
    --------
    >>> s = Study.parse({"study": {"name": "icu"}, "tensor": {"modes": ["drug", "diagnosis"], "window": "6h"},
    ...                  "method": {"name": "trip", "rank": 10, "aggregation": "masked"}})
    >>> s.name, s.tensor.hours, s.chosen().parameters
    ('icu', 6.0, {'rank': 10, 'aggregation': 'masked'})
    >>> Study.parse({"study": {"name": "icu", "sead": 1}})
    Traceback (most recent call last):
    polyclinic.errors.ConfigError: [PC200] study: wrong study file
      - study.sead: unknown key; known: deadline, description, name, quorum, seed
      what to do: correct every line above; docs/reference/files.md lists all keys
    """

    study: Identity
    tensor: TensorRule | None = None
    features: FeatureRule | None = None
    codes: dict[str, CodeRule] = Field(default_factory=dict)
    labels: LabelRule | None = None
    method: Method | None = None
    privacy: PrivacyAsked | None = None
    site: tuple[SiteEntry, ...] = ()
    sites: Split | None = None
    data: Generated | None = None

    @model_validator(mode="before")
    @classmethod
    def _empty_means_absent(cls, values: Any) -> Any:
        # `[privacy]` with nothing under it is how the documented example leaves privacy off.
        return (
            {k: v for k, v in values.items() if not (k == "privacy" and v == {})}
            if isinstance(values, dict)
            else values
        )

    @classmethod
    def _together(cls, values: Mapping[str, Any]) -> list[str]:
        def section(name: str) -> dict[str, Any]:
            found = values.get(name)
            return found if isinstance(found, dict) else {}

        faults = []
        method, tensor, sites = section("method"), section("tensor"), section("sites")
        federated = bool(method) and str(method.get("name", "")).lower() not in CENTRAL
        if federated and "aggregation" not in method:
            faults.append("method.aggregation is missing: a study must name it (plain, masked, subspace, ...)")
        given = [k for k in ("site", "data") if values.get(k)]
        given += [f"sites.{k}" for k in ("nodes", "source") if sites.get(k)]
        if len(given) > 1:
            faults.append(f"{' and '.join(given)}: choose one way to name the sites of a simulation")
        modes = tensor.get("modes")
        if isinstance(modes, list | tuple):
            faults += [f"codes.{k} is not one of tensor.modes" for k in section("codes") if k not in modes]
        return faults

    @property
    def name(self) -> str:
        """Name of the study."""
        return self.study.name

    @property
    def seed(self) -> int:
        """Seed of every random choice but privacy noise."""
        return self.study.seed

    def rule(self) -> TensorRule:
        """The ``[tensor]`` section, or an error that says that it is needed."""
        if self.tensor is None:
            raise ConfigError(f"study {self.name!r} has no [tensor] section", hint='add [tensor] modes = ["drug", ...]')
        return self.tensor

    def chosen(self) -> Method:
        """The ``[method]`` section, or an error that says that it is needed."""
        if self.method is None:
            raise ConfigError(f"study {self.name!r} has no [method] section", hint='add [method] name = "trip" ...')
        return self.method

    def inline(self) -> Node | None:
        """The source given in place by ``[sites] source``, for a simulation without a node file."""
        if self.sites is None or self.sites.source is None:
            return None
        source = self.sites.source.model_dump(by_alias=True, exclude_none=True)
        return Node.parse({"site": {"name": self.name}, "source": source}, folder=self.folder)

    def nodes(self) -> tuple[Node, ...]:
        """The hospitals named for a simulation, read from their node files; none for a generated network."""
        entries = [*self.site, *(SiteEntry(node=n) for n in (self.sites.nodes if self.sites else ()))]
        found, faults = [], []
        for entry in entries:
            try:
                node = Node.read(self.path(entry.node))
                found.append(node if entry.name is None else node.named(entry.name))
            except ConfigError as e:
                faults += [e.what, *e.faults]
        names = [n.name for n in found]
        faults += [f"two sites are called {n!r}" for n in sorted({n for n in names if names.count(n) > 1})]
        if faults:
            raise ConfigError(f"study {self.name!r}: its sites cannot be read", faults=faults)
        return tuple(found)


class SiteIdentity(_Section):
    """``[site]``: who this hospital is, and the one folder where everything about it is kept."""

    name: str = Field(pattern=NAME, description="Unique in the federation.")
    folder: str = Field("site", description="Folder of tensors, caches and checkpoints; erasable as a whole.")


class Node(_File):
    """Where the data are: one hospital's own file, which never leaves it.

    ``policy``, ``ledger`` and ``keys`` are kept as written; the privacy room reads them.

    Examples
    --------
    >>> n = Node.parse({"site": {"name": "north"}, "source": {"kind": "files", "events": "events.csv"}})
    >>> n.name, n.source.events
    ('north', 'events.csv')
    """

    site: SiteIdentity
    source: Source
    policy: dict[str, Any] = Field(default_factory=dict)
    ledger: dict[str, Any] = Field(default_factory=dict)
    keys: dict[str, Any] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the hospital."""
        return self.site.name

    @property
    def home(self) -> Path:
        """The one folder where everything about this site is kept."""
        return self.path(self.site.folder)

    def named(self, name: str) -> Node:
        """The same node under another name."""
        made = self.model_copy(update={"site": self.site.model_copy(update={"name": name})})
        made._folder = self._folder
        return made


def _fault(model: type[BaseModel], f: Any) -> str:
    where = ".".join(str(x) for x in f["loc"]) or "file"
    if f["type"] == "extra_forbidden":
        return f"{where}: unknown key; known: {', '.join(_known(model, f['loc'][:-1]))}"
    if f["type"] == "missing":
        return f"{where}: missing"
    text = str(f["msg"]).removeprefix("Value error, ")
    plain = isinstance(f["input"], str | int | float | bool)
    # A password is never quoted, nor is a whole section.
    return f"{where}: {text}" + (
        f" (got {f['input']!r})" if plain and f["loc"][-1:] not in (("password",), ("url",)) else ""
    )


def _known(model: type[BaseModel], where: tuple[Any, ...]) -> list[str]:
    """The keys that are allowed at a place of the file."""
    current: Any = model
    for part in where:
        if isinstance(part, int):
            continue
        fields = getattr(current, "model_fields", {})
        current = _section_in(fields[part].annotation) if part in fields else current
    return sorted(f.alias or k for k, f in getattr(current, "model_fields", {}).items())


def _section_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((s for s in map(_section_in, get_args(annotation)) if s is not None), None)
