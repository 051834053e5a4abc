"""replicate: which phenotypes come back in another half of the patients, and hold together in patients nobody looked at.

Agreement alone proves nothing: on codes permuted over their mode most columns still "replicate", because frequencies come
back, too. A phenotype is replicable if its columns of two disjoint halves agree (cosine >= .8) AND, on the patients that a
half's fit did not see, its codes of one mode go with its codes of the other (z >= 3, inside hospitals and given the size of the record).

More columns than phenotypes split some: a split shares one mode's part with a flagged column, agrees between halves and is
linked, so it is flagged, too. Planted, 8 true, rank 12, ten runs: 70 of 75 flagged are true; four of the other five have
a cosine of at least .92 with a flagged column in one mode (.26 to .51 in the other), one mixes two true ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError
from polyclinic.federation.compose import Ladder, half_method
from polyclinic.federation.fold import Outcome, run
from polyclinic.findings.link import Link
from polyclinic.findings.placed import Placer
from polyclinic.sites.site import Site
from polyclinic.table import Table
from polyclinic.tensors.matching import cosines, match
from polyclinic.tensors.sparse import SparseTensor

__all__ = ["BACK", "LINKED", "Replication", "Rungs", "permuted", "replicate"]

Array = NDArray[np.float64]
BACK: Final = 0.8  # cosine between halves
PARTLY: Final = 0.5
LINKED: Final = 3.0  # z of the link on unseen patients
KEY: Final = "polyclinic"


class Rungs(Ladder):
    """A method on everybody and, for each halving, on two halves, in lock-step; several starts each where it has them.

    Under privacy there is no fit on everybody: the halves alone cost the epsilon of one fit.
    """

    def __init__(self, method: Any, key: str = KEY, folds: int = 1) -> None:
        if getattr(method, "with_params", None) is None or "rank" not in type(method).Params.model_fields:
            raise ConfigError(f"a {type(method).__name__} has no phenotypes to replicate", hint="e.g. pc.TRIP(rank=10)")
        self.method, self.key, self.folds = method, key, folds
        private = method.params.privacy is not None
        if private and folds > 1:
            raise ConfigError(f"{folds} halvings with privacy: each would have to be paid for", hint="folds=1")
        starts = getattr(method.params, "n_starts", 1)
        one = method.with_params(n_starts=1) if starts > 1 else method
        halves = one
        if "start" in type(method).Params.model_fields and not private:
            halves = one.with_params(start="random")  # a start from half of the Gram is one more release of it
        groups: list[list[Any]] = [] if private and folds else [[_moved(one, k) for k in range(starts)]]
        for f in range(folds):
            groups += [[half_method(_moved(halves, k), key, half=h, halving=f) for k in range(starts)] for h in (0, 1)]
        self.groups = groups
        super().__init__([m for g in groups for m in g], disjoint=private, name=method.name)

    def chosen(self, public: Any) -> list[Any]:
        """Of every group the public state of the start with the lowest objective."""
        states, out, at = self.publics(public), [], 0
        for g in self.groups:
            mine = states[at : at + len(g)]
            goals = [np.inf if p.objective is None else p.objective for p in mine]
            out.append(mine[int(np.argmin(goals))])
            at += len(g)
        return out


def _moved(method: Any, start: int) -> Any:
    return method if start == 0 else method.with_params(seed=method.params.seed + start)


@dataclass(frozen=True, eq=False)
class Matched:
    """The halves' columns matched to the reference, and the consensus."""

    public: Any  # the reference's state with the consensus' factors
    halves: tuple[Any, ...]  # states of all half fits, two a halving
    columns: NDArray[np.int64]  # (half fits, R) column of each that belongs to r; -1 where it has none
    alike: Array  # (halvings, R) cosine of the two halves' columns


