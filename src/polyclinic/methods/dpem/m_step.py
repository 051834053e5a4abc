"""DPEM's M-step: phenotypes from noisy sums by empirical Bayes, and what of them is shown. Released values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from polyclinic.methods.dpem.params import DPEMParams
from polyclinic.methods.dpem.shrinkage import between, posterior_mean
from polyclinic.methods.dpem.significance import stands_out
from polyclinic.methods.dpem.split_merge import breadth, drawn_apart, joined, pieces, split
from polyclinic.methods.dpem.state import Array, DPEMPublic, Factors, by_mode
from polyclinic.protocol.interfaces import seeds

# docs/explanation/privacy.md, how DPEM spends
CROWDED: Final = 0.07  # share of the marginals in every column, times R / the smallest number of codes of a mode
# docs/explanation/privacy.md, how DPEM spends
MOST: Final = 0.2  # of it, at most
FREE_FLOOR: Final = 1e-3  # limit: the same without noise, so that no code is ever impossible
PIECES: Final = (
    0.25  # phenotypes more alike than this are pieces of one (planted: pieces 0.2 to 0.7, 99 % of others below 0.1)
)
FREE_PIECES: Final = 0.5  # the same without noise, which makes pieces less alike
# docs/explanation/privacy.md, how DPEM spends
RENEWED: Final = 10  # where columns are renewed, at least one in so many is given to halves of heavy ones
SLIGHT: Final = 0.1  # a code of less than this part of the phenotype's largest is not shown


def masses(raw: Array, variance: float) -> Array:
    """What every column holds, shrunk toward their mean as far as the noise explains the differences (James and Stein).

    Examples
    --------
    >>> masses(np.array([9.0, 11.0, 10.0, 10.0]), 4.0).tolist()
    [10.0, 10.0, 10.0, 10.0]
    >>> masses(np.array([90.0, 110.0, 100.0, 100.0]), 4.0).round(1).tolist()
    [90.2, 109.8, 100.0, 100.0]
    """
    mean = float(raw.mean())
    off = raw - mean
    shrinkage = 1.0 - max(len(raw) - 3, 0) * variance / max(float(off @ off), 1e-300)
    out: Array = np.maximum(mean + max(0.0, shrinkage) * off, max(0.1 * mean, 1e-9))
    return out


def _toward(target: Array, raw: Array, variance: float) -> Array:
    """The same toward a prior's shares; noise two standard deviations above its mean still explains a difference."""
    off = raw - target
    noise = (len(raw) + 2.0 * np.sqrt(2.0 * len(raw))) * variance
    mass = target + max(0.0, 1.0 - noise / max(float(off @ off), 1e-300)) * off
    out: Array = np.maximum(mass, 0.1 * float(mass.mean()))
    return out


def learned(p: DPEMParams, public: DPEMPublic, sums: Array, noise: Array) -> tuple[Factors, Array, Array]:
    """Factors and mixture by empirical Bayes; also every column's noisy mass, as released."""
    parts = by_mode(sums, public.marginals)
    rank = sums.shape[1] - p.background
    inverse = np.array([1.0 / len(m) for m in public.marginals])  # noise variance of a column's sum ~ its length
    raw: Array = sum((w * s.sum(0) for w, s in zip(inverse, parts)), np.zeros(sums.shape[1])) / inverse.sum()
    variance = float(np.square(noise).mean()) / float(inverse.sum())
    noisy = variance > 0
    if public.shares is not None and noisy:
        mass = _toward(max(float(raw.sum()), 1.0) * public.shares, raw, variance)
    else:
        mass = masses(raw, variance)
    floor = min(CROWDED * rank * float(inverse.max()), MOST) if noisy else FREE_FLOOR
    factors = []
    for n, (s, m) in enumerate(zip(parts, public.marginals)):
        base = m[:, None] * mass[:rank]
        if public.told:
            x = between(s[:, :rank], base, public.told[n] * mass[:rank], noise[:rank])
            least = public.told[n]
        else:
            x, least = posterior_mean(s[:, :rank], base, noise[:rank]), m[:, None]
        x = x + 1e-12 * m[:, None]
        factors.append((1 - floor) * x / x.sum(0) + floor * least)
    return tuple(factors), mass / mass.sum(), raw


def _pieces(public: DPEMPublic) -> tuple[list[list[int]], list[list[int]]]:
    """Columns that are one phenotype, the heaviest first; and groups that only look so."""
    mass = public.mixture[: public.factors[0].shape[1]]
    least = PIECES if public.plan.multipliers else FREE_PIECES
    return pieces(public.factors, public.marginals, mass, least)


