"""What a run folder holds for a report: only what was released, or what a simulation may show. Never a patient's row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from polyclinic.analysis.simulated.shown_codes import kept_shares
from polyclinic.errors import ConfigError, LedgerError
from polyclinic.models.mixtures.groups import Groups
from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.models.similarity import Similarity
from polyclinic.privacy.card.card import Card
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.report.charts.cells import rows_of
from polyclinic.studies.run_folder import RunFolder
from polyclinic.tensors.axis import Axis

if TYPE_CHECKING:
    from polyclinic.models.file import Learned


Kind = Literal["phenotypes", "mixture", "similarity", "other"]
Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class RunContents:
    """A finished run, as a report reads it.

    Attributes
    ----------
    study, metrics, outcome
        ``study.json``, ``metrics.json``, ``outcome.json``.
    model
        The released model as a value; None where the method answers a question and learns nothing.
    presence, few, held, neighbours
        Counts of patients, small cells already removed; empty where the privacy budget covers no exact count.
    owner
        The site whose owner alone may read this view (:func:`polyclinic.report.export.owner_view.local_view`); None: for sharing.
    attrition
        Which rows of the sources were left out, step by step.
    comparison, audit, review
        Other models, the privacy audit and clinicians' judgement, where they were made.
    """

    path: Path
    study: Mapping[str, Any]
    metrics: Mapping[str, Any]
    outcome: Mapping[str, Any]
    model: Learned | None
    presence: Mapping[str, Any] = field(default_factory=dict)
    few: tuple[Array, ...] = ()
    comparison: Mapping[str, Any] = field(default_factory=dict)
    audit: Mapping[str, Any] = field(default_factory=dict)
    review: Mapping[str, object] = field(default_factory=dict)
    neighbours: Mapping[str, Any] = field(default_factory=dict)
    ledgers: Mapping[str, Path] = field(default_factory=dict)
    held: tuple[Array, ...] = ()
    attrition: Mapping[str, Any] = field(default_factory=dict)
    owner: str | None = None
    findings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: RunFolder | Path | str) -> RunContents:
        """Read a run folder; what the run did not write is empty, what every run writes must be there."""
        run = folder if isinstance(folder, RunFolder) else RunFolder(folder)
        outcome = run.path / "outcome.json"
        missing = [p.name for p in (run.study, run.metrics, outcome) if not p.is_file()]
        if missing:
            raise ConfigError(
                f"{run.path}: not a finished run",
                faults=[f"{name} is not there" for name in missing],
                hint="name the folder that `polyclinic demo`, `simulate` or `coordinator` wrote; has the run ended?",
            )
        formal = run.read_json(outcome)["privacy"]["guarantee"] == "formal"
        # an exact count next to a noisy one would undo the noise, also of a heuristic guarantee
        exact = not formal and run.read_json(run.study)["study"].get("privacy") is None
        presence_arrays = {} if formal else _arrays(run.path / "presence.npz")
        ledgers = {f.name.removesuffix(".jsonl"): f for f in sorted(run.ledgers.glob("*.jsonl"))}
        return cls(
            run.path,
            run.read_json(run.study),
            run.read_json(run.metrics),
            run.read_json(outcome),
            run.read_model(),
            _optional(run.path / "presence.json") if exact else {},
            tuple(presence_arrays[k] for k in sorted(presence_arrays) if k.startswith("few")),
            _optional(run.path / "comparison.json"),
            _optional(run.path / "audit.json"),
            _optional(run.path / "review.json"),
            _optional(run.path / "neighbours.json") if exact else {},
            ledgers,
            tuple(presence_arrays[k] for k in sorted(presence_arrays) if k.startswith("held")),
            _optional(run.path / "attrition.json") if exact else {},
            findings=_optional(run.path / "findings.json"),
        )

    @property
    def kind(self) -> Kind:
        """What was learned."""
        match self.model:
            case Phenotypes():
                return "phenotypes"
            case Groups():
                return "mixture"
            case Similarity():
                return "similarity"
            case _:
                return "other"

    @property
    def phenotypes(self) -> Phenotypes:
        """The model of a run of kind ``"phenotypes"``."""
        assert isinstance(self.model, Phenotypes)
        return self.model

    @property
    def groups(self) -> Groups:
        """The model of a run of kind ``"mixture"``."""
        assert isinstance(self.model, Groups)
        return self.model

    @property
    def similarity(self) -> Similarity:
        """The model of a run of kind ``"similarity"``."""
        assert isinstance(self.model, Similarity)
        return self.model

    @property
    def rank(self) -> int:
        """Phenotypes or groups that were learned; 0 where neither."""
        return self.model.rank if isinstance(self.model, Phenotypes | Groups) else 0

    @property
    def name(self) -> str:
        """Name of the study."""
        return str(self.study["study"]["study"]["name"])

    @property
    def description(self) -> str:
        """What the study asks."""
        return str(self.study["study"]["study"].get("description", ""))

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that took part."""
        return tuple(self.study["sites"])

    @property
    def generated(self) -> str | None:
        """Name of the generator, if the patients are made up."""
        data = self.study["study"].get("data")
        return None if not data else str(data["dataset"])

    @cached_property
    def card(self) -> Card:
        """The privacy card, with the audit beside it."""
        card = Card.from_dict(self.outcome["privacy"])
        return card.with_audit(self.audit["summary"]) if self.audit.get("summary") else card

    @property
    def formal(self) -> bool:
        """Whether a theorem covers everything that left."""
        return self.card.guarantee == "formal"

    @property
    def history(self) -> list[Mapping[str, Any]]:
        """Figures of every round, from released sums."""
        return list(self.outcome.get("history") or [])

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The codes of every feature mode."""
        return self.model.axes if isinstance(self.model, Phenotypes) else ()

    @property
    def factors(self) -> list[Array]:
        """(I_n, R) weights of codes."""
        return list(self.model.factors) if isinstance(self.model, Phenotypes) else []

    @cached_property
    def hidden(self) -> list[Array]:
        """Per mode (I_n, R): codes that may not be shown, for too few patients carry them or noise explains them."""
        out = []
        for n, f in enumerate(self.factors, start=1):
            hide = f == 0
            if self.phenotypes.shown:
                hide = hide | ~self.phenotypes.shown[n - 1]
            if not self.formal and n <= len(self.few):
                hide = hide | self.few[n - 1]
            out.append(hide)
        return out

    @cached_property
    def carried(self) -> Array:
        """(R,) whether enough patients have a phenotype for any of its codes to be shown."""
        return np.array(self.presence.get("carried") or [True] * self.rank, bool)

    @cached_property
    def kept(self) -> Array:
        """(R, modes) share of every phenotype's squared weight that the codes which may be shown hold."""
        return np.array(kept_shares(self.factors, [h | ~self.carried for h in self.hidden]))

    @property
    def background(self) -> tuple[int, ...]:
        """Components that describe all patients: the findings know, else the model."""
        known = self.findings.get("background")
        return tuple(np.flatnonzero(self.phenotypes.background).tolist() if known is None else known)

    @property
    def effects(self) -> list[dict[str, Any]]:
        """The outcome's effects, one row a phenotype; empty where no outcome was analysed."""
        return rows_of((self.findings.get("outcome") or {}).get("effects"))

    @cached_property
    def shown_groups(self) -> tuple[Array, Array]:
        """For a mixture (k,): whether a group's centre and whether its share may be shown.

        A group of too few patients describes them, and the shares of the others would give its size away.
        """
        k = self.rank
        if not self.presence:
            return np.ones(k, bool), np.ones(k, bool)
        crowd = np.array([c is not None for c in self.presence["contributors"]])
        return crowd, crowd & np.array([t is not None for t in self.presence["totals"]])

    @property
    def flow(self) -> list[Mapping[str, object]]:
        """Patients left after each step of the protocol; not under a formal guarantee, where nobody paid for it."""
        released = [{"step": b["words"], **b} for b in self.study.get("flow") or () if b.get("box") != "outcome"]
        return [] if self.formal else list(self.study.get("attrition") or released)

    @property
    def minimum(self) -> int:
        """Smallest count of patients that is shown."""
        return int(self.presence.get("minimum", 11))

    @property
    def patients(self) -> int | None:
        """Number of patients, where it may be known."""
        if self.findings.get("patients") and not self.owner:
            return int(self.findings["patients"])
        sizes = list((self.presence.get("sites") or {}).values())
        return sum(sizes) if sizes and all(n is not None for n in sizes) else None

    def ledger(self, site: str) -> tuple[Ledger | None, tuple[str, ...]]:
        """A simulated site's ledger, and what is wrong with it."""
        if site not in self.ledgers:
            return None, ()
        ledger = Ledger(self.ledgers[site], site=site)
        try:
            faults = ledger.verify()
        except LedgerError as e:
            return None, (e.what,)
        return (None, faults) if faults else (ledger, ())


def _optional(path: Path) -> Mapping[str, object]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _arrays(path: Path) -> dict[str, Array]:
    if not path.is_file():
        return {}
    with np.load(path, allow_pickle=False) as z:
        return {k: z[k] for k in z.files}
