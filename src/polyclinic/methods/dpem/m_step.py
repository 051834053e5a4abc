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
from polyclinic.methods.dpem.state import Array, DPEMPublic, Factors, by_mode
from polyclinic.protocol.interfaces import seeds

# docs/dev/decisions/0013-dpem-budget-plan.md
BROAD: Final = 1.5  # a union broader than this many times the median phenotype holds more than one
# definition: bisection
CLOSER: Final = 0.5  # such a union is asked again at a likeness that is by this part of what is left nearer to 1


def alike(factors: Sequence[Array], marginals: Sequence[Array]) -> Array:
    """(R, R) likeness of phenotypes in [0, 1]: geometric mean over modes of the cosine of what they have beyond the marginals.

    Columns are compared in the chi-square metric around the marginals, so a code that everybody has makes no two
    phenotypes alike. All modes have to agree: two that share their medications alone are not alike.

    Examples
    --------
    >>> f = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    >>> alike([f], [np.array([0.3, 0.3, 0.4])]).round(2)[0].tolist()
    [1.0, 1.0, 0.0]
    """
    out = np.ones((factors[0].shape[1],) * 2)
    for f, m in zip(factors, marginals):
        x = (f - m[:, None]) / np.sqrt(m)[:, None]
        x = x / np.maximum(np.linalg.norm(x, axis=0), 1e-12)
        out *= np.maximum(x.T @ x, 0.0)
    return np.minimum(out ** (1.0 / len(factors)), 1.0)


def breadth(factors: Sequence[Array], marginals: Sequence[Array]) -> Array:
    """(R,) over how many codes a phenotype spreads what it has beyond the marginals, geometric mean over modes.

    A column that holds two phenotypes is twice as broad as others.

    Examples
    --------
    >>> breadth([np.array([[0.5, 0.9], [0.5, 0.1], [0.0, 0.0]])], [np.array([0.1, 0.1, 0.8])]).tolist()
    [2.0, 1.0]
    """
    out = np.ones(factors[0].shape[1])
    for f, m in zip(factors, marginals):
        x = np.maximum(f - m[:, None], 0.0)
        out *= np.square(x.sum(0)) / np.maximum(np.square(x).sum(0), 1e-300)
    return np.asarray(out ** (1.0 / len(factors)))


def groups(likeness: Array, mass: Array, threshold: float) -> list[list[int]]:
    """Phenotypes that belong together: the heaviest takes everything alike, then the next of those that are left.

    Examples
    --------
    >>> groups(np.array([[1.0, 0.8, 0.0], [0.8, 1.0, 0.1], [0.0, 0.1, 1.0]]), np.array([1.0, 3.0, 2.0]), 0.5)
    [[1, 0], [2]]
    """
    ungrouped = [int(r) for r in np.argsort(-mass, kind="stable")]
    out = []
    while ungrouped:
        first = ungrouped[0]
        out.append([first, *(r for r in ungrouped[1:] if likeness[first, r] > threshold)])
        ungrouped = [r for r in ungrouped if r not in out[-1]]
    return out


def joined(factors: Sequence[Array], mass: Array, found: Sequence[Sequence[int]]) -> list[Array]:
    """(I_n, groups) per mode: every group's mean by mass."""
    return [np.stack([f[:, g] @ (mass[g] / mass[g].sum()) for g in map(list, found)], axis=1) for f in factors]


