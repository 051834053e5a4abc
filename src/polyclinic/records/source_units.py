"""The units of one source as a simulation would see them: which are too small, all of them, and what becomes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polyclinic.config import Study
from polyclinic.records.databases.attrition import Stage
from polyclinic.records.databases.engine import Connection
from polyclinic.records.events.cooccurrence import NothingTogether, Vocabulary, count_together
from polyclinic.records.events.window_sql import lonely
from polyclinic.records.sites.rare_codes import floor
from polyclinic.records.sites.site import Site
from polyclinic.records.sites.small_sites import Gathered, gather
from polyclinic.tensors.sparse import SparseTensor


@dataclass(frozen=True)
class Units:
    """The units of a source, those below the minimum, and the sites that a simulation would make of them."""

    names: tuple[str, ...]
    small: tuple[str, ...]
    made: Gathered

    def words(self) -> list[str]:
        """What to expect, a line each; every small unit is named."""
        least = self.made.minimum
        if not self.small:
            return []
        all_of = len(self.small) == len(self.names)
        subject = (
            f"every one of the {len(self.names)} units has"
            if all_of
            else f"{len(self.small)} of {len(self.names)} units have"
        )
        out = [f"{subject} fewer than {least} patients: {_listed(self.small)}"]
        out += [f"{name!r} will be made of {_listed(of)}" for name, of in self.made.joined.items()]
        if self.made.skipped:
            out.append(f"left out: {_listed(self.made.skipped)}")
        count = len(self.made.sites)
        if any(s.patients < least for s in self.made.sites):
            out.append(
                f"all units together have fewer than {least} patients: one site is left, nothing of it can be shown"
            )
        elif count < 3:
            out.append(
                f"{count} site{'s are' if count > 1 else ' is'} left: a masked sum needs 3; lower [sites] min_patients, divide by "
                "another column, or [method] aggregation = 'plain'"
            )
        return out


def tensors_by_unit(
    con: Connection, study: Study, vocabulary: Vocabulary
) -> tuple[list[tuple[str, SparseTensor]], Stage]:
    """A tensor for every value of the site column, on one vocabulary, and which events no unit counts.

    A unit where nothing occurs together has no tensor; its events are among those without a partner.
    """
    rule = study.rule()
    aligned = replace(vocabulary, fixed=tuple(True for _ in vocabulary.fixed))  # aligned from the start
    out, rows_in, rows_out = [], 0, 0
    for name in vocabulary.sites:
        try:
            tensor, step = count_together(con, rule, aligned, site=name)
        except NothingTogether as e:
            rows_in += e.entering
            continue
        rows_in, rows_out = rows_in + step.rows_in, rows_out + step.rows_out
        out.append((name, tensor))
    rows = vocabulary.step.rows_out
    reasons = {lonely(rule): rows_in - rows_out, "names no site": rows - rows_in}
    return out, Stage("count together", rows, rows_out, {why: n for why, n in reasons.items() if n})


def units_of(con: Connection, study: Study, vocabulary: Vocabulary, least: int) -> Units:
    """Divide, apply the floor and join as a simulation does; what that refuses, this refuses with the same words."""
    rule = study.sites
    minimum = study.minimum_patients
    sites = floor([Site(name, t) for name, t in tensors_by_unit(con, study, vocabulary)[0]], minimum)
    least = (rule.min_patients if rule is not None else None) or least
    small = tuple(sorted(s.name for s in sites if s.patients < least))
    gathered = gather(sites, least, (rule.small if rule is not None else None) or "merge", same_people=True)
    return Units(tuple(s.name for s in sites), small, gathered)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
