"""``study.toml``: what is asked, identical at every site; for a simulation also over which sites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from polyclinic.config.cohort import CohortRule, TimeRule, VisitRule
from polyclinic.config.evaluate import EvaluateRule, PeopleRule
from polyclinic.config.node import Node
from polyclinic.config.sections import CodeRule, FeatureRule, LabelRule, MethodRule, PrivacyAsked, StudyRule, TensorRule
from polyclinic.config.source import Source
from polyclinic.config.toml import NAME, TomlFile, TomlSection
from polyclinic.errors import ConfigError
from polyclinic.plugins import did_you_mean, next_door, plugged

CENTRAL: Final = frozenset({"cpals", "cpsgd"})  # methods that see the union: nothing is aggregated
GENERATORS: Final = ("icu_network", "planted_counts")  # of polyclinic.datasets, for [data]


class SiteEntry(TomlSection):
    """``[[site]]``: one hospital of a simulation, by its node file."""

    node: str = Field(description="Path of its node.toml.")
    name: str | None = Field(None, pattern=NAME, description="Another name than the node's own.")


class Split(TomlSection):
    """``[sites]``: hospitals of a simulation, by their node files or by splitting one source."""

    nodes: tuple[str, ...] = Field((), description="Paths of node.toml files.")
    source: Source | None = Field(None, description="A source given in place, as in [source] of a node file.")
    split: bool | str = Field(
        False, description="true: split a node's patients by the source's site column; or the name of another column."
    )
    small: Literal["merge", "skip", "refuse"] | None = Field(
        None,
        description="Sites below min_patients: joined into 'others 1', ... (merge), left out and counted (skip), or none of "
        "the study (refuse). Default: merge with split, else refuse.",
    )
    min_patients: int | None = Field(
        None, ge=1, description="Smallest site of a simulation; default: the strictest policy's, 11 without one."
    )


class Generated(BaseModel):
    """``[data]``: a generated network for simulation; other keys go to the generator."""

    model_config = ConfigDict(frozen=True, extra="allow")

    dataset: str = Field(min_length=1, description="Name of a generator, e.g. icu_network.")

    @field_validator("dataset")
    @classmethod
    def _known(cls, value: str) -> str:
        names = [*GENERATORS, *plugged("polyclinic.datasets")]
        if value in names or next_door(
            value
        ):  # what lives next door can be read here, and is asked for when it is made
            return value
        raise ValueError(
            f"no such data set; {did_you_mean(value, names)} known: {', '.join(names)}".replace(";  ", "; ")
        )

    def words(self) -> str:
        """The outcome that these patients were given, for people."""
        if self.dataset.startswith("load_"):  # open data of real or synthetic claims: their loader chooses the outcome
            return f"the outcome of {self.dataset.removeprefix('load_')}"
        return f"{'mortality' if self.dataset == 'icu_network' else 'outcome'} of the generated patients"

    @property
    def parameters(self) -> dict[str, Any]:
        """The generator's own keys."""
        return dict(self.__pydantic_extra__ or {})


