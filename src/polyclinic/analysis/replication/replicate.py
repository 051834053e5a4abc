"""replicate: which phenotypes come back in another half of the patients, and hold together in patients nobody looked at.

Agreement alone proves nothing: on codes permuted over their mode most columns still "replicate", because frequencies come
back, too. A phenotype is replicated if its columns of two disjoint halves agree (cosine >= .8, lower limit >= .5) AND, on the patients that a
half's fit did not see, its codes of one mode go with its codes of the other (r >= .1, z >= 3, inside hospitals and given the size of the record).

More columns than phenotypes split some; columns that are one phenotype are joined before anything is judged (:mod:`.replication.splits`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from polyclinic.analysis.link import Link
from polyclinic.analysis.projection import Projector
from polyclinic.analysis.replication.consensus import BACK, Matched, matched
from polyclinic.analysis.replication.negative_control import permuted
from polyclinic.analysis.replication.private_link import Linked, judged
from polyclinic.analysis.replication.replicate_fits import KEY, ReplicateFits
from polyclinic.analysis.replication.splits import Splits, accepted
from polyclinic.errors import ConfigError
from polyclinic.privacy.card.card import make_card
from polyclinic.privacy.guarantee import noisy
from polyclinic.protocol.composition import Parallel
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import Method, Schema
from polyclinic.protocol.loop import RunOptions, run
from polyclinic.protocol.outcome import Outcome
from polyclinic.records.sites.site import Site
from polyclinic.tensors.matching import match
from polyclinic.util.table import Table

if TYPE_CHECKING:
    from polyclinic.analysis.link import LinkPublic
    from polyclinic.methods.rounds.factorization import FactorPublic
    from polyclinic.protocol.outcome import Outcome
    from polyclinic.tensors.axis import Axis

__all__ = ["BACK", "ReplicateFits", "Replication", "permuted", "replicate"]

Array = NDArray[np.float64]


def published(method: Estimator, public: object, outcome: Outcome, axes: Sequence[Axis] | None = None) -> Any:
    """A fitted estimator of this public state; it knows no site's memberships."""
    model = method.with_params()
    setting = outcome.setting if axes is None else replace(outcome.setting, axes=tuple(axes))
    model.publish(replace(outcome, public=public, privates={}, closed={}, setting=setting))
    return model


def raw_placer(method: Method, public: FactorPublic, setting: Schema | None) -> Projector:
    """Places patients by a public state with its columns as they are, at any site, without a published model."""
    from polyclinic.protocol.interfaces import seeds

    def place(site: Site) -> Array:
        private = method.init_site(site, public, seeds(method.params.seed, site.name, "place"))
        return np.asarray(method.finalize_site(site, private, public)["memberships"])

    return Projector(public.factors, place)


def comparable(method: object) -> None:
    """Refuse a method whose fits cannot be set side by side: what it makes public has no factors of its phenotypes."""
    public = method.Public if isinstance(method, Method) else None
    names = {f.name for f in fields(public)} | set(dir(public)) if is_dataclass(public) else set()
    if not {"factors", "energy", "objective"} <= names:
        raise ConfigError(
            f"{type(method).__name__} has no phenotypes whose fits on halves could be compared",
            hint="pass a phenotype method first, then the sites: pc.replicate(pc.SumALS(rank=10), sites)",
        )


def may_join(method: Method) -> bool:
    """Whether columns of its fits are joined: of methods that place patients by least squares, without privacy, and not of a
    paper's variant, which publishes what it found."""
    return method.joins


def splits(
    fits: Sequence[FactorPublic], method: Method, setting: Schema | None, key: str, aggregation: str
) -> list[Splits]:
    """For the fit on everybody and every half fit: which of its columns are one phenotype."""
    out = []
    for i, public in enumerate(fits):
        half = None if i == 0 else i % 2  # of the fits 1 and 2 the halves are 0 and 1: the other one judges
        placer = raw_placer(method, public, setting)
        pair = max(i - 1, 0) // 2
        out.append(Splits(model=placer, key=key, halving=pair, half=half, aggregation=aggregation))
    return out


