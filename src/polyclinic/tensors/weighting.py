"""How much one patient may weigh in a least-squares fit: it grows with the record, and saturates.

Least squares counts a patient by the SQUARE of the record. In real records a handful of patients then hold most of the
data, and the phenotypes are theirs. For patient i with cells v and s_i = sum of v^2::

    n0 = exp( sum_i log s_i / N )                 over patients with cells: the geometric mean, from two sums
    x  = v * sqrt(1 + n0) / sqrt(s_i + n0)

so a patient's squared length s (1 + n0) / (s + n0) stays below 1 + n0, and a typical patient has half of that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from polyclinic.tensors.sparse import SparseTensor

Array = NDArray[np.float64]


def sizes(tensor: SparseTensor) -> Array:
    """(patients with cells,) s_i: the sum of a patient's squared cells, in the order of ``tensor.rows``.

    >>> sizes(SparseTensor([[0, 0], [0, 1], [2, 1]], [3.0, 4.0, 2.0], (3, 2))).tolist()
    [25.0, 4.0]
    """
    if not tensor.nnz:
        return np.zeros(0)
    return np.asarray(np.add.reduceat(np.square(tensor.values), tensor.indptr[:-1]), np.float64)


def log_sizes(tensor: SparseTensor) -> Array:
    """(2,) what n0 needs of a site: sum of log s_i, and number of patients with cells.

    >>> log_sizes(SparseTensor([[0, 0], [1, 1]], [1.0, 10.0], (3, 2))).round(2).tolist()
    [4.61, 2.0]
    """
    s = sizes(tensor)
    s = s[s > 0]
    return np.array([np.log(s).sum(), float(len(s))])


def saturation_of(total: Array) -> float:
    """n0 from the total of :func:`log_sizes` over all sites, rounded to two digits: no site's part is read off it.

    >>> saturation_of(np.array([4.605170185988092, 2.0]))
    10.0
    """
    logs, patients = (float(x) for x in total)
    return float(f"{np.exp(logs / patients):.2g}") if patients >= 0.5 else 1.0


def weighted(tensor: SparseTensor, n0: float | None) -> SparseTensor:
    """The tensor with saturating weights, sharing all coordinates; the tensor itself where ``n0`` is None.

    It is kept beside the tensor (a fit asks for it in every round), so it is made once.

    >>> t = SparseTensor([[0, 0], [1, 0]], [1.0, 100.0], (2, 1))
    >>> weighted(t, 10.0).values.round(2).tolist()
    [1.0, 3.31]
    """
    if n0 is None:
        return tensor
    twin_before = tensor._twin
    if twin_before is not None and twin_before[0] == n0:
        return twin_before[1]
    s = sizes(tensor)
    scale = np.sqrt(1.0 + n0) / np.sqrt(s + n0) if n0 > 0 else 1.0 / np.sqrt(np.where(s > 0, s, 1.0))
    values = tensor.values * np.repeat(scale, np.diff(tensor.indptr))
    twin = SparseTensor.from_layout(tensor.rows, tensor.indptr, tensor.codes, values, tensor.shape, tensor.axes)
    object.__setattr__(tensor, "_twin", (n0, twin))
    return twin


def heaviest_share(*tensors: SparseTensor, share: float = 0.01) -> float:
    """Part of the squared cells held by the heaviest ``share`` of the patients with cells, at least one of them.

    >>> t = SparseTensor([[k, 0] for k in range(100)], [10.0] + [1.0] * 99, (100, 1))
    >>> round(heaviest_share(t), 3)
    0.503
    """
    s = np.sort(np.concatenate([sizes(t) for t in tensors]))[::-1]
    return float(s[: max(1, round(share * len(s)))].sum() / s.sum()) if s.sum() > 0 else 0.0
