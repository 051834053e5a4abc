"""The inner loops on one NVIDIA card: the same verbs as :mod:`.kernels.mttkrp`, :mod:`.kernels.hals` and :mod:`.kernels.em`.

A :class:`DeviceTensor` keeps the sorted copies of :mod:`.kernels.cuda_layout` on the card; the kernels are in ``kernels.cu``. All sums
have one order, so the same data give the same bits every time; DPEM's whole numbers are those of the processor.
CuPy is imported by the first use, never by the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from polyclinic.tensors.kernels import cuda_layout as layout
from polyclinic.tensors.kernels.em import LANES, padded, stacked_rows
from polyclinic.tensors.kernels.hals import ridged

if TYPE_CHECKING:
    from cupy import RawKernel, RawModule
    from cupy import ndarray as Card  # an array on the card

    from polyclinic.tensors.sparse import SparseTensor

Matrix = NDArray[np.float64]
Precision = Literal["float64", "float32"]
THREADS: Final = 256
GROUPS: Final = 132 * 64  # patients in work at once: their scratch should fit the caches
SHARED: Final = 220_000  # bytes of shared memory that a block may ask for (compute capability 8.0 has 163 kB)


def source() -> str:
    """The text of ``kernels.cu``."""
    return (Path(__file__).parent / "kernels.cu").read_text()


def _piece(precision: Precision) -> tuple[str, str, int]:
    """Type of a number, of sixteen bytes of them, and how many those are."""
    return ("float", "float4", 4) if precision == "float32" else ("double", "double2", 2)


def _lanes(rank: int, each: int) -> int:
    """Lanes that own a row: the smallest power of two (4 to 32) whose pieces hold it, 32 if none does."""
    return next((g for g in (4, 8, 16, 32) if g * each >= rank), 32)


def instances(rank: int, precision: Precision) -> dict[str, str]:
    """Names of the kernels that a rank and precision need, by what they do."""
    number, piece, width = _piece(precision)
    g = _lanes(rank, width)
    return {
        "mttkrp3": f"mttkrp3<{number}, {piece}, {g}>",
        "mttkrpn": f"mttkrpn<{number}, {piece}, {g}>",
        "addrows": f"addrows<{number}, {number}>",
        "addmore": f"addrows<double, {number}>",
        "addgram": "addrows<double, double>",
        "hals": f"hals<{number}, {piece}>",
        "gram": f"gram<{number}>",
        "unit": f"unit<{number}>",
        "estep": f"estep<{-(-rank // LANES)}>",
    }


@cache
def _module(names: tuple[str, ...]) -> RawModule:
    import cupy

    module = cupy.RawModule(code=source(), options=("-std=c++17",), name_expressions=names)
    module.compile()
    return module


@cache
def _kernel(name: str) -> RawKernel:
    return _module((name,)).get_function(name)


class DeviceTensor:
    """A tensor's sorted copies on the card, each made at its first use; freed with the object."""

    def __init__(self, tensor: SparseTensor) -> None:
        self.tensor = tensor
        self.shape, self.ndim = tensor.shape, tensor.ndim
        self._copies: dict[int, layout.Copy] = {}
        self._em: tuple[Card, Card, Card, layout.Turns] | None = None

    def copy(self, mode: int) -> layout.Copy:
        """Entries sorted for one mode."""
        import cupy

        if mode not in self._copies:
            self._copies[mode] = layout.arrange(self.tensor, mode, cupy)
        return self._copies[mode]

    def em(self) -> tuple[Card, Card, Card, layout.Turns]:
        """Row pointers, stacked rows, counts and turns for the E-step."""
        import cupy

        if self._em is None:
            rows = cupy.asarray(stacked_rows(self.tensor))
            tables = layout.turns(self.tensor, rows, cupy)
            self._em = cupy.asarray(self.tensor.indptr, np.int64), rows, cupy.asarray(self.tensor.values), tables
        return self._em

    @property
    def nbytes(self) -> int:
        """Bytes of the copies made so far."""
        total = 0
        for c in self._copies.values():
            total += sum(a.nbytes for a in (c.entries, c.codes, c.values, c.chunks, c.sums.spans) if a is not None)
        return total


