"""Ours beside pyttb, GenTen and scipy: one process, interleaved, minima of several runs, ratios (never asserted).

    python benchmarks/run.py                 W1 and W3, ranks 10 and 50, growth with nonzeros, memory at 50 million
    python benchmarks/run.py --quick         W1 and W3 at rank 10 only, no growth, no memory
    python benchmarks/run.py --cpu           processor time instead of wall time, for a busy machine

Absolute times on a shared machine are noise; ratios of runs taken in turn are what to read. One thread everywhere
unless ``--threads`` says otherwise.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

THREADS = next((sys.argv[k + 1] for k, a in enumerate(sys.argv[:-1]) if a == "--threads"), "1")
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, THREADS)  # before numpy and the peers are imported
os.environ.setdefault("OMP_PROC_BIND", "false")

import numpy as np  # noqa: E402
from peers import Genten, Pyttb, Scipy, plain_sgd  # noqa: E402
from workloads import WORKLOADS, cached  # noqa: E402

import polyclinic as pc  # noqa: E402
from polyclinic.tensors.kernels import mttkrp as kernels  # noqa: E402
from polyclinic.tensors.kernels import sgd  # noqa: E402
from polyclinic.tensors.sparse import SparseTensor  # noqa: E402

Work = Callable[[], object]
CLOCK = time.process_time if "--cpu" in sys.argv else time.perf_counter


def interleaved(works: dict[str, Work], repeats: dict[str, int]) -> dict[str, float]:
    """Smallest time of each, taken in turn."""
    best = dict.fromkeys(works, float("inf"))
    for round_ in range(max(repeats.values())):
        for name, work in works.items():
            if round_ < repeats[name]:
                t = CLOCK()
                work()
                best[name] = min(best[name], CLOCK() - t)
    return best


def table(title: str, rows: Sequence[Sequence[object]]) -> None:
    """Print a plain table."""
    print(f"\n{title}")
    widths = [max(len(str(r[k])) for r in rows) for k in range(len(rows[0]))]
    for row in rows:
        print("  " + "  ".join(str(x).ljust(w) for x, w in zip(row, widths)).rstrip())


def mttkrp(name: str, tensor: SparseTensor, rank: int, threads: int) -> list[object]:
    """All modes, ours against scipy and (where it is bearable) pyttb."""
    rng = np.random.default_rng(0)
    factors = [rng.random((d, rank)) for d in tensor.shape]
    modes = range(tensor.ndim)
    theirs = Scipy(tensor)
    works: dict[str, Work] = {
        "ours": lambda: [kernels.mttkrp(tensor, factors, n, threads=threads) for n in modes],
        "scipy": lambda: [theirs.mttkrp(factors, n) for n in modes],
    }
    repeats = {"ours": 7, "scipy": 3 if rank < 20 else 1}
    if rank < 20:
        toolbox = Pyttb(tensor)
        works["pyttb"] = lambda: [toolbox.mttkrp(factors, n) for n in modes]
        repeats["pyttb"] = 1
    kernels.mttkrp(tensor, factors, 0), kernels.mttkrp(tensor, factors, 1)
    same = all(np.allclose(kernels.mttkrp(tensor, factors, n), theirs.mttkrp(factors, n)) for n in modes)
    best = interleaved(works, repeats)
    rate = 3 * tensor.nnz / best["ours"] / 1e6
    return [
        name, rank, f"{best['ours'] * 1e3:.1f} ms", f"{rate:.0f} M/s", _ratio(best, "scipy"), _ratio(best, "pyttb"), same
    ]  # fmt: skip


def _ratio(best: dict[str, float], peer: str) -> str:
    return f"{best[peer] / best['ours']:.1f}x" if peer in best else "-"


def als(name: str, tensor: SparseTensor, rank: int, threads: int, peers: Sequence[str]) -> list[object]:
    """One iteration of unconstrained CP-ALS: the difference of a long and a short run, so that set-up cancels."""
    rng = np.random.default_rng(0)
    factors = [rng.random((d, rank)) for d in tensor.shape]
    long, short = 6, 1

    def ours(rounds: int, nonnegative: bool = False) -> Work:
        m = pc.CPALS(rank=rank, nonnegative=nonnegative, rounds=rounds, tol=0, threads=threads)
        return lambda: m._run(tensor, 0, factors[1:], None)

    works = {"ours long": ours(long), "ours short": ours(short)}
    works |= {"hals long": ours(long, True), "hals short": ours(short, True)}
    repeats = dict.fromkeys(works, 12)
    for peer, make in (("genten", Genten), ("pyttb", Pyttb)):
        if peer in peers:
            side = make(tensor)
            works[f"{peer} long"] = lambda side=side: side.als(factors, long)  # type: ignore[misc]
            works[f"{peer} short"] = lambda side=side: side.als(factors, short)  # type: ignore[misc]
            repeats[f"{peer} long"] = repeats[f"{peer} short"] = 4 if peer == "genten" else 1
    ours(1)(), ours(1, True)()
    best = interleaved(works, repeats)
    one = {k: (best[f"{k} long"] - best[f"{k} short"]) / (long - short) for k in ("ours", "hals", *peers)}
    return [
        name, rank, f"{one['ours'] * 1e3:.1f} ms", f"{one['hals'] * 1e3:.1f} ms", _ratio(one, "genten"), _ratio(one, "pyttb")
    ]  # fmt: skip


def als_ratio(tensor: SparseTensor, rank: int) -> tuple[float, float]:
    """Seconds of processor of one unconstrained CP-ALS iteration, ours and GenTen's, taken in turn."""
    global CLOCK
    CLOCK = time.process_time
    rng = np.random.default_rng(0)
    factors = [rng.random((d, rank)) for d in tensor.shape]
    theirs = Genten(tensor)

    def ours(rounds: int) -> Work:
        m = pc.CPALS(rank=rank, nonnegative=False, rounds=rounds, tol=0)
        return lambda: m._run(tensor, 0, factors[1:], None)

    works: dict[str, Work] = {"ours long": ours(11), "ours short": ours(1)}
    works |= {"genten long": lambda: theirs.als(factors, 11), "genten short": lambda: theirs.als(factors, 1)}
    ours(1)()
    best = interleaved(works, dict.fromkeys(works, 5))
    return (best["ours long"] - best["ours short"]) / 10, (best["genten long"] - best["genten short"]) / 10


