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
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyclinic.alignment import matching
from polyclinic.alignment.matching import Array, Directions, Matching, Places
from polyclinic.alignment.union import align
from polyclinic.errors import ConfigError, DataError
from polyclinic.methods.code_table import CodeTable, all_codes
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.card.card import Card
from polyclinic.protocol.interfaces import seeds
from polyclinic.records.events.code_maps import COLUMNS, Answer, CodePair, read_pairs
from polyclinic.records.sites.from_data import given_sites
from polyclinic.records.sites.rare_codes import carriers
from polyclinic.records.sites.site import Site, Sites, truth_of
from polyclinic.tensors.axis import Axis
from polyclinic.util.atomic_files import write_whole


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
        return f"<{len(self)} pairs of codes, {len(self.answered('yes'))} accepted, {len(self.open)} open: {result}>"

    def answered(self, answer: Answer) -> tuple[CodePair, ...]:
        """The pairs with one answer."""
        return tuple(p for p in self if p.accept == answer)

    def confirm(self, codes: Collection[str] | None = None, *, answer: Answer = "yes") -> CodePairs:
        """Return the pairs with an answer for some local codes; None: for all."""
        strangers = set(codes or ()) - {p.local for p in self}
        if strangers:
            raise ConfigError("no pair of these local codes", faults=[repr(c) for c in sorted(strangers)])
        matches = [codes is None or p.local in codes for p in self]
        return replace(self, pairs=tuple(replace(p, accept=answer) if c else p for p, c in zip(self, matches)))

    def bare(self) -> CodePairs:
        """The accepted pairs without patients and scores, as a study carries them."""
        rows = (CodePair(p.mode, p.local, p.code, p.local_name, p.name, accept="yes") for p in self.answered("yes"))
        return CodePairs(tuple(rows))

    def text(self) -> str:
        """The pairs as CSV, which the owner may edit: ``accept`` is yes, no or empty."""
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
        return cls(tuple(read_pairs(path)))

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
    prefix = [f"{mode}:" if "+" in axis.name else "" for mode, _ in all_codes((axis,))]
    labels = [before + renamed.get(c, c[1]) for before, c in zip(prefix, all_codes((axis,)))]
    return axis if labels == list(axis.labels or ()) else replace(axis, labels=tuple(labels), vocabulary="data")


def _named(sites: Sequence[Site], local: Collection[str]) -> None:
    """Refuse names that are no site's, and sites whose codes have no labels."""
    names = {s.name for s in sites}
    faults = [f"no site {n!r}, there are {', '.join(sorted(names))}" for n in sorted(set(local) - names)]
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
    groups = [align([_used(s) for s in sites if (s.name in local) is own]) for own in (False, True)]
    tables = [CodeTable(aggregation=aggregation, privacy=privacy, seed=seed).fit(g) for g in groups]
    vocabularies = [_names(g[0]) for g in groups]
    result = _proposed(tables, set(vocabularies[0]) & set(vocabularies[1]), seed)
    return replace(result, pairs=tuple(_described(p, vocabularies, tables[1], exact=not privacy) for p in result.pairs))


def _used(site: Site) -> Site:
    """The site with the codes that its records have. A public list stays whole."""
    tensor = site.counts()
    for mode, axis in enumerate(tensor.axes[1:], 1):
        present = carriers(tensor, mode) > 0
        if axis.vocabulary == "data":
            places = np.where(present, np.cumsum(present) - 1, -1)
            tensor = tensor.recode(mode, places, axis.take(np.flatnonzero(present).tolist()), int(present.sum()))
    return replace(site, tensor=tensor)


def _names(site: Site) -> dict[tuple[str, str], str]:
    """Mode and code -> name."""
    axes = site.counts().axes[1:]
    texts = (a.describe(i) for a in axes for i in range(len(a.labels or ())))
    return {c: "" if text.endswith(c[1]) else text for c, text in zip(all_codes(axes), texts)}


def _described(
    pair: CodePair, names: Sequence[Mapping[tuple[str, str], str]], table: CodeTable, *, exact: bool
) -> CodePair:
    """The pair with names, and with the patients of the local code where they are exact."""
    patients = f"{table.patients_[pair.mode, pair.local]:.0f}" if exact else ""
    common, local = names[0][pair.mode, pair.code], names[1][pair.mode, pair.local]
    return replace(pair, name=common, local_name=local, patients=patients)


