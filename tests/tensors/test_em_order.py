"""The E-step's arithmetic is written down: an oracle in plain Python follows the words, bit for bit."""

import hashlib

import numpy as np
import pytest

from polyclinic.tensors import em_kernels
from polyclinic.tensors.sparse import SparseTensor


def _lanes(values):
    """Eight lanes, each in order; then lanes 4, 2 and 1 apart."""
    lane = [0.0] * 8
    for r, v in enumerate(values):
        lane[r % 8] += v
    four = [lane[i] + lane[i + 4] for i in range(4)]
    two = [four[i] + four[i + 2] for i in range(2)]
    return two[0] + two[1]


def oracle(tensor, w, prior, steps):
    """One patient after another, one number after another (Python floats: each operation is rounded once)."""
    rank, rows = w.shape[1], em_kernels.stacked_rows(tensor).tolist()
    w, prior = w.tolist(), prior.tolist()
    out = np.zeros((len(w), rank), np.int64)
    placed = np.zeros((tensor.patients, rank))
    for i, (lo, hi) in enumerate(zip(tensor.indptr, tensor.indptr[1:])):
        counts = tensor.values[lo:hi].tolist()
        phi = []
        for entry in rows[lo:hi]:
            product = list(w[entry[0]])
            for row in entry[1:]:
                product = [x * y for x, y in zip(product, w[row])]
            phi.append(product)
        share = 1.0 / _lanes(prior)
        a = [x * share for x in prior]
        for _ in range(steps):
            following = [0.0] * rank
            for c, f in zip(counts, phi):
                mix = _lanes([x * y for x, y in zip(a, f)])
                if mix > 0:
                    scale = c / mix
                    following = [x + scale * y for x, y in zip(following, f)]
            following = [x * y + z for x, y, z in zip(following, a, prior)]
            share = 1.0 / _lanes(following)
            a = [x * share for x in following]
        placed[tensor.rows[i]] = a
        sums: dict[int, list[float]] = {}
        events = 0.0
        for c, f, entry in zip(counts, phi, rows[lo:hi]):
            mix = _lanes([x * y for x, y in zip(a, f)])
            p, mix = ([x * y for x, y in zip(a, f)], mix) if mix > 0 else (a, 1.0)
            events += c
            scale = c / mix
            for row in entry:
                sums[row] = [x + scale * y for x, y in zip(sums.get(row, [0.0] * rank), p)]
        share = 1.0 / events
        shares = {row: [x * share for x in s] for row, s in sums.items()}
        square = sum((int(x * 2.0**30) + 1) ** 2 for s in shares.values() for x in s)
        unit = 65536.0 * 2.0**30 / float(np.sqrt(np.float64(square)))
        whole = {row: [int(x * unit) for x in s] for row, s in shares.items()}
        if sum(k * k for s in whole.values() for k in s) > 2**32:
            whole = {row: [max(k - 1, 0) for k in s] for row, s in whole.items()}
        for row, s in whole.items():
            out[row] += s
    return out, placed


def drawn(seed, rank, modes):
    """Patients with repeated codes, a code that no phenotype knows, a patient without events."""
    rng = np.random.default_rng(seed)
    sizes = [23, 17, 9][:modes]
    lengths = np.minimum(rng.geometric(0.1, 60), 40)
    lengths[7] = 0
    coords = np.stack([np.repeat(np.arange(60), lengths), *(rng.zipf(1.4, lengths.sum()) % d for d in sizes)], 1)
    tensor = SparseTensor(coords, rng.integers(1, 9, len(coords)).astype(float), (60, *sizes))
    w = np.concatenate([rng.dirichlet(np.full(d, 0.3), rank).T for d in sizes])
    w[2] = 0.0
    return tensor, w, rng.dirichlet(np.ones(rank)) * 2.0


@pytest.mark.parametrize(("rank", "modes"), [(1, 2), (5, 2), (8, 1), (13, 3), (20, 2)])
def test_the_e_step_follows_its_specification_to_the_bit(rank, modes):
    tensor, w, prior = drawn(rank, rank, modes)
    sums, _ = em_kernels.unit_statistics(tensor, w, prior, steps=8)
    expected, placed = oracle(tensor, w, prior, 8)
    assert np.array_equal(sums, expected)
    assert np.array_equal(em_kernels.memberships(tensor, w, prior, steps=8), placed)


@pytest.mark.parametrize(("seed", "digest"), [(101, "1b5c148b65e903c4"), (102, "3ccf666cc297d273"), (103, "8d22e39f92e7f4ac")])
def test_the_sums_of_three_generated_sets_are_known(seed, digest):
    """The same digests on every processor; tests/cuda asks the graphics card for them, too."""
    tensor, w, prior = drawn(seed, seed - 90, 2)
    sums, _ = em_kernels.unit_statistics(tensor, w, prior, steps=8)
    assert hashlib.sha256(sums.astype("<i8").tobytes()).hexdigest()[:16] == digest