def descent(name: str, tensor: SparseTensor, rank: int) -> list[object]:
    """A pass of element-wise SGD, against a plain numba loop over a permutation."""
    rng = np.random.default_rng(0)
    factors = [rng.random((d, rank)) * 0.3 for d in tensor.shape]
    plain = plain_sgd(tensor, factors)
    entries, order = sgd.shuffle(tensor, rng), rng.permutation(tensor.nnz)
    works: dict[str, Work] = {
        "ours": lambda: sgd.epoch(entries, factors, learning_rate=1e-4),
        "plain": lambda: plain(order),
        "our shuffle": lambda: sgd.shuffle(tensor, rng),
        "permutation": lambda: rng.permutation(tensor.nnz),
    }
    works["ours"]()
    best = interleaved(works, dict.fromkeys(works, 5))
    whole = (best["plain"] + best["permutation"]) / (best["ours"] + best["our shuffle"])
    return [
        name,
        rank,
        f"{tensor.nnz / best['ours'] / 1e6:.1f} M/s",
        f"{best['plain'] / best['ours']:.1f}x",
        f"{whole:.1f}x",
    ]


LARGE = """
import sys, time
import polyclinic as pc
t0 = time.perf_counter(); tensor = pc.SparseTensor.load(sys.argv[1]); t1 = time.perf_counter()
m = pc.CPALS(rank=10, rounds=10, tol=0, nonnegative=False); m.fit(tensor)
hwm = next(x for x in open("/proc/self/status") if x.startswith("VmHWM"))  # ru_maxrss would count the parent's
peak = int(hwm.split()[1]) / 2**20
print(f"{tensor.nnz / 1e6:.0f} M|{t1 - t0:.1f} s|{time.perf_counter() - t1:.1f} s|{peak:.2f} GB|{tensor.nbytes / tensor.nnz:.2f}")
"""


def memory(name: str) -> list[object]:
    """Load from .npz and run ten ALS iterations at rank 10 in a process of its own; its peak resident memory (Linux)."""
    out = subprocess.run([sys.executable, "-c", LARGE, str(cached(name))], capture_output=True, text=True, check=True)
    return [name, *out.stdout.strip().split("|")]


def growth(rank: int, sizes: Sequence[int]) -> list[list[object]]:
    """Time of all MTTKRPs over nonzeros, same shape; the slope in log-log should be about 1."""
    rng = np.random.default_rng(0)
    factors = [rng.random((d, rank)) for d in WORKLOADS["W2"].shape]
    rows: list[list[object]] = [["nonzeros", "MTTKRP, all modes", "slope"]]
    last: tuple[int, float] | None = None
    for size in sizes:
        tensor = SparseTensor.load(cached("W2", size))
        work: Work = lambda tensor=tensor: [kernels.mttkrp(tensor, factors, n) for n in range(3)]  # type: ignore[misc]  # noqa: E731
        best = interleaved({"ours": work}, {"ours": 5})["ours"]
        slope = "" if last is None else f"{np.log(best / last[1]) / np.log(size / last[0]):.2f}"
        rows.append([f"{size / 1e6:.0f} M", f"{best * 1e3:.0f} ms", slope])
        last = size, best
    return rows


def main() -> None:
    """Run everything asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="processor time instead of wall time (a busy machine)")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # the peers' advice about copies
    ranks = (10,) if options.quick else (10, 50)
    tensors = {n: SparseTensor.load(cached(n)) for n in ("W1", "W3")}
    print("Workloads:", *(f"{n} {t!r}, {t.nbytes / t.nnz:.2f} bytes a nonzero" for n, t in tensors.items()), sep="\n  ")
    cells = [(n, t, r) for n, t in tensors.items() for r in ranks]
    table(
        "MTTKRP of all modes (times ours; ratios other / ours)",
        [["", "rank", "ours", "nonzeros", "scipy", "pyttb", "same result"]]
        + [mttkrp(n, t, r, options.threads) for n, t, r in cells],
    )
    table(
        "One CP-ALS iteration (other / ours, unconstrained; our non-negative iteration beside it)",
        [["", "rank", "ours", "ours, non-negative", "GenTen", "pyttb"]]
        + [
            als(n, t, r, options.threads, ("genten", "pyttb") if (n, r) == ("W3", 10) else ("genten",))
            for n, t, r in cells
        ],
    )
    table(
        "Element-wise SGD pass against a plain numba loop over a permutation",
        [["", "rank", "ours", "pass", "with the shuffle"]] + [descent(n, t, r) for n, t, r in cells],
    )
    if not options.quick:
        table("Growth with nonzeros (W2's shape, rank 10)", growth(10, (1_000_000, 4_000_000, 16_000_000)))
        table(
            "Memory: load and ten ALS iterations at rank 10",
            [["", "nonzeros", "load", "fit", "peak resident", "bytes a nonzero"], memory("W1"), memory("W2L")],
        )
    clock = "processor" if options.cpu else "wall"
    print(f"\n{clock} time, {options.threads} thread(s), smallest of runs taken in turn; read ratios, not times.")


if __name__ == "__main__":
    main()
