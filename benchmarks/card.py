"""One card: MTTKRP, alternating least squares and DPEM's E-step at the sizes of docs/benchmarks/performance.md.

``python benchmarks/card.py [--small]`` prints a table; times are means over repeated runs on the card, layout and upload apart.
"""

from __future__ import annotations

import argparse
import time

import cupy
import numpy as np

from polyclinic.tensors.als_sweep import sweep
from polyclinic.tensors.kernels import cuda
from polyclinic.tensors.kernels import cuda_layout as layout
from polyclinic.tensors.sparse import SparseTensor


def claims(patients: int, codes: tuple[int, int], nnz: int, seed: int) -> SparseTensor:
    """Codes by Zipf 1.05, records of lognormal length, no cell twice, counts 1 to 3; drawn on the card."""
    rng = cupy.random.default_rng(seed)
    weight = cupy.exp(rng.standard_normal(patients))
    ends = cupy.cumsum(weight / weight.sum())
    law = [cupy.cumsum((w := 1.0 / cupy.arange(1, d + 1) ** 1.05) / w.sum()) for d in codes]
    cells = cupy.zeros(0, cupy.int64)
    while len(cells) < nnz:
        more = int((nnz - len(cells)) * 1.15) + 1000
        for part in np.array_split(np.arange(more), max(1, more // 50_000_000)):
            u = [rng.random(len(part)) for _ in range(3)]
            i, j, k = (
                cupy.minimum(cupy.searchsorted(c, x), n - 1) for c, x, n in zip((ends, *law), u, (patients, *codes))
            )
            cells = cupy.concatenate([cells, (i * codes[0] + j) * codes[1] + k])
        cells = cupy.unique(cells)
    keep = cupy.sort(cupy.argsort(rng.random(len(cells)))[:nnz])
    cells = cells[keep]
    k, j, i = cells % codes[1], cells // codes[1] % codes[0], cells // (codes[0] * codes[1])
    rows, counts = cupy.unique(i, return_counts=True)
    return SparseTensor.from_layout(
        rows.get(),
        np.concatenate([[0], np.cumsum(counts.get())]),
        [j.get().astype(np.uint16), k.get().astype(np.uint16)],
        rng.integers(1, 4, nnz).astype(cupy.float64).get(),
        (patients, *codes),
    )


def timed(work, times: int = 10) -> float:
    """Milliseconds a call, by events on the card."""
    work()
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(times):
        work()
    stop.record()
    stop.synchronize()
    return cupy.cuda.get_elapsed_time(start, stop) / times


def least_squares(name: str, tensor: SparseTensor, ranks: tuple[int, ...], precisions: tuple[str, ...]) -> None:
    there = cuda.DeviceTensor(tensor)
    start = time.perf_counter()
    for mode in range(3):
        there.copy(mode)
    cupy.cuda.Device().synchronize()
    print(f"{name}: {tensor.nnz:,} nonzeros, upload and copies {time.perf_counter() - start:.2f} s, "
          f"{there.nbytes / tensor.nnz:.1f} bytes a nonzero", flush=True)  # fmt: skip
    norm = tensor.norm_squared()
    for rank in ranks:
        for precision in precisions:
            fit(there, norm, rank, precision)


def fit(there: cuda.DeviceTensor, norm: float, rank: int, precision: str) -> None:
    work = cuda.GraphicsCard(there, rank, precision)
    rng = np.random.default_rng(0)
    begun = [np.zeros((there.shape[0], rank)), *(rng.random((d, rank)) for d in there.shape[1:])]

    def update(n, factor, g, m, scale):
        return work.hals(factor, g, m, scale, sweeps=3, ridge=1e-10 * float(np.trace(g)) / rank)

    trial = [work.put(f) for f in begun]
    trial[0] += 0.1
    each = [timed(lambda m=m: work.mttkrp(trial, m)) for m in range(3)]
    kept = []
    for _ in range(2):
        factors = [work.put(f) for f in begun]
        swept = sweep(work, factors, norm, update)
        cupy.cuda.Device().synchronize()
        clock = time.perf_counter()
        for _ in range(99):
            swept = sweep(work, factors, norm, update, before=swept)
        cupy.cuda.Device().synchronize()
        kept.append((time.perf_counter() - clock, swept.sse, factors))
    same = all(bool((a == b).all()) for a, b in zip(kept[0][2], kept[1][2])) and kept[0][1] == kept[1][1]
    print(f"  {precision} R {rank}: MTTKRP {sum(each):.2f} ms ({' '.join(f'{x:.2f}' for x in each)}), 100 sweeps "
          f"{kept[1][0] / 99 * 100:.3f} s, fit {1 - (kept[1][1] / norm) ** 0.5:.5f}, same bits twice: {same}", flush=True)  # fmt: skip


def e_step(patients: int, nnz: int, rank: int = 20) -> None:
    tensor = claims(patients, (1_200, 400), nnz, 3)
    rng = np.random.default_rng(1)
    w = np.concatenate([rng.dirichlet(np.full(d, 0.1), rank).T for d in tensor.shape[1:]])
    prior = rng.dirichlet(np.ones(rank))
    there = cuda.DeviceTensor(tensor)
    start = time.perf_counter()
    there.em()
    cupy.cuda.Device().synchronize()
    print(
        f"DPEM: {patients:,} patients, {nnz:,} entries, R {rank}; upload and tables {time.perf_counter() - start:.2f} s"
    )
    sums = cuda.unit_statistics(there, w, prior)[0]
    spent = timed(lambda: cuda._estep(there, w, prior, 8, True), 5)
    same = all(np.array_equal(sums, cuda.unit_statistics(there, w, prior)[0]) for _ in range(2))
    print(f"  E-step with unit statistics {spent:.1f} ms, same bits: {same}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true", help="a twentieth of the sizes")
    part = 20 if parser.parse_args().small else 1
    properties = cupy.cuda.runtime.getDeviceProperties(0)
    print(f"{properties['name'].decode()}, driver {cupy.cuda.runtime.driverGetVersion()}, CuPy {cupy.__version__}; "
          f"chunks of {layout.CHUNK}, {layout.FAN} partial rows, slabs of {layout.SLAB}")  # fmt: skip
    least_squares("W2L", claims(38_035, (3_229, 304), 50_000_000 // part, 1), (10, 50), ("float32", "float64"))
    e_step(3_000_000 // part, 50_000_000 // part)
    if part == 1:
        least_squares("claims", claims(3_000_000, (10_000, 5_000), 200_000_000, 2), (10, 50), ("float32",))


if __name__ == "__main__":
    main()
