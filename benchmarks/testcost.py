"""Processor seconds of every test, as a plugin of pytest: ``pytest -p testcost --cost FILE`` with this folder on the path.

``python benchmarks/testcost.py FILE`` prints the sums per file of tests and the dearest tests. A test's figure includes the
processes that it started and waited for, and the fixtures that it was the first to need.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest


def seconds() -> float:
    """Processor seconds of this process and of the processes that it waited for."""
    return sum(os.times()[:4])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cost", type=Path, required=True, metavar="FILE", help="where the processor seconds are written")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    start = seconds()
    result = yield
    with item.config.getoption("--cost").open("a", encoding="utf-8") as file:
        file.write(f"{seconds() - start:.3f}\t{item.nodeid}\n")
    return result


def main(path: Path, most: int = 60) -> None:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    files: Counter[str] = Counter()
    for cost, name in rows:
        files[name.partition("::")[0]] += float(cost)  # type: ignore[assignment]
    print(f"{sum(files.values()):8.1f} s in {len(rows)} tests of {len(files)} files")
    for name, cost in files.most_common(most):
        print(f"{cost:8.1f} {name}")
    for cost, name in sorted(rows, key=lambda row: -float(row[0]))[:most]:
        print(f"{float(cost):8.1f} {name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