class GraphicsCard:
    """Least squares on the card: factors are padded arrays there, R x R matrices and vectors are numpy's.

    Parameters
    ----------
    tensor
        The data.
    rank
        Columns of every factor.
    precision
        Of factors and products; Grams and long sums are float64 always.
    """

    ahead = True

    def __init__(self, tensor: DeviceTensor, rank: int, precision: Precision = "float64") -> None:
        import cupy

        self.tensor, self.rank, self.precision = tensor, rank, precision
        self._number, self._piece, self._each = _piece(precision)
        self._g = _lanes(rank, self._each)
        slab = self._g * self._each
        self.width = -(-rank // slab) * slab
        self._slabs = self.width // slab
        self._names = instances(rank, precision)
        self._out: dict[int, Card] = {}
        self._room: dict[int, tuple[Card, Card]] = {}
        self._aside, self._ready = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event(disable_timing=True)

    def put(self, factor: Matrix) -> Card:
        """A factor on the card, padded with zero columns."""
        import cupy

        out = cupy.zeros((len(factor), self.width), self.precision)
        out[:, : self.rank] = cupy.asarray(np.ascontiguousarray(factor, self.precision))
        return out

    def get(self, factor: Card) -> Matrix:
        """A factor back in the processor's memory, float64."""
        host: Matrix = factor[:, : self.rank].astype("float64").get()
        return host

    def mttkrp(self, factors: Sequence[Card], mode: int) -> Card:
        """As :func:`.kernels.mttkrp.mttkrp`; the result is overwritten by the next call for the same mode."""
        import cupy

        copy = self.tensor.copy(mode)
        if mode not in self._out:  # rows without entries are zero for ever
            self._out[mode] = cupy.zeros((self.tensor.shape[mode], self.width), self.precision)
            self._room[mode] = (
                cupy.empty((max(copy.sums.partials, 1), self.width), self.precision),
                cupy.empty((max(copy.sums.more, 1), self.width)),
            )
        out, (partial, partial_rows) = self._out[mode], self._room[mode]
        number = len(copy.chunks)
        if not number:
            return out
        grid = (-(-number * self._g // THREADS),)
        stride = np.uint32(self.width // self._each)
        for s in range(self._slabs):
            address = s * self._g * self._each

            def there(a: Card, at: int = address) -> Card:
                return a.reshape(-1)[at:]

            if copy.entries is not None:
                first, second = (there(factors[n]) for n in copy.others)
                _kernel(self._names["mttkrp3"])(
                    grid,
                    (THREADS,),
                    (copy.entries, copy.chunks, np.int32(number), first, second, stride, there(out), there(partial)),
                )
            else:
                assert copy.codes is not None
                addresses = cupy.asarray([there(factors[n]).data.ptr for n in copy.others], "uint64")
                _kernel(self._names["mttkrpn"])(
                    grid,
                    (THREADS,),
                    (
                        copy.codes,
                        copy.values,
                        np.uint64(self.tensor.tensor.nnz),
                        np.int32(len(copy.others)),
                        copy.chunks,
                        np.int32(number),
                        addresses,
                        stride,
                        there(out),
                        there(partial),
                    ),
                )
        _add(self._names, copy.sums, partial, out, partial_rows, self.width)
        return out

    def gram(self, a: Card) -> Matrix:
        """A'A, in slabs of 1,024 rows."""
        products: Matrix = self._products(a, a).get().reshape(self.rank, self.rank)
        return products

    def _products(self, a: Card, b: Card) -> Card:
        """A'B, (1, R x R), on the card."""
        return products(a, b, self.rank)

    def close(self, factors: list[Card], n: int, new: Card, m: Card, scale: Matrix) -> tuple[Matrix, float, Card]:
        """As :class:`.tensors.als_sweep.Workplace` says; nothing waits for the processor before the next MTTKRP is on its way."""
        r, last = self.rank, n == len(factors) - 1
        gram, cross = self._products(new, new), self._products(new, m) if last else None
        self._ready.record()
        if n:
            numbers = new.size
            _kernel(self._names["unit"])(
                (-(-numbers // THREADS),),
                (THREADS,),
                (new, gram, np.uint64(numbers), np.int32(r), np.int32(self.width)),
            )
        factors[n] = new
        following = self.mttkrp(factors, 0 if last else n + 1)
        inner = 0.0 if cross is None else float((np.diagonal(self._home(cross)) * scale).sum())
        return self._home(gram), inner, following

    def _home(self, products: Card) -> Matrix:
        """R x R from the card, on a stream of its own: it must not wait for the MTTKRP behind it."""
        self._aside.wait_event(self._ready)
        host: Matrix = products.get(stream=self._aside).reshape(self.rank, self.rank)
        return host

    def hals(self, factor: Card, gram: Matrix, m: Card, scale: Matrix, *, sweeps: int, ridge: float) -> Card:
        """As :func:`.kernels.hals.hals`, non-negative, with ``m * scale`` for M; changes ``factor`` and returns it."""
        g, inverse = ridged(gram, ridge)
        return self._rows(factor, g, inverse, m, scale, sweeps, 0.0)

    def descend(self, factor: Card, gram: Matrix, m: Card, scale: Matrix, steepest: float) -> Card:
        """One projected gradient step, max(0, A - (A G - M) / steepest); changes ``factor`` and returns it."""
        return self._rows(factor, gram, np.ones(self.rank), m, scale, 0, 1.0 / steepest)

    def _rows(self, factor: Card, g: Matrix, inverse: Matrix, m: Card, scale: Matrix, sweeps: int, step: float) -> Card:
        import cupy

        four, size = -(-self.rank // 4) * 4, np.dtype(self.precision).itemsize

        def room(threads: int) -> int:
            return ((self.rank + 1) * four + 2 * four * (threads + 1)) * size

        threads = next(t for t in (64, 32, 16) if room(t) <= SHARED or t == 16)
        kernel = _kernel(self._names["hals"])
        if room(threads) > 48_000:
            kernel.max_dynamic_shared_size_bytes = room(threads)
        small = cupy.asarray(np.concatenate([g.ravel(), inverse, scale]))
        kernel(
            (-(-len(factor) // threads),),
            (threads,),
            (
                factor,
                m,
                small,
                np.int32(len(factor)),
                np.int32(self.rank),
                np.int32(self.width),
                np.int32(sweeps),
                np.float64(step),
            ),
            shared_mem=room(threads),
        )
        return factor

    def scaled(self, factor: Card, by: Matrix) -> Card:
        """Columns times ``by``, in place."""
        import cupy

        scales = np.ones(self.width)
        scales[: self.rank] = by
        factor *= cupy.asarray(scales.astype(self.precision))
        return factor


def products(a: Card, b: Card, rank: int) -> Card:
    """A'B of the first ``rank`` columns, (1, rank x rank), on the card: slabs of 1,024 rows, added in order."""
    import cupy

    slabs = -(-len(a) // layout.SLAB)
    out = cupy.zeros((1, rank * rank))
    if not slabs:
        return out
    partial = cupy.empty((slabs, rank * rank))
    blocks = -(-rank // 64)
    _kernel("gram<float>" if a.dtype == "float32" else "gram<double>")(
        (slabs, blocks, blocks),
        (THREADS,),
        (a, b, np.int32(len(a)), np.int32(a.shape[1]), np.int32(rank), partial),
    )
    sums = _one_sum(slabs)
    partial_rows = cupy.empty((max(sums.more, 1), rank * rank))
    add = dict.fromkeys(("addrows", "addmore"), "addrows<double, double>")
    _add(add, sums, partial, out, partial_rows, rank * rank)
    return out


@cache
def _one_sum(rows: int) -> layout.Sums:
    import cupy

    return layout.in_blocks(cupy.asarray([rows]), cupy.asarray([0]), cupy)


def _add(names: dict[str, str], sums: layout.Sums, partial: Card, out: Card, more: Card, width: int) -> None:
    """Partial rows to rows, at most two goes."""
    for name, spans, rows in (("addrows", sums.spans, partial), ("addmore", sums.then, more)):
        if spans is not None and len(spans):
            grid = (-(-len(spans) * width // THREADS),)
            _kernel(names[name])(grid, (THREADS,), (rows, spans, np.int32(len(spans)), np.int32(width), out, more))


def _estep(tensor: DeviceTensor, w: Matrix, prior: Matrix, steps: int, sums: bool) -> tuple[Card, Card, Card]:
    import cupy

    rank, modes = w.shape[1], tensor.ndim - 1
    indptr, rows, values, tables = tensor.em()
    weights, base = cupy.asarray(padded(w)), cupy.asarray(padded(prior))
    patients = len(tensor.tensor.rows)
    out = cupy.zeros(w.shape, "uint64") if sums else cupy.zeros(0, "uint64")
    likelihood = cupy.zeros(patients)
    loadings = cupy.zeros((0 if sums else patients, rank))
    kernel = _kernel(instances(rank, "float64")["estep"])
    for longest, who in tables.bins:
        row_bytes = longest * (weights.shape[1] * (2 + modes if sums else 2) // 2 + 2 + modes)
        groups = max(THREADS // 8, min(GROUPS, int(4e9) // (8 * row_bytes), -(-len(who) // 32) * 32) // 32 * 32)
        scratch = cupy.empty(groups * row_bytes)
        kernel(
            (groups * 8 // THREADS,),
            (THREADS,),
            (
                who,
                np.int32(len(who)),
                indptr,
                rows,
                values,
                tables.turns,
                np.uint64(tensor.tensor.nnz),
                np.int32(modes),
                weights,
                base,
                np.int32(rank),
                np.int32(steps),
                np.int32(longest),
                scratch,
                out if sums else np.uint64(0),
                likelihood,
                loadings if not sums else np.uint64(0),
            ),
        )
    return out, likelihood, loadings


def unit_statistics(
    tensor: DeviceTensor, w: Matrix, prior: Matrix, *, steps: int = 8
) -> tuple[NDArray[np.int64], float]:
    """As :func:`.kernels.em.unit_statistics`, the same whole numbers."""
    out, likelihood, _ = _estep(tensor, w, prior, steps, True)
    return out.get().view(np.int64), float(likelihood.get().sum())


def memberships(tensor: DeviceTensor, w: Matrix, prior: Matrix, *, steps: int = 10) -> Matrix:
    """As :func:`.kernels.em.memberships`, the same bits."""
    _, _, loadings = _estep(tensor, w, prior, steps, False)
    out = np.zeros((tensor.shape[0], w.shape[1]))
    out[tensor.tensor.rows] = loadings.get()
    return out
