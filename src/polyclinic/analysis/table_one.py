"""people: Table 1, everybody and the carriers of every phenotype by age, sex and other public levels. One sum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyclinic.analysis.base import PATIENTS, Analysis, AnalysisParams, NoMemory
from polyclinic.analysis.projection import Variable
from polyclinic.privacy.facts import MethodFacts, StepMeaning
from polyclinic.privacy.small_cells import suppress
from polyclinic.protocol.interfaces import Contribution, Schema, Step, Total
from polyclinic.records.sites.site import Site
from polyclinic.util.table import Table

Array = NDArray[np.float64]


class TableOneParams(AnalysisParams):
    """Parameters of people."""

    variables: tuple[Any, ...] = Field((), description="Public variables: bands or levels.")


@dataclass(frozen=True)
class TableOnePublic:
    """Counts (R + 1, levels) of every variable; the last row is everybody."""

    done: bool
    counts: tuple[Array, ...]


class TableOne(Analysis):
    """Table 1: how the carriers of a phenotype differ from everybody."""

    name = "people"
    facts = MethodFacts(
        steps={
            "people": StepMeaning(
                "patients with each phenotype by age band, sex and other public levels", "a level that one patient has"
            )
        }
    )
    exact = 1e-12
    Params = TableOneParams
    Public = TableOnePublic
    params: TableOneParams

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The public variables."""
        return self.params.variables

    def init_public(self, setting: Schema, rng: np.random.Generator) -> TableOnePublic:
        """All counts 0."""
        return TableOnePublic(
            not self.variables, tuple(np.zeros((self.placer.rank + 1, len(v.words))) for v in self.variables)
        )

    def next_step(self, public: TableOnePublic) -> Step | None:
        """One sum: patients by level of every variable, of each phenotype and of everybody."""
        if public.done:
            return None
        return Step(1, "people", {f"v{i}": c.shape for i, c in enumerate(public.counts)}, bound=PATIENTS, counts=False)

    def update_public(self, step: Step, public: TableOnePublic, total: Total) -> TableOnePublic:
        """counts_vl = sum_k counts_vlk, rounded to whole patients."""
        counts = tuple(np.rint(total.arrays[f"v{i}"]) for i in range(len(public.counts)))
        return replace(public, done=True, counts=counts)

    def contribute(
        self, step: Step, site: Site, private: NoMemory, public: TableOnePublic, rng: np.random.Generator
    ) -> tuple[NoMemory, Contribution]:
        """counts[r, l] = sum_p has_r(p) [level_v(p) = l]; the last row counts everybody."""
        rows = np.column_stack([self.placer.has(site), np.ones(site.patients, bool)]).astype(np.float64)
        arrays = {}
        for i, v in enumerate(self.variables):
            level = np.eye(len(v.words))[v.level(site)]
            arrays[f"v{i}"] = rows.T @ level
        return private, Contribution(arrays)

    def table(self, public: TableOnePublic, minimum: int = 11) -> Table:
        """Table 1 with small cells removed."""
        return table_one(self.variables, public.counts, minimum)


def table_one(variables: tuple[Variable, ...], counts: tuple[Array, ...], minimum: int = 11) -> Table:
    """One row per variable, level and group (phenotype, or None for everybody): patients and share; None: not shown.

    Carriers of a phenotype and the others add up to everybody, level by level, so each phenotype is suppressed as the table
    of carriers and others by level.
    """
    rows: list[list[object]] = []
    for v, table in zip(variables, counts):
        totals = table[-1]
        for group, line in enumerate(table):
            is_total = group == len(table) - 1
            if is_total:
                hide = suppress(line, minimum=minimum)[:-1]
            else:
                hide = suppress(np.stack([line, np.maximum(totals - line, 0.0)]), minimum=minimum)[0, :-1]
            total = float(line.sum())
            for word, n, hidden in zip(v.words, line, hide):
                if word == "missing" and not totals[-1]:
                    continue
                visible = not hidden
                rows.append(
                    [
                        v.name,
                        word,
                        None if is_total else group,
                        int(n) if visible else None,
                        float(n) / total if visible and total else None,
                    ]
                )
    return Table(["variable", "level", "phenotype", "patients", "share"], rows)
