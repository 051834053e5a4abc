"""Propose which public code a local code stands for, from the codes that it occurs with.

Hospitals with codes of their own and hospitals with common codes each sum a table of codes that occur together
(:class:`~polyclinic.methods.code_table.CodeTable`). Codes that both groups list are anchors. Every other local code is matched
(:mod:`polyclinic.alignment.matching`). A pair is a proposal: nothing is renamed before the owner of the local codes confirms it.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from polyclinic.alignment.matching import Array, Directions, Matching, Places, chance, match
from polyclinic.alignment.union import align
from polyclinic.errors import ConfigError, DataError
from polyclinic.methods.code_table import CodeTable, all_codes
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.card.card import Card
from polyclinic.protocol.interfaces import seeds
from polyclinic.records.sites.from_data import given_sites
from polyclinic.records.sites.site import Site, Sites, truth_of
from polyclinic.tensors.axis import Axis
from polyclinic.util.atomic_files import write_whole

MOST: Final = (
    0.5  # docs/dev/decisions/0019-codes-by-co-occurrence.md: share of pairs under the null that equal a proposed one
)
Answer = Literal["yes", "no", ""]


@checked_dataclass(frozen=True)
class CodePair:
    """One proposal: a local code, the code that it may stand for, and the next best."""

    mode: str
    code: str
    local: str
    score: float = 0.0
    runner_up: str = ""
    runner_up_score: float = 0.0
    chance: float = 1.0  # share of pairs under the null with at least this score
    confirmed: Answer = ""


COLUMNS: Final = tuple(f.name for f in fields(CodePair))
PAIRS: Final = TypeAdapter(list[CodePair])


@dataclass(frozen=True)
class CodePairs:
    """Proposals for local codes, with what the owner answered.

    Attributes
    ----------
    pairs
        The proposals, best first.
    refused
        Why nothing is proposed; empty where something is.
    coverage
        Share of the local codes in patients' records that hospitals with common codes know, before and with all proposals.
    open
        Local codes for which chance would do as well.
    cards
        What the two tables cost: of the common codes, and of the local ones.
    """

    pairs: tuple[CodePair, ...]
    refused: str = ""
    coverage: tuple[float, float] = (0.0, 0.0)
    open: tuple[tuple[str, str], ...] = ()
    cards: tuple[Card, ...] = ()

    def __iter__(self) -> Iterator[CodePair]:
        return iter(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __repr__(self) -> str:
        listed, mapped = self.coverage
        result = self.refused or f"coverage {listed:.2f}, with all proposals {mapped:.2f}"
        return f"<{len(self)} pairs of codes, {len(self.answered('yes'))} confirmed, {len(self.open)} open: {result}>"

    def answered(self, answer: Answer) -> tuple[CodePair, ...]:
        """The pairs with one answer."""
        return tuple(p for p in self if p.confirmed == answer)

    def confirm(self, codes: Collection[str] | None = None, *, answer: Answer = "yes") -> CodePairs:
        """Return the pairs with an answer for some local codes; None: for all."""
        strangers = set(codes or ()) - {p.local for p in self}
        if strangers:
            raise ConfigError("no pair of these local codes", faults=[repr(c) for c in sorted(strangers)])
        matches = [codes is None or p.local in codes for p in self]
        return replace(self, pairs=tuple(replace(p, confirmed=answer) if c else p for p, c in zip(self, matches)))

    def text(self) -> str:
        """The pairs as CSV, which the owner may edit: ``confirmed`` is yes, no or empty."""
        out = io.StringIO()
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(COLUMNS)
        rows.writerows([f"{x:.3f}" if isinstance(x, float) else x for x in astuple(p)] for p in self)
        return out.getvalue()

    def write(self, path: str | Path) -> Path:
        """Write the pairs to a CSV file."""
        return write_whole(Path(path), self.text())

    @classmethod
    def read(cls, path: str | Path) -> CodePairs:
        """Read a CSV file that :meth:`write` wrote, with the owner's answers."""
        try:
            with open(path, newline="", encoding="utf-8") as f:
                rows = list(csv.DictReader(f))
        except (OSError, UnicodeDecodeError, csv.Error) as e:
            raise DataError(f"{path}: cannot be read as pairs of codes", faults=[str(e)]) from None
        try:
            return cls(tuple(PAIRS.validate_python(rows)))
        except ValidationError as e:
            faults = [
                f"line {int(f['loc'][0]) + 2}: {f['loc'][1]}: {f['msg']} (got {f['input']!r})" for f in e.errors()[:5]
            ]
            hint = f"first line: {','.join(COLUMNS)}; confirmed is yes, no or empty"
            raise DataError(f"{path}: not a list of pairs of codes", faults=faults, hint=hint) from None

    def apply(self, sites: Sequence[Site], local: Collection[str]) -> Sites:
        """Return the sites with confirmed local codes renamed, on common codes; other local codes keep their names."""
        sites = given_sites(sites)
        _named(sites, local)
        renamed = {(p.mode, p.local): p.code for p in self.answered("yes")}
        mapped = [_renamed(s, renamed) if s.name in local else s for s in sites]
        return align(Sites(mapped, truth_of(sites)))


