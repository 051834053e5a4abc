"""Suppress small cells: counts that would point at single patients, and counts that give those away."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import DataError

Array = NDArray[np.float64]


def suppress(counts: ArrayLike, *, minimum: int = 11) -> NDArray[np.bool_]:
    """Which cells of a table of counts must not be shown, complementary ones included.

    A count from 1 to ``minimum`` - 1 is hidden. Where totals of rows and columns are shown, one hidden cell in a line
    could be computed from the rest, and so could several that together stay below ``minimum``; then the smallest
    other cell of that line is hidden too, until no line gives one away, and all lines together do not, either.

    Parameters
    ----------
    counts
        One line of counts, or a table (rows, columns), without its totals.

    Returns
    -------
    array of bool
        Shape of the table plus one in each direction: the last row and column are the totals. True = hide.

    Examples
    --------
    >>> suppress([50, 4, 30]).tolist()  # 4 is small; 30 would give it away
    [False, True, True, False]
    """
    table = np.atleast_2d(np.asarray(counts))
    line = np.ndim(counts) == 1
    if np.ndim(counts) not in (1, 2) or (table.size and (not np.isfinite(table).all() or (table < 0).any())):
        raise DataError("counts must be a line or a table of numbers that are not negative")
    full = np.zeros((table.shape[0] + 1, table.shape[1] + 1))
    full[:-1, :-1] = table
    full[:-1, -1] = table.sum(1)
    full[-1] = full[:-1].sum(0)
    hide = (full > 0) & (full < minimum)
    if line:
        while _hide_one_more(full[0], hide[0], minimum):
            pass
        return np.asarray(hide[0])
    lines = [*zip(full, hide), *zip(full.T, hide.T)]
    while any(_hide_one_more(v, h, minimum) for v, h in lines) or _hide_beside_given_away(full, hide, minimum):
        pass
    return hide


def _hide_one_more(values: Array, hidden: NDArray[np.bool_], minimum: int) -> bool:
    """Hide one more cell of a line if its total gives a hidden one away; whether there was a need."""
    visible = np.flatnonzero(~hidden)
    if not hidden.any() or not visible.size or (hidden.sum() > 1 and values[hidden].sum() >= minimum):
        return False
    # zeros say nothing by being hidden; the smallest count above zero does least harm
    hidden[min(visible.tolist(), key=lambda i: (values[i] == 0, values[i], i))] = True
    return True


def _hide_beside_given_away(full: Array, hide: NDArray[np.bool_], minimum: int) -> bool:
    """Hide the smallest shown cell in line with a small count that the table gives away; whether there was one."""
    for i, j in np.argwhere(hide & (full > 0) & (full < minimum)):
        if not _given_away(full, hide, i, j):
            continue
        candidates = [*((i, k) for k in np.flatnonzero(~hide[i])), *((k, j) for k in np.flatnonzero(~hide[:, j]))]
        if candidates:
            hide[min(candidates, key=lambda at: (full[at] == 0, full[at], at))] = True
            return True
    return False


def _given_away(full: Array, hide: NDArray[np.bool_], row: int, column: int) -> bool:
    """Whether what is shown leaves one value for a hidden cell (Gusfield 1988, a graph theoretic approach to data security).

    Rows and columns are nodes. A hidden cell is an edge along which its count may grow, and back along which it may shrink if it
    is not 0. A total grows where a cell shrinks. The count is fixed if no path of other cells can make up for a change of it.
    """
    is_row, is_column = np.arange(full.shape[0]), np.arange(full.shape[1])
    is_total = (is_row == len(is_row) - 1)[:, None] ^ (is_column == len(is_column) - 1)
    grows, shrinks = hide & (~is_total | (full > 0)), hide & (is_total | (full > 0))
    grows[row, column] = shrinks[row, column] = False

    def reached(rows: NDArray[np.bool_], columns: NDArray[np.bool_]) -> tuple[bool, bool]:
        size = -1
        while size < (size := int(rows.sum() + columns.sum())):
            columns = columns | grows[rows].any(0)
            rows = rows | shrinks[:, columns].any(1)
        return bool(rows[row]), bool(columns[column])

    makes_up_for_less = reached(is_row == row, is_column < 0)[1]
    makes_up_for_more = reached(is_row < 0, is_column == column)[0]
    return not (makes_up_for_less or makes_up_for_more)


def hide_given_away(
    rows: Sequence[Sequence[object]], count: int, keeps: Collection[int], total: int, minimum: int = 11
) -> list[list[object]]:
    """Hide rows of a published table whose count is hidden, and one more where the printed total gives the count away.

    A ratio, its error and p are computed from the count, so they are hidden with it.

    Parameters
    ----------
    count
        Position of the count; None in it: hidden already.
    keeps
        Positions that stay: names.
    total
        Printed beside the table.

    Examples
    --------
    >>> hide_given_away([["a", 40, 1.5], ["b", None, 0.2], ["c", 20, 1.1]], 1, [0], 64)
    [['a', 40, 1.5], ['b', None, None], ['c', None, None]]
    """
    counts = hide_rest(np.array([row[count] for row in rows], np.float64), total, minimum)
    return [[None if np.isnan(n) and i not in keeps else x for i, x in enumerate(row)] for row, n in zip(rows, counts)]


def hide_rest(
    counts: Array,
    total: float,
    minimum: int,
    few: Callable[[NDArray[np.bool_], float], bool] = lambda hidden, rest: False,
) -> Array:
    """Hide one more count of a line, the smallest, while those that are hidden (NaN) are known together to be few.

    Parameters
    ----------
    counts
        One line; NaN: hidden.
    total
        Printed beside the line.
    few
        Another reason to hide more: which are hidden, and what they add up to.

    Examples
    --------
    >>> hide_rest(np.array([30.0, np.nan, 0.0, 12.0]), 46, 11).tolist()
    [30.0, nan, 0.0, nan]
    """
    counts = counts.copy()
    while (hidden := np.isnan(counts)).any() and not hidden.all():
        rest = float(total - np.nansum(counts))
        if hidden.sum() > 1 and not 0 < rest < minimum and not few(hidden, rest):
            break
        counts[np.nanargmin(np.where(counts == 0, np.finfo(float).max, counts))] = np.nan  # a zero hides nothing: last
    return counts


def effective_contributors(weights: ArrayLike) -> Array:
    """How many patients really carry each phenotype: (sum w)^2 / sum w^2 over patients.

    Below the minimum cell count a phenotype that is not differentially private describes single patients.

    Parameters
    ----------
    weights
        (patients, R) memberships.

    Returns
    -------
    array
        (R,) effective numbers; 0 where nobody carries it.

    Examples
    --------
    >>> effective_contributors([[1.0, 9.0], [1.0, 0.0], [1.0, 0.0]]).tolist()
    [3.0, 1.0]
    """
    w = np.abs(np.asarray(weights, np.float64))
    square = (w**2).sum(0)
    return np.asarray(np.where(square > 0, w.sum(0) ** 2 / np.where(square > 0, square, 1.0), 0.0))