def links(halves: Sequence[FactorPublic], method: Method, setting: Schema, key: str, aggregation: str) -> list[Link]:
    """For every half fit the link test on the patients of the other half."""
    out = []
    for i, public in enumerate(halves):
        placer = raw_placer(method, public, setting)
        out.append(Link(model=placer, key=key, halving=i // 2, half=1 - i % 2, aggregation=aggregation))
    return out


def verdict(
    found: Matched, acts: Sequence[Link], publics: Sequence[LinkPublic], order: NDArray[np.int64], sites: int
) -> Table:
    """One row a phenotype, in the order of the published model."""
    rank = found.columns.shape[1]
    rho, z = np.zeros((len(acts), rank)), np.zeros((len(acts), rank))
    carriers = np.zeros((len(acts), rank))
    for i, (act, public) in enumerate(zip(acts, publics)):
        r, s = act.rho(public)
        column = np.maximum(found.columns[i], 0)
        present = found.columns[i] >= 0
        rho[i], z[i] = np.where(present, r[column], 0.0), np.where(present, s[column], 0.0)
        carriers[i] = np.where(present, public.carried[column], 0.0)
    linked = {r: (float(np.median(z[:, r])), float(np.median(rho[:, r]))) for r in range(rank)}
    return judged(found, linked, order, sites, [round(float(np.median(c))) for c in carriers.T])


@dataclass(frozen=True, eq=False)
class Replication:
    """What came back.

    Attributes
    ----------
    table
        One row a phenotype: ``halves`` (cosine between the halves' columns) with its 95 % interval ``low``, ``high``, ``comes_back`` (yes, partly, no), ``link`` (z on
        unseen patients), ``rho``, ``holds_together`` (None: not tested), ``carried`` (hospitals where at least 11 patients have it),
        ``grade`` (replicated, uncertain, not replicated), ``replicable`` (the first of these).
    model
        The consensus, fitted: the model to publish.
    halves
        The models of the halves of the first halving.
    control
        The same table on permuted codes, where it was asked for: nothing should be replicable there (``false_rate``).
    elsewhere
        Where it was asked for, one row a phenotype: ``starts`` (lowest cosine with other starts' fits; None: one start),
        ``lowest`` (lowest cosine with the fits without one hospital) and ``without`` (the hospital that was left out then).
    """

    table: Table
    model: Any
    halves: tuple[Projector, ...]
    outcome: Outcome
    control: Table | None = None
    elsewhere: Table | None = None

    @property
    def false_rate(self) -> float | None:
        """Share of the columns that the same pipeline calls replicable on permuted codes; None: not asked for."""
        if self.control is None:
            return None
        return sum(bool(r["replicable"]) for r in self.control) / max(len(self.control), 1)

    @property
    def count(self) -> int:
        """How many phenotypes are replicable."""
        return sum(bool(r["replicable"]) for r in self.table)

    def __repr__(self) -> str:
        text = f"<Replication: {self.count} of {len(self.table)} phenotypes replicated>"
        if self.control is not None:
            false = sum(bool(r["replicable"]) for r in self.control)
            text += f"\ncontrol, codes permuted inside every hospital: {false} of {len(self.control)} ({self.false_rate:.0%})"
        return f"{text}\n{self.table!r}"


def replicate(
    method: Estimator,
    sites: Sequence[Site],
    repeats: int = 1,
    *,
    key: str = KEY,
    merge: bool = True,
    control: bool = False,
    leave_out: bool = False,
    **options: Unpack[RunOptions],
) -> Replication:
    """Test which phenotypes replicate: fit on all patients and on two halves of them, in one federated run.

    Parameters
    ----------
    method
        A phenotype method with its parameters, fitted or not.
    sites
        The hospitals.
    repeats
        Number of splits into halves. One by default.
    key
        Of the halves; fix it before the data are read.
    merge
        Join components that are one phenotype (least squares only, see :mod:`polyclinic.analysis.replication.splits`).
    control
        Also run on codes permuted inside every hospital, and count the components that are graded as replicated there. It
        doubles the work, and is charged like any other run. Without privacy only.
    leave_out
        Also fit without each hospital in turn, and report the similarity of every phenotype (``elsewhere``).

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.planted_counts(1500, 30, 40, phenotypes=4, codes=(4, 5), sites=3, seed=0)
    >>> pc.replicate(pc.SumALS(rank=4, rounds=20), sites).count
    4
    """
    comparable(method)
    if control and noisy(method.params.privacy):
        raise ConfigError("a control costs as much privacy budget as the fit", hint="control=False with privacy")
    if repeats and noisy(method.params.privacy):
        return _private(method, sites, repeats, key, leave_out, options)
    rungs = ReplicateFits(method.with_params(), key, repeats)
    outcome = run(rungs, sites, **options)
    fits = rungs.chosen(outcome.public)
    run_options: RunOptions = {"doors": options["doors"]} if "doors" in options else {}
    if merge and repeats and may_join(method):
        cut = splits(fits, rungs.method, outcome.setting, key, method.params.aggregation)
        split_test = Parallel(cut, name="splits")
        states = split_test.publics(run(split_test, sites, **run_options).public)
        fits = accepted(fits, [act.groups(p) for act, p in zip(cut, states)])
    pairing = matched(fits, False)
    model = published(rungs.method, pairing.public, outcome)
    model.memberships_ = {s.name: model.transform(s) for s in sites}
    acts = links(pairing.halves, rungs.method, outcome.setting, key, method.params.aggregation)
    table = judged(pairing, {}, model.order_, len(sites))
    if acts:
        ladder = Parallel(acts, name="link")
        publics = list(ladder.publics(run(ladder, sites, **run_options).public))
        table = verdict(pairing, acts, publics, model.order_, len(sites))
    halves = tuple(
        raw_placer(rungs.method, pairing.half(i), outcome.setting) for i in range(min(len(pairing.halves), 2))
    )
    permuted_run = None
    if control:
        permuted_run = replicate(method, permuted(sites, method.params.seed), repeats, key=key, merge=merge).table
    stability = None
    if leave_out:
        stability = elsewhere(model, rungs.method, sites, rungs.starts(outcome.public))
    return Replication(table, model, halves, outcome, permuted_run, stability)


def _private(
    method: Any, sites: Sequence[Site], repeats: int, key: str, leave_out: bool, options: Mapping[str, Any]
) -> Replication:
    """Under a formal guarantee: two halves and, where it can be read, the link of what came back, for one epsilon."""
    modes = 0 if sites[0].tensor is None else len(sites[0].tensor.shape) - 1
    linked = Linked(method.with_params(), key, modes, len(sites), repeats)
    outcome = run(linked, sites, **options)
    pairing = linked.found(outcome.public)
    model = published(linked.rungs.method, pairing.public, outcome)
    model.happened_ = replace(model.happened_, asked=method.params.privacy)
    model.privacy_ = make_card(linked.facts, model.happened_)
    model._conclude()
    model.memberships_ = {s.name: model.transform(s) for s in sites}
    halves = tuple(raw_placer(linked.rungs.method, pairing.half(i), outcome.setting) for i in (0, 1))
    stability = None
    if leave_out:
        stability = elsewhere(model, linked.rungs.method, sites, [])
    return Replication(linked.table(outcome.public, model.order_, len(sites)), model, halves, outcome, None, stability)


def elsewhere(model: Any, method: Any, sites: Sequence[Site], others: Sequence[Sequence[Array]]) -> Table:
    """One row a phenotype: the lowest cosine of its column in the other starts' fits, and in fits without one hospital.

    In one process only. Between hosts the fit with a hospital and the fit without it differ by that hospital's own sums, which
    masks are there to hide.

    Parameters
    ----------
    model
        The published one.
    method
        What is fitted on all hospitals but one.
    others
        Factors of the fits on everybody from the starts that were not kept.
    """
    if len(sites) < 2:
        raise ConfigError("one hospital cannot be left out of one", hint="leave_out=False")
    if noisy(method.params.privacy):
        raise ConfigError("each fit without a hospital costs privacy budget", hint="leave_out=False with privacy")
    rank = model.factors_[0].shape[1]
    other_starts = [_alike(model, f, rank) for f in others]
    plain = method.with_params(aggregation="plain")
    left_out = np.array(
        [_alike(model, plain.with_params().fit([s for s in sites if s is not x]).factors_, rank) for x in sites]
    )
    rows = []
    for r in range(rank):
        worst = int(left_out[:, r].argmin())
        low = min((float(a[r]) for a in other_starts), default=None)
        rows.append([r, low, float(left_out[worst, r]), sites[worst].name])
    return Table(["phenotype", "starts", "lowest", "without"], rows)


def _alike(model: Any, factors: Sequence[Array], rank: int) -> Array:
    """(rank,) cosine of every phenotype with its match; 0 where it has none."""
    pairs, out = match(list(model.factors_), list(factors)), np.zeros(rank)
    out[pairs.left] = pairs.likeness
    return out