class Study(TomlFile):
    """Read and check a study file: what is asked, identical at every site.

    ``Study.read(path)`` reads a file, ``Study.parse(values)`` a mapping. All faults are reported at once. Every key is described
    on the page of both files (docs/reference/files.md).

    Parameters
    ----------
    study
        Name, seed, description, replication.
    tensor, features
        The modes of a tensor, or the columns of a feature matrix.
    codes
        How codes are grouped and chosen, by mode.
    cohort, time, visits
        Which patients, which time, which visits.
    labels, people, evaluate
        The outcome, covariates and survival times, and the findings.
    method, privacy
        The method with its parameters, and the differential privacy asked for.
    site, sites
        The hospitals, as entries or as node files.
    data
        A generated or open data set in place of hospitals.

    See Also
    --------
    run_study : runs a study.

    Examples
    --------
    >>> s = Study.parse({"study": {"name": "icu"}, "tensor": {"modes": ["drug", "diagnosis"], "window": "6h"},
    ...                  "method": {"name": "trip", "rank": 10, "aggregation": "masked"}})
    >>> s.name, s.tensor.hours, s.chosen().parameters
    ('icu', 6.0, {'rank': 10, 'aggregation': 'masked'})
    >>> Study.parse({"study": {"name": "icu", "sead": 1}})
    Traceback (most recent call last):
    polyclinic.errors.ConfigError: [PC200] study: wrong study file
      - study.sead: unknown key; did you mean 'seed'? known: deadline, description, key, name, pace, quorum, reading, replicate, seed
      what to do: correct every line above; docs/reference/files.md lists all keys
    """

    study: StudyRule
    tensor: TensorRule | None = None
    features: FeatureRule | None = None
    codes: dict[str, CodeRule] = Field(default_factory=dict)
    cohort: CohortRule | None = None
    time: TimeRule | None = None
    visits: VisitRule | None = None
    labels: LabelRule | None = None
    method: MethodRule | None = None
    privacy: PrivacyAsked | None = None
    people: PeopleRule | None = None
    evaluate: EvaluateRule | None = None
    site: tuple[SiteEntry, ...] = ()
    sites: Split | None = None
    data: Generated | None = None

    @model_validator(mode="before")
    @classmethod
    def _empty_means_absent(cls, values: object) -> object:
        # `[privacy]` with nothing under it is how the documented example leaves privacy off.
        if not isinstance(values, dict):
            return values
        out = {k: v for k, v in values.items() if not (k == "privacy" and v == {})}
        people = out.get("people")
        if isinstance(people, dict) and people.get("outcome") and "labels" not in out:
            out["labels"] = {k: people[k] for k in ("outcome", "days") if k in people}  # [labels] is the short form
        return out

    @model_validator(mode="before")
    @classmethod
    def _method_of_codes(cls, values: object) -> object:
        """A study of codes may leave the method to the evidence (docs/howto/which-method.md)."""
        method = values.get("method") if isinstance(values, dict) and "features" not in values else None
        if not isinstance(values, dict) or not isinstance(method, dict):
            return values
        return {**values, "method": {"name": "dpem" if values.get("privacy") else "topics", **method}}

    @classmethod
    def _together(cls, values: Mapping[str, Any]) -> list[str]:
        def section(name: str) -> dict[str, Any]:
            content = values.get(name)
            return content if isinstance(content, dict) else {}

        faults = []
        method, tensor, sites = section("method"), section("tensor"), section("sites")
        federated = bool(method) and str(method.get("name", "")).lower() not in CENTRAL
        if federated and "aggregation" not in method:
            near = did_you_mean("aggregation", map(str, method)).removeprefix("did you mean ").rstrip("?")
            wrong = f"; {near} is not read" if near else ""
            faults.append(f"method.aggregation is missing: a study must name it (masked, plain, median, ...){wrong}")
        inputs = [k for k in ("site", "data") if values.get(k)]
        inputs += [f"sites.{k}" for k in ("nodes", "source") if sites.get(k)]
        if len(inputs) > 1:
            faults.append(f"{' and '.join(inputs)}: choose one way to name the sites of a simulation")
        features = section("features")
        feature_columns = features.get("columns") if isinstance(features.get("columns"), list | tuple) else ()
        if features.get("label") is not None and features["label"] in (feature_columns or ()):
            faults.append(
                f"features.columns lists {features['label']!r}, which is features.label: the class is no feature"
            )
        modes = tensor.get("modes")
        if isinstance(modes, list | tuple):
            faults += [f"codes.{k} is not one of tensor.modes" for k in section("codes") if k not in modes]
            bins = bool(section("time").get("bins"))
            if ("time" in modes) != bins:
                faults.append("time.bins and the mode 'time' in tensor.modes belong together")
            elif bins and tensor.get("window", "visit") not in ("visit", "day"):
                faults.append("tensor.window: with the mode 'time' it is 'visit' or 'day'")
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

    @property
    def minimum_patients(self) -> int:
        """Patients that a code must have at a site; 1 with ``[privacy]``, where counting them would be one more release."""
        return 1 if self.privacy else self.rule().minimum_patients

    def chosen(self) -> MethodRule:
        """The ``[method]`` section, or an error that says that it is needed."""
        if self.method is None:
            raise ConfigError(f"study {self.name!r} has no [method] section", hint='add [method] name = "trip" ...')
        return self.method

    def inline(self) -> Node | None:
        """The source given in place by ``[sites] source``, for a simulation without a node file."""
        if self.sites is None or self.sites.source is None:
            return None
        source = self.sites.source.model_dump(by_alias=True, exclude_none=True)
        return self.divided(Node.parse({"site": {"name": self.name}, "source": source}, folder=self.folder))

    def divided(self, node: Node) -> Node:
        """The node with the column that divides its patients into sites, where ``[sites] split`` names one."""
        if self.sites is None or not isinstance(self.sites.split, str):
            return node
        return node.with_source(split=self.sites.split)

    def nodes(self) -> tuple[Node, ...]:
        """The hospitals named for a simulation, read from their node files; none for a generated network."""
        entries = [*self.site, *(SiteEntry(node=n) for n in (self.sites.nodes if self.sites else ()))]
        node_list, faults = [], []
        for entry in entries:
            try:
                node = Node.read(self.path(entry.node))
                node_list.append(self.divided(node if entry.name is None else node.named(entry.name)))
            except ConfigError as e:
                faults += [e.what, *e.faults]
        names = [n.name for n in node_list]
        faults += [f"two sites are called {n!r}" for n in sorted({n for n in names if names.count(n) > 1})]
        if faults:
            raise ConfigError(f"study {self.name!r}: its sites cannot be read", faults=faults)
        return tuple(node_list)