def _renamed(site: Site, renamed: Mapping[tuple[str, str], str]) -> Site:
    """The site with other labels."""
    axes = [site.counts().axes[0], *(_relabelled(a, renamed) for a in site.counts().axes[1:])]
    doubles = [f"{a.name}: {c!r}" for a in axes[1:] for c, n in Counter(a.labels).items() if n > 1]
    if doubles:
        hint = "confirm at most one local code for a code, and none that the site has"
        raise DataError(f"site {site.name!r}: two of its codes would have one name", faults=doubles, hint=hint)
    return replace(site, tensor=site.counts().with_axes(axes))


def _relabelled(axis: Axis, renamed: Mapping[tuple[str, str], str]) -> Axis:
    labels = [renamed.get(c, c[1]) for c in all_codes((axis,))]
    return axis if labels == list(axis.labels or ()) else replace(axis, labels=tuple(labels), vocabulary="data")


def _named(sites: Sequence[Site], local: Collection[str]) -> None:
    """Refuse names that are no site's, and sites whose codes have no labels."""
    names = {s.name for s in sites}
    faults = [f"no site {n!r}" for n in sorted(set(local) - names)]
    faults += [] if local else ["no site with local codes is named"]
    faults += ["every site has local codes: none is left with common ones"] if names <= set(local) else []
    faults += [
        f"site {s.name!r}: {a.name} codes without labels"
        for s in sites
        for a in s.counts().axes[1:]
        if a.labels is None
    ]
    if faults:
        raise ConfigError(
            f"local codes of {sorted(local)} cannot be aligned", faults=faults, hint='local=["north"] names the sites'
        )


def align_codes(
    sites: Sequence[Site],
    local: Collection[str],
    *,
    aggregation: str = "plain",
    privacy: Privacy | None = None,
    seed: int = 0,
) -> CodePairs:
    """Propose which common code each local code stands for, from the codes that it occurs with.

    The proposals need the owner's answer (:meth:`CodePairs.confirm`, or the file of :meth:`CodePairs.write`) before
    :meth:`CodePairs.apply` renames anything. Only the 300 most frequent codes with at least 20 patients in a group take part.
    A party with the records of similar patients can name codes in the same way from a released model (docs/explanation/threat-model.md).

    Parameters
    ----------
    sites
        The hospitals.
    local
        Names of the hospitals whose codes are local. They share one set of codes with each other.
    aggregation
        How each group of hospitals adds its tables: plain, masked (at least three hospitals in a group) ...
    privacy
        Patient-level differential privacy of each table.
    seed
        Of the permuted tables under the null.

    Returns
    -------
    CodePairs
        The proposals. ``confirm`` answers them, ``write`` gives them to the owner, ``apply`` renames the codes.

    See Also
    --------
    align : the union of code lists in one process.

    Examples
    --------
    >>> import numpy as np, polyclinic as pc
    >>> def hospital(name, seed, codes):
    ...     rng = np.random.default_rng(seed)
    ...     rates = np.random.default_rng(7).gamma(0.4, 1.0, (6, 30)) + 0.02
    ...     where = np.argwhere(rng.random((1000, 30)) < np.minimum(rates[rng.integers(0, 6, 1000)], 0.9))
    ...     axes = ["patient", pc.Axis("diagnosis", tuple(codes), vocabulary="public")]
    ...     return pc.Site(name, pc.SparseTensor(where, np.ones(len(where)), (1000, 30), axes))
    >>> common = [f"D{k:02d}" for k in range(30)]
    >>> local = [f"own {k}" if k % 3 == 0 else c for k, c in enumerate(common)]
    >>> sites = [hospital("east", 0, common), hospital("west", 1, common), hospital("north", 2, local)]
    >>> pairs = pc.align_codes(sites, local=["north"])
    >>> len(pairs), pairs.confirm().apply(sites, local=["north"])[2].tensor.axes[1].labels == tuple(common)
    (10, True)
    """
    sites = given_sites(sites)
    _named(sites, local)
    groups = [align([s for s in sites if (s.name in local) is own]) for own in (False, True)]
    tables = [CodeTable(aggregation=aggregation, privacy=privacy, seed=seed).fit(g) for g in groups]
    vocabularies = [set(all_codes(g[0].counts().axes[1:])) for g in groups]
    return _proposed(tables, vocabularies[0] & vocabularies[1], seed)


