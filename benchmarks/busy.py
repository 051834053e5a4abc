"""Run a command next to busy processes, as on a machine that others use: ``python benchmarks/busy.py 8 make unit``.

The busy processes end with the command, with this program, and in any case after two hours.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

LIMIT = 2 * 3600.0  # seconds
WORK = "import os, sys, time\nend = time.monotonic() + float(sys.argv[1])\n"
WORK += "while time.monotonic() < end and os.getppid() == int(sys.argv[2]):\n    sum(i * i for i in range(100_000))"


def main(count: int, command: list[str]) -> int:
    """Return the command's exit code."""
    argv = [sys.executable, "-c", WORK, str(LIMIT), str(os.getpid())]
    busy = [subprocess.Popen(argv) for _ in range(count)]
    begin = time.monotonic()
    try:
        code = subprocess.run(command, check=False).returncode
    finally:
        for process in busy:
            process.kill()
        for process in busy:
            process.wait()
    used = os.times()
    seconds = time.monotonic() - begin
    print(
        f"{count} busy processes, {seconds:.0f} s, {used.children_user + used.children_system:.0f} s of processor in all"
    )
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
