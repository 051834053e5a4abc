"""What the monitor answers, made when the node is looked at and not when somebody asks."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Page:
    """One look.

    Attributes
    ----------
    code, health
        Of ``/health``.
    metrics
        The text of ``/metrics``; none where the look failed.
    at
        When, in seconds since 1970.

    >>> Page.decode(Page(200, {"status": "ok"}, "# EOF", 5.0).encode()).health
    {'status': 'ok'}
    """

    code: int
    health: dict[str, Any]
    metrics: str | None
    at: float

    @classmethod
    def trouble(cls, what: str) -> Page:
        """The node could not be looked at."""
        return cls(503, {"status": "fault", "faults": [what]}, None, time.time())

    def encode(self) -> bytes:
        """One line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Page:
        """Inverse of :meth:`encode`."""
        return cls(**json.loads(line))