def _proposed(tables: Sequence[CodeTable], shared: set[tuple[str, str]], seed: int) -> CodePairs:
    """The pairs that few pairs under the null equal, if their mean is above every mean under the null."""
    anchors, allowed = _anchored(tables, shared)
    share = _coverage(tables[1], shared)
    bare = CodePairs((), "", (share, share), _unknown(tables[1], shared), tuple(t.privacy_ for t in tables))
    if not allowed.any():
        return replace(bare, refused="no local code and no other common code of its mode is frequent enough")
    first, matrix = Directions.of(tables[0].matrix_), tables[1].matrix_
    matching = match(first, Directions.of(matrix), anchors, allowed)
    null = chance(first, matrix, anchors, allowed, seeds(seed, "codes"))
    if matching[2].assigned.mean() <= max(float(s.mean()) for s in null):
        return replace(bare, refused="permuted tables are matched as well as these: nothing can be proposed")
    pairs = _pairs(tables, *matching, np.sort(np.concatenate(null)))
    mapped = shared | {(p.mode, p.local) for p in pairs}
    return replace(bare, pairs=pairs, coverage=(share, _coverage(tables[1], mapped)), open=_unknown(tables[1], mapped))


def _unknown(table: CodeTable, known: Collection[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(c for c in table.patients_ if c not in known)


def _anchored(
    tables: Sequence[CodeTable], shared: set[tuple[str, str]]
) -> tuple[tuple[Places, Places], NDArray[np.bool_]]:
    """Places of the anchors in both tables, and which other codes may be a pair: of one mode, listed by one group alone."""
    places = [{c: i for i, c in enumerate(t.codes_)} for t in tables]
    anchors = sorted(shared & set(places[0]) & set(places[1]))
    first, second = (np.array([p[c] for c in anchors], np.int64) for p in places)
    modes = [np.array(["" if c in shared else c[0] for c in t.codes_]) for t in tables]
    return (first, second), (modes[0][:, None] == modes[1][None, :]) & (modes[0] != "")[:, None]


def _pairs(
    tables: Sequence[CodeTable], rows: Places, columns: Places, found: Matching, null: Array
) -> tuple[CodePair, ...]:
    """Every assigned pair that few pairs under the null (sorted scores) equal, with its runner-up, best first."""
    pairs = []
    for place, column, score in zip(found.rows, found.columns, found.assigned.tolist()):
        scores = found.scores[:, column].copy()
        scores[place] = -np.inf
        best, second = int(np.argmax(scores)), float(scores.max())
        mode, code = tables[0].codes_[rows[place]]
        local, next_code = tables[1].codes_[columns[column]][1], tables[0].codes_[rows[best]][1]
        runner_up, second = (next_code, second) if np.isfinite(second) else ("", 0.0)
        share = 1.0 - float(np.searchsorted(null, score)) / len(null)
        pairs.append(CodePair(mode, code, local, score, runner_up, second, share))
    return tuple(sorted((p for p in pairs if p.chance <= MOST), key=lambda p: -p.score))


def _coverage(table: CodeTable, known: Collection[tuple[str, str]]) -> float:
    """Share of patients' codes that are known."""
    covered = float(sum(n for c, n in table.patients_.items() if c in known))
    return covered / max(float(sum(table.patients_.values())), 1e-12)