def regrouped(p: DPEMParams, public: DPEMPublic, *, renew: bool) -> DPEMPublic:
    """Join pieces, and give the columns that this frees to halves of others (post-processing).

    With ``renew`` at least one column in ``RENEWED`` is freed, the lightest, for halves of the heaviest. Later nothing is
    dropped, so that data without pieces lose nothing, and halved are columns that are heavy and broad: they may hold two
    phenotypes. A column keeps what was released of it, a joined one the sum over its pieces; halves begin anew.
    """
    rank = public.factors[0].shape[1]
    mass = public.mixture[:rank]
    groups_found, separate = _pieces(public)
    public = replace(public, factors=drawn_apart(public.factors, mass, separate))
    joint = np.array([mass[g].sum() for g in groups_found])
    factors = joined(public.factors, mass, groups_found)
    heaviest = np.argsort(-joint, kind="stable")[: max(rank - max(rank // RENEWED, 1), 1) if renew else rank]
    if len(heaviest) == rank:
        return public
    if not renew:
        heaviest = heaviest[np.argsort(-(joint * breadth(factors, public.marginals))[heaviest], kind="stable")]
    new, masses_left = split(
        [f[:, heaviest] for f in factors], joint[heaviest], rank, seeds(p.seed, "regroup", public.round)
    )
    mixture = np.concatenate([masses_left, public.mixture[rank:]])
    state = replace(public, factors=new, mixture=mixture / mixture.sum())
    if public.released is None or public.noise is None or public.precision is None:
        return state
    released, noise, precision = public.released.copy(), public.noise.copy(), public.precision.copy()
    precision[:rank] = 0.0
    for i, k in enumerate(heaviest):
        g, known = groups_found[k], public.precision[groups_found[k]]
        if i < rank - len(heaviest) or not known.all():
            continue
        released[:, i] = public.released[:, g].sum(1)
        noise[i], precision[i] = np.sqrt(np.square(public.noise[g]).sum()), 1.0 / np.sum(1.0 / known)
    return replace(state, released=released, noise=noise, precision=precision)


def _joined(sums: Array, noise: Array, found: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """The pieces of every group together, divided by the root of their number: noise as before."""
    times = np.sqrt([len(g) for g in found])
    together = np.stack([sums[:, g].sum(1) for g in found], axis=1) / times
    return together, np.array([np.sqrt(np.square(noise[list(g)]).mean()) for g in found])


def _told_pieces(public: DPEMPublic) -> tuple[list[list[int]], list[bool]]:
    """Columns by the prior's phenotypes, then every other by itself; and which of these the prior shows.

    Columns of a prior are no pieces but of its own phenotypes, and no ghosts of the noise.
    """
    rank = public.factors[0].shape[1]
    owner = np.full(rank, -1)
    owner[: public.spoken] = np.arange(public.spoken) if public.pieces is None else public.pieces[: public.spoken]
    names = list(dict.fromkeys(int(k) for k in owner if k >= 0))
    pieces = [[int(r) for r in np.flatnonzero(owner == k)] for k in names]
    single = [[int(r)] for r in np.flatnonzero(owner < 0)]
    return pieces + single, [True] * len(pieces) + [False] * len(single)


def _told_together(public: DPEMPublic, found: Sequence[Sequence[int]]) -> DPEMPublic:
    """What the prior says of the pieces of every group together, in the scale of :func:`_joined`."""
    if public.shares is None:
        return public
    rank, shares = public.factors[0].shape[1], public.shares
    inner = [list(g) for g in found if g[0] < rank]
    prior_columns = tuple(
        np.stack([t[:, g] @ (shares[g] / shares[g].sum()) for g in inner], axis=1) for t in public.told
    )
    together = np.array([shares[list(g)].sum() / np.sqrt(len(g)) for g in found])
    return replace(public, told=prior_columns, shares=together / together.sum())


def _members(p: DPEMParams, public: DPEMPublic) -> tuple[list[list[int]], list[bool]]:
    """The columns of every phenotype, and which phenotypes stay whatever the noise explains."""
    if p.prune and public.spoken:
        return _told_pieces(public)
    members = _pieces(public)[0] if p.prune else [[r] for r in range(public.factors[0].shape[1])]
    return members, [False] * len(members)


def _above_noise(public: DPEMPublic, raw: Array, noise: Array, certain: Sequence[bool]) -> NDArray[np.int64]:
    """Phenotypes whose mass the noise does not explain, at least the heaviest: its noise is sd / sqrt(sum 1/I_n)."""
    sd = noise / np.sqrt(sum(1.0 / len(m) for m in public.marginals))
    above = np.flatnonzero((raw > sd) | np.array(certain))
    return above if len(above) else np.array([int(np.argmax(raw))])


def finished(p: DPEMParams, public: DPEMPublic) -> DPEMPublic:
    """The phenotypes to show: pieces joined, what the noise explains dropped, codes marked that stand out.

    The columns as they are stay, as ``fine``, to place patients with.
    """
    assert public.released is not None
    assert public.noise is not None
    members, certain = _members(p, public)
    columns = len(members)
    members += [[public.factors[0].shape[1]]] if p.background else []
    sums, noise = _joined(public.released, public.noise, members)
    factors, mixture, raw = learned(p, _told_together(public, members), sums, noise)
    mixture = mixture * np.sqrt([len(g) for g in members])
    significant = []
    for s, m, f in zip(by_mode(sums, public.marginals), public.marginals, factors):
        out = stands_out(s[:, :columns], m[:, None] * np.maximum(raw[:columns], 0.0), noise[:columns], fdr=p.fdr)
        significant.append(out & (f >= SLIGHT * f.max(0)) if noise.any() else out)
    keep = _above_noise(public, raw[:columns], noise[:columns], certain) if p.prune else np.arange(columns)
    columns_kept = np.append(keep, columns) if p.background else keep
    parts = np.full(public.released.shape[1], -1, np.int64)
    for k, c in enumerate(keep):
        parts[members[c]] = k
    mixture = mixture[columns_kept]
    return replace(
        public,
        stage="end",
        factors=tuple(f[:, keep] for f in factors),
        mixture=mixture / mixture.sum(),
        released=sums[:, columns_kept],
        noise=noise[columns_kept],
        precision=None,
        shown=tuple(s[:, keep] for s in significant),
        energy=np.square(mixture[: len(keep)]),
        fine=public.factors,
        fine_mixture=public.mixture,
        parts=parts,
    )