def matched(publics: Sequence[Any], private: bool) -> Matched:
    """Match all half fits to the fit on everybody (or, with privacy, to the first half) and take the mean of matched columns.

    Consensus: mean of the length-1 columns of the reference and of all half fits, rescaled; it agrees better between
    disjoint halves than single fits do (RECORDS 3.4), and it is a sum.
    """
    reference, halves = publics[0], (publics if private else publics[1:])
    target = [np.asarray(f) for f in reference.factors]
    rank = target[0].shape[1]
    columns = np.full((len(halves), rank), -1, np.int64)
    for i, p in enumerate(halves):
        found = match(target, list(p.factors))
        columns[i, found.left] = found.right
    alike = np.zeros((len(halves) // 2, rank))
    for k in range(len(halves) // 2):
        table = cosines(list(halves[2 * k].factors), list(halves[2 * k + 1].factors))
        a, b = columns[2 * k], columns[2 * k + 1]
        alike[k] = np.where((a >= 0) & (b >= 0), table[a, b], 0.0)
    factors = []
    for n, f in enumerate(target):
        length = np.linalg.norm(f, axis=0)
        mean = f / np.maximum(length, 1e-300)
        for p, c in zip(halves, columns):
            if p is reference:
                continue
            other = np.asarray(p.factors[n])[:, np.maximum(c, 0)]
            other = other / np.maximum(np.linalg.norm(other, axis=0), 1e-300)
            sign = np.where((other * f).sum(0) < 0, -1.0, 1.0)
            mean = mean + np.where(c >= 0, other * sign, 0.0)
        size = np.linalg.norm(mean, axis=0)
        factors.append(np.where(size > 0, mean / np.maximum(size, 1e-300) * length, f))
    return Matched(replace(reference, factors=tuple(factors)), tuple(halves), columns, alike)


def published(method: Any, public: Any, outcome: Any, axes: Sequence[Any] | None = None) -> Any:
    """A fitted estimator of this public state; it knows no site's memberships."""
    model = method.with_params()
    setting = outcome.setting if axes is None else replace(outcome.setting, axes=tuple(axes))
    model.publish(replace(outcome, public=public, privates={}, closed={}, setting=setting))
    return model


def raw_placer(method: Any, public: Any, setting: Any) -> Placer:
    """Places patients by a public state with its columns as they are, at any site, without a published model."""
    from polyclinic.federation.protocol import seeds

    def place(site: Site) -> Array:
        private = method.open(site, public, seeds(method.params.seed, site.name, "place"))
        return np.asarray(method.close(site, private, public)["memberships"])

    return Placer(public.factors, place)


def links(halves: Sequence[Any], method: Any, setting: Any, key: str, aggregation: str) -> list[Link]:
    """For every half fit the link test on the patients of the other half."""
    out = []
    for i, public in enumerate(halves):
        placer = raw_placer(method, public, setting)
        out.append(Link(model=placer, key=key, halving=i // 2, half=1 - i % 2, aggregation=aggregation))
    return out


def verdict(
    found: Matched, acts: Sequence[Link], publics: Sequence[Any], order: NDArray[np.int64], sites: int
) -> Table:
    """One row a phenotype, in the order of the published model."""
    rank = found.columns.shape[1]
    rho, z = np.zeros((len(acts), rank)), np.zeros((len(acts), rank))
    carried = np.zeros((len(acts), rank))
    for i, (act, public) in enumerate(zip(acts, publics)):
        r, s = act.rho(public)
        at = np.maximum(found.columns[i], 0)
        there = found.columns[i] >= 0
        rho[i], z[i] = np.where(there, r[at], 0.0), np.where(there, s[at], 0.0)
        carried[i] = np.where(there, public.carried[at], 0.0)
    rows = []
    for place, r in enumerate(order):
        back = float(np.median(found.alike[:, r]))
        link = float(np.median(z[:, r]))
        flags = back >= BACK, link >= LINKED
        low, high = (
            (float(found.alike[:, r].min()), float(found.alike[:, r].max())) if len(found.alike) > 1 else (None, None)
        )
        words = "yes" if flags[0] else "partly" if back >= PARTLY else "no"
        where = round(float(np.median(carried[:, r])))
        correlation = float(np.median(rho[:, r]))
        rows.append([place, back, low, high, words, link, correlation, flags[1], where, sites, all(flags)])
    return Table(COLUMNS, rows)


COLUMNS: Final = (
    "phenotype",
    "halves",
    "low",
    "high",
    "comes_back",
    "link",
    "rho",
    "holds_together",
    "carried",
    "sites",
    "replicable",
)


@dataclass(frozen=True, eq=False)
class Replication:
    """What came back.

    Attributes
    ----------
    table
        One row a phenotype: ``halves`` (cosine between the halves' columns), ``comes_back`` (yes, partly, no), ``link`` (z on
        unseen patients), ``rho``, ``holds_together``, ``carried`` (hospitals where at least 11 patients have it),
        ``replicable``.
    model
        The consensus, fitted: the model to publish.
    halves
        The models of the halves of the first halving.
    """

    table: Table
    model: Any
    halves: tuple[Placer, ...]
    outcome: Outcome

    @property
    def count(self) -> int:
        """How many phenotypes are replicable."""
        return sum(bool(r["replicable"]) for r in self.table)

    def __repr__(self) -> str:
        return (
            f"<Replication: {self.count} of {len(self.table)} phenotypes come back and hold together>\n{self.table!r}"
        )


def replicate(method: Any, sites: Sequence[Site], folds: int = 1, *, key: str = KEY, **options: Any) -> Replication:
    """Fit on everybody and on hashed halves as one federated run, and judge every phenotype.

    Parameters
    ----------
    method
        A phenotype method with its parameters, fitted or not.
    sites
        The hospitals.
    folds
        Halvings; one by default.
    key
        Of the halves; fix it before the data are read.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.planted_counts(1500, 30, 40, phenotypes=4, codes=(4, 5), sites=3, seed=0)
    >>> pc.replicate(pc.SumALS(rank=4, rounds=20), sites).count
    4
    """
    rungs = Rungs(method.with_params(), key, folds)
    outcome = run(rungs, sites, **options)
    found = matched(rungs.chosen(outcome.public), method.params.privacy is not None)
    model = published(rungs.method, found.public, outcome)
    model.memberships_ = {s.name: model.transform(s) for s in sites}
    if method.params.privacy is not None:  # a link test would have to be paid for
        acts, publics = [], []
    else:
        acts = links(found.halves, rungs.method, outcome.setting, key, method.params.aggregation)
        ladder = Ladder(acts, name="link")
        linked = run(ladder, sites, **{k: v for k, v in options.items() if k == "doors"})
        publics = list(ladder.publics(linked.public))
    table = (
        verdict(found, acts, publics, model.order_, len(sites)) if acts else untested(found, model.order_, len(sites))
    )
    halves = tuple(raw_placer(rungs.method, p, outcome.setting) for p in found.halves[:2])
    return Replication(table, model, halves, outcome)


def untested(found: Matched, order: NDArray[np.int64], sites: int) -> Table:
    """Agreement alone, where the link was not paid for: nothing is called replicable."""
    rows = []
    for place, r in enumerate(order):
        back = float(np.median(found.alike[:, r]))
        words = "yes" if back >= BACK else "partly" if back >= PARTLY else "no"
        rows.append([place, back, None, None, words, None, None, None, None, sites, False])
    return Table(COLUMNS, rows)


def permuted(sites: Sequence[Site], seed: int = 0) -> list[Site]:
    """The negative control: inside each hospital codes are permuted over the rows of their mode, so no relation is left.

    Same patients, same number of entries each, same frequency of every code; duplicates that arise are summed.

    >>> import polyclinic as pc
    >>> sites = pc.datasets.planted_counts(300, 20, 30, phenotypes=3, codes=(4, 5), sites=3, seed=0)
    >>> [s.tensor.values.sum() for s in permuted(sites)] == [s.tensor.values.sum() for s in sites]
    True
    """
    from polyclinic.federation.protocol import seeds

    out = []
    for s in sites:
        t, rng = s.counts(), seeds(seed, "permuted", s.name)
        who = np.repeat(t.rows, np.diff(t.indptr))
        coords = np.column_stack([who, *(rng.permutation(c) for c in t.codes)])
        out.append(replace(s, tensor=SparseTensor(coords, t.values, t.shape, t.axes)))
    return out