def _proposed(tables: Sequence[CodeTable], shared: set[tuple[str, str]], seed: int) -> CodePairs:
    """The pairs with scores that codes without a counterpart seldom have, if their mean is above every mean under the null."""
    anchors, one_mode, unknown = _anchored(tables, shared)
    allowed = one_mode & unknown[0][:, None] & unknown[1]
    share = _coverage(tables[1], shared)
    bare = CodePairs((), "", (share, share), _unknown(tables[1], shared), tuple(t.privacy_ for t in tables))
    if not len(bare.open):
        return replace(bare, refused="every local code is a common code already")
    if not allowed.any():
        return replace(bare, refused="no local code and no other common code of its mode is frequent enough")
    first, matrix = Directions.of(tables[0].matrix_), tables[1].matrix_
    second = Directions.of(matrix)
    assigned = matching.match(first, second, anchors, allowed)
    null = matching.chance(first, matrix, anchors, allowed, seeds(seed, "codes"))
    if assigned[2].assigned.mean() <= max(float(s.mean()) for s in null):
        return replace(bare, refused="permuted tables are matched as well as these: nothing can be proposed")
    lonely = matching.without_counterpart(first, second, anchors, allowed, one_mode)
    pairs = _pairs(tables, *assigned, [np.concatenate(null), lonely])
    if not pairs:
        return replace(bare, refused="codes without a counterpart have such scores, too: nothing can be proposed")
    mapped = shared | {(p.mode, p.local) for p in pairs}
    return replace(bare, pairs=pairs, coverage=(share, _coverage(tables[1], mapped)), open=_unknown(tables[1], mapped))


def _unknown(table: CodeTable, known: Collection[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(c for c in table.patients_ if c not in known)


def _anchored(
    tables: Sequence[CodeTable], shared: set[tuple[str, str]]
) -> tuple[tuple[Places, Places], NDArray[np.bool_], list[NDArray[np.bool_]]]:
    """Places of the anchors in both tables, which codes are of one mode, and of each table which codes it alone lists."""
    places = [{c: i for i, c in enumerate(t.codes_)} for t in tables]
    anchors = sorted(shared & set(places[0]) & set(places[1]))
    first, second = (np.array([p[c] for c in anchors], np.int64) for p in places)
    modes = [np.array([mode for mode, _ in t.codes_]) for t in tables]
    unknown = [np.array([c not in shared for c in t.codes_]) for t in tables]
    return (first, second), modes[0][:, None] == modes[1], unknown


def _pairs(
    tables: Sequence[CodeTable], rows: Places, columns: Places, found: Matching, others: Sequence[Array]
) -> tuple[CodePair, ...]:
    """Every assigned pair with a small enough chance, with its runner-up, best first.

    Parameters
    ----------
    others
        Scores of codes that are no pair: under the null, and of codes without a counterpart.
    """
    chances = matching.chances(found.assigned, others)
    limit, pairs = matching.largest_chance(chances), []
    for place, column, score, share in zip(found.rows, found.columns, found.assigned.tolist(), chances.tolist()):
        scores = found.scores[:, column].copy()
        scores[place] = -np.inf
        best, second = int(np.argmax(scores)), float(scores.max())
        mode, code = tables[0].codes_[rows[place]]
        local, next_code = tables[1].codes_[columns[column]][1], tables[0].codes_[rows[best]][1]
        runner_up, second = (next_code, second) if np.isfinite(second) else ("", 0.0)
        if share <= limit:
            pairs.append(
                CodePair(mode, local, code, score=score, runner_up=runner_up, runner_up_score=second, chance=share)
            )
    return tuple(sorted(pairs, key=lambda p: -p.score))


def _coverage(table: CodeTable, known: Collection[tuple[str, str]]) -> float:
    """Share of patients' codes that are known."""
    covered = float(sum(n for c, n in table.patients_.items() if c in known))
    return covered / max(float(sum(table.patients_.values())), 1e-12)
