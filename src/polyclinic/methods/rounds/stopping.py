"""When a fit has arrived."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Plateau:
    """Rounds in a row that gain next to nothing.

    Parameters
    ----------
    tol
        Share of the explained energy ||O||^2 - ||O - X||^2 below which a round gains next to nothing; 0: never arrives.
    rest
        So many such rounds in a row are an arrival.
    """

    tol: float
    rest: int

    def judged(self, public: Any, sse: float, everything: float, *, settled: bool = True) -> Any:
        """The state with this round's ``objective``, ``gain`` and ``still``; ``settled``: its gain counts (no warm-up)."""
        round_gain = None
        if public.objective is not None and settled:
            round_gain = (2 * public.objective - sse) / max(everything - sse, 1e-300)
        quiet = round_gain is not None and abs(round_gain) <= self.tol
        gain = round_gain if public.gain is None else public.gain
        return replace(public, objective=sse / 2, gain=gain, still=public.still + 1 if quiet else 0)

    def arrived(self, public: Any) -> bool:
        return self.tol > 0 and bool(public.still >= self.rest)
