"""How a DPEM fit begins: marginals from the first release, phenotypes around them, or a prior's."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.methods.dpem.prior import Prior
from polyclinic.methods.dpem.shrinkage import between, posterior_mean
from polyclinic.methods.dpem.significance import stands_out
from polyclinic.methods.dpem.state import Array, DPEMPublic, by_mode

FLAT: Final = 0.02  # limit: share of the flat law in the marginals, so that no code is ever impossible
TOLD: Final = 1e-4  # share of the marginals in a prior's column


def with_marginals(public: DPEMPublic, sums: Array, sd: float) -> DPEMPublic:
    """The background from the first release, and the start of every phenotype around it."""
    marginals, factors, prior_columns, rival, prior_alone = [], [], [], [], []
    for n, (s, m, g) in enumerate(zip(by_mode(sums, public.marginals), public.marginals, public.factors)):
        total = np.maximum(s.sum(), 1.0)
        x = posterior_mean(s, total * m, sd) + 1e-12 * m
        rival.append((1 - FLAT) * x / x.sum() + FLAT * m)
        if public.told:
            guess = np.where(public.expected[n] > 0, public.expected[n], 1e-3 * m)
            x = between(s[:, None], (total * m)[:, None], (total * guess)[:, None], sd)[:, 0] + 1e-12 * m
        x = (1 - FLAT) * x / x.sum() + FLAT * m
        around = g * x[:, None]
        around = around / around.sum(0)
        if public.told:  # a code that the prior never saw is as frequent as it is here; so is a column without a prior
            expected_codes, spoken = public.expected[n] > 0, public.told[n].sum(0) > 0
            q = _said(np.where(spoken, public.told[n], x[:, None] / x[expected_codes].sum()), x, expected_codes)
            around = np.where(spoken, q, around)
            prior_columns.append(q)
            covered = bool(
                (public.alone[n][expected_codes].max(1) > 0).all()
            )  # nothing that it saw is impossible to it
            prior_alone.append(_said(public.alone[n], x, expected_codes, 0.0 if covered else TOLD))
        marginals.append(x)
        factors.append(0.9 * around + 0.1 * x[:, None])
    state = replace(public, stage="statistics", round=1, marginals=tuple(marginals), factors=tuple(factors))
    if state.shares is not None:
        voting = replace(state, stage="vote", round=0, mixture=state.shares)
        return replace(voting, told=tuple(prior_columns), alone=tuple(prior_alone), rival=tuple(rival))
    if public.plan.rank:
        return state
    # Too little data for any phenotype: the whole budget went here (docs/benchmarks/private-em.md).
    only = tuple(m[:, None] for m in marginals)
    return replace(
        state,
        stage="end",
        factors=only,
        mixture=np.ones(1),
        shown=tuple(stands_out(s[:, None], 0 * f, sd) for s, f in zip(by_mode(sums, public.marginals), only)),
        energy=np.ones(1),
    )


def _said(columns: Array, marginals: Array, known: NDArray[np.bool_], least: float = TOLD) -> Array:
    """A prior's columns on the codes of this study: as frequent as here where the prior never saw a code."""
    q = np.where(known[:, None], columns * marginals[known].sum(), marginals[:, None])
    out: Array = (1 - least) * q / q.sum(0) + least * marginals[:, None]
    return out


def leaning(public: DPEMPublic, prior: Prior) -> DPEMPublic:
    """The start with a prior: its heaviest phenotypes are the first columns, what is left of the rank begins at random.

    Before the marginals are known, a column of ``told`` without a prior is 0.
    """
    rank, columns = public.plan.rank, len(public.mixture)
    heaviest = np.argsort(-prior.mixture, kind="stable")
    order = heaviest[:rank]
    prior_columns = tuple(np.pad(f[:, order], ((0, 0), (0, rank - len(order)))) for f in prior.factors)
    shares = np.full(columns, 1.0 / columns)
    led = prior.mixture[order]
    if prior.background is not None and columns > rank:
        shares *= (1.0 - prior.background) / shares[:rank].sum()
        shares[rank] = prior.background
    shares[: len(order)] *= led / led.mean()
    pieces = np.arange(len(order)) if prior.pieces is None else prior.pieces[order]
    state = replace(public, told=prior_columns, expected=prior.marginals, shares=shares, random=public.factors)
    return replace(_by_itself(state, prior, heaviest), spoken=len(order), pieces=pieces)


def _by_itself(public: DPEMPublic, prior: Prior, order: NDArray[np.int64]) -> DPEMPublic:
    """The prior as it places patients, whatever the rank of this fit: what the fit is compared with at its end."""
    pieces = np.arange(prior.rank) if prior.pieces is None else prior.pieces[order]
    names = {k: i for i, k in enumerate(dict.fromkeys(int(k) for k in pieces if k >= 0))}
    parts = np.array([names.get(int(k), -1) for k in pieces], np.int64)
    shares, prior_alone = prior.mixture[order], tuple(f[:, order] for f in prior.factors)
    if prior.background is not None:
        shares, parts = np.append((1.0 - prior.background) * shares, prior.background), np.append(parts, -1)
        prior_alone = tuple(np.column_stack([f, m]) for f, m in zip(prior_alone, prior.marginals))
    visible = tuple(s[:, list(names)] for s in prior.shown)
    return replace(public, alone=prior_alone, alone_shares=shares, alone_parts=parts, alone_shown=visible)


def together(public: DPEMPublic) -> DPEMPublic:
    """A prior's pieces joined to the phenotypes that it shows, where the plan says that data speak clearly; else as it is.

    The columns that place the prior's patients are the better model, and where noise hides the data they are all there is.
    Where data speak they hold EM in the prior's own optimum; joined, they leave columns free for what the prior missed.
    """
    if public.shares is None or public.pieces is None or not public.plan.clear:
        return public
    rank, old, owner = public.plan.rank, public.shares, public.pieces[: public.spoken]
    clusters = [np.flatnonzero(owner == k) for k in dict.fromkeys(int(k) for k in owner if k >= 0)]
    if not clusters:
        return public
    joint = [np.stack([t[:, g] @ (old[g] / old[g].sum()) for g in clusters], axis=1) for t in public.told]
    led = np.array([old[g].sum() for g in clusters])
    shares = np.append(np.full(rank, max(1.0 - float(old[rank:].sum()), 0.1) / rank), old[rank:])
    shares[: len(clusters)] *= led / led.mean()
    prior_columns = tuple(np.pad(t, ((0, 0), (0, rank - len(clusters)))) for t in joint)
    state = replace(public, told=prior_columns, shares=shares / shares.sum(), spoken=len(clusters))
    return replace(state, pieces=np.arange(len(clusters)))
