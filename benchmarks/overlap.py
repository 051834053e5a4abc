"""Processor time of counting patients at several hospitals by the ring: ``python benchmarks/overlap.py [SITES] [IDENTIFIERS]``."""

from __future__ import annotations

import sys
import time
from collections import Counter

import numpy as np

from polyclinic.alignment.overlap import overlap_by_ring


def main() -> None:
    """Print the counts, whether they are right, and the processor time a site. The coordinator's part is included."""
    sites, number = (int(x) for x in [*sys.argv[1:], "3", "50000"][:2])
    rng = np.random.default_rng(0)
    people = [f"person {k}" for k in range(sites * number)]
    lists = {f"h{s}": [people[k] for k in rng.permutation(len(people))[:number]] for s in range(sites)}
    began = time.process_time()
    found = overlap_by_ring(lists, b"secret of the hospitals")
    seconds = (time.process_time() - began) / sites
    direct = Counter(Counter(p for x in lists.values() for p in x).values())
    print(
        f"{sites} sites x {number:,}: {dict(found.counts)}, right {dict(found.counts) == direct}, {seconds:.1f} s a site"
    )


if __name__ == "__main__":
    main()