def pieces(
    factors: Sequence[Array], marginals: Sequence[Array], mass: Array, threshold: float
) -> tuple[list[list[int]], list[list[int]]]:
    """Columns that are one phenotype, the heaviest first; and those that only look so, since together they hold two.

    EM leaves two phenotypes in two columns that each hold some of both. They are alike, but their union is about twice as
    broad as a phenotype: such a group is divided at higher and higher likeness until its parts are not, at last into
    single columns. The second list has the groups that were divided.

    Examples
    --------
    >>> flat = np.full(40, 1 / 40)
    >>> f = np.zeros((40, 6))
    >>> for r, codes in enumerate([range(8), range(8), range(8, 12), range(12, 16), range(16, 20), range(20, 24)]):
    ...     f[codes, r] = 1 / len(codes)
    >>> f[:4, 0] *= 3; f[4:8, 1] *= 3; f /= f.sum(0)
    >>> pieces([f], [flat], np.arange(6.0, 0.0, -1.0), 0.25)
    ([[0], [1], [2], [3], [4], [5]], [[0, 1]])
    """
    likeness = alike(factors, marginals)
    clusters = groups(likeness, mass, threshold)
    usual = float(np.median(breadth(joined(factors, mass, clusters), marginals)))
    out, distances = [], []
    todo = [(g, threshold) for g in clusters]
    while todo:
        g, least = todo.pop(0)
        if len(g) == 1 or breadth(joined(factors, mass, [g]), marginals)[0] <= BROAD * usual:
            out.append(g)
            continue
        if g in clusters:
            distances.append(g)
        nearer = least + CLOSER * (1.0 - least)
        parts = [[r] for r in g]
        if nearer < 0.99:
            parts = [[g[k] for k in part] for part in groups(likeness[np.ix_(g, g)], mass[g], nearer)]
        todo = [(part, nearer) for part in parts] + todo
    return out, distances


def drawn_apart(factors: Sequence[Array], mass: Array, apart: Sequence[Sequence[int]]) -> tuple[Array, ...]:
    """Columns of a group that holds two phenotypes, with what differs between them doubled: f_r <- f_r (f_r / union).

    EM tells such columns apart by and by, faster the more they differ.
    """
    out = [f.copy() for f in factors]
    for g in map(list, apart):
        for f, union in zip(out, joined(factors, mass, [g])):
            x = np.square(f[:, g]) / np.maximum(union, 1e-300)
            f[:, g] = x / x.sum(0)
    return tuple(out)


def split(
    factors: Sequence[Array], mass: Array, rank: int, rng: np.random.Generator
) -> tuple[tuple[Array, ...], Array]:
    """Bring the number of columns up to ``rank`` by halving the first ones: each code goes at random, more to one half."""
    columns, masses = [list(f.T) for f in factors], list(mass)
    for k in range(rank - len(mass)):
        p = k % len(mass)
        for mode in columns:
            part = rng.uniform(size=len(mode[p]))
            mode.append(mode[p] * (1 - part))
            mode[p] = mode[p] * part
        masses[p] /= 2
        masses.append(masses[p])
    stacked = [np.stack(mode, axis=1) for mode in columns]
    return tuple(s / s.sum(0) for s in stacked), np.array(masses)


# docs/benchmarks/private-em.md, how DPEM spends
CROWDED: Final = 0.07  # share of the marginals in every column, times R / the smallest number of codes of a mode
# docs/benchmarks/private-em.md, how DPEM spends
MOST: Final = 0.2  # of it, at most
FREE_FLOOR: Final = 1e-3  # limit: the same without noise, so that no code is ever impossible
PIECES: Final = (
    0.25  # phenotypes more alike than this are pieces of one (planted: pieces 0.2 to 0.7, 99 % of others below 0.1)
)
FREE_PIECES: Final = 0.5  # the same without noise, which makes pieces less alike
# docs/benchmarks/private-em.md, how DPEM spends
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
        g, precisions = groups_found[k], public.precision[groups_found[k]]
        if i < rank - len(heaviest) or not precisions.all():
            continue
        released[:, i] = public.released[:, g].sum(1)
        noise[i], precision[i] = np.sqrt(np.square(public.noise[g]).sum()), 1.0 / np.sum(1.0 / precisions)
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
    visible = np.flatnonzero((raw > sd) | np.array(certain))
    return visible if len(visible) else np.array([int(np.argmax(raw))])


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
