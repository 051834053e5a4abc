"""``python poll.py OUT STOP URL ...``: asks like a monitoring system, from a process of its own, and writes what came and when.

A client inside the test's own process would measure how long that process lets it wait.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit


def get(url: str) -> tuple[int, str, float]:
    """Code, text and seconds of one answer, connection included."""
    at = urlsplit(url)
    before = time.perf_counter()
    line = http.client.HTTPConnection(at.hostname or "", at.port, timeout=10)
    try:
        line.request("GET", at.path)
        answer = line.getresponse()
        text = answer.read().decode()
        return answer.status, text, time.perf_counter() - before
    except OSError:
        return 0, "", time.perf_counter() - before
    finally:
        line.close()


def main(out: Path, stop: Path, urls: list[str]) -> None:
    """Until told to stop."""
    found = []
    while not stop.exists():
        for url in urls:
            code, text, seconds = get(url)
            if code:
                found.append({"url": url, "code": code, "text": text, "seconds": seconds})
        time.sleep(0.1)
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
