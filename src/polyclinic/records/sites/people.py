"""What is known of patients beside their codes: one row a patient, made at the site, never sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from polyclinic.errors import DataError


@dataclass(frozen=True, eq=False)
class People:
    """Keep covariates and follow-up times of a site's patients, in the order of its tensor.

    Parameters
    ----------
    columns
        Name -> (patients,) numbers (NaN: unknown) or texts ("" or None: unknown): age, sex, insurance ...
    time
        (patients,) days from the start to the event or to when the patient was last seen; NaN: unknown.
    event
        (patients,) whether the event came.

    Examples
    --------
    >>> People({"age": [61, None], "sex": ["F", ""]}).columns["sex"].tolist()
    ['F', '']
    """

    columns: Mapping[str, NDArray[np.generic]]
    time: NDArray[np.float64] | None = None
    event: NDArray[np.bool_] | None = None

    def __init__(
        self, columns: Mapping[str, ArrayLike], time: ArrayLike | None = None, event: ArrayLike | None = None
    ) -> None:
        arrays = {str(n): _column(v) for n, v in columns.items()}
        t = None if time is None else np.asarray(time, np.float64)
        e = None if event is None else np.asarray(event).astype(bool)
        faults = []
        if (t is None) != (e is None):
            faults.append("time and event come together")
        if t is not None and (t[np.isfinite(t)] < 0).any():
            faults.append(f"{int((t < 0).sum())} times are negative")
        sizes = {n: len(v) for n, v in arrays.items()} | ({} if t is None else {"time": len(t)})
        sizes |= {} if e is None else {"event": len(e)}
        if len(set(sizes.values())) > 1:
            faults.append("numbers of patients differ: " + ", ".join(f"{k} {v}" for k, v in sizes.items()))
        if not sizes:
            faults.append("no column is given")
        if faults:
            raise DataError("these are not rows of patients", faults=faults)
        for name, value in (("columns", arrays), ("time", t), ("event", e)):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.time) if self.time is not None else len(next(iter(self.columns.values())))

    def take(self, index: NDArray[np.generic]) -> People:
        """Some of the rows."""
        return People(
            {n: v[index] for n, v in self.columns.items()},
            None if self.time is None else self.time[index],
            None if self.event is None else self.event[index],
        )

    @staticmethod
    def stack(parts: Sequence[People]) -> People:
        """Rows of several sites under one another; columns that all of them have."""
        names = [n for n in parts[0].columns if all(n in p.columns for p in parts)]
        timed = all(p.time is not None for p in parts)
        return People(
            {n: np.concatenate([p.columns[n] for p in parts]) for n in names},
            np.concatenate([p.time for p in parts if p.time is not None]) if timed else None,
            np.concatenate([p.event for p in parts if p.event is not None]) if timed else None,
        )


def _column(values: ArrayLike) -> NDArray[np.generic]:
    """Numbers as float64 with NaN, anything else as text with ''."""
    array = np.asarray(values)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    present = [v for v in array.tolist() if v is not None and v == v]
    if present and all(isinstance(v, int | float) for v in present):
        return np.array([np.nan if v is None else float(v) for v in array.tolist()])
    return np.array(["" if v is None or v != v else str(v) for v in array.tolist()], dtype=np.str_)
