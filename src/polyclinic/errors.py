"""Name every error of Polyclinic, by cause.

An error says what went wrong, where, which value, and what to do. All faults of one check are collected and
raised together (``faults``). ``code`` is stable, so that scripts and support can rely on it; ``exit_code`` is what
the command line returns; ``shareable`` shows whether the text may leave the hospital (it never quotes a patient).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from polyclinic.safe_text import without_controls


class PolyclinicError(Exception):
    """Root of the tree.

    Parameters
    ----------
    what
        One sentence: what went wrong and where.
    faults
        Every single fault that was found, each with its place and value.
    hint
        What to do about it.

    Examples
    --------
    >>> print(DataError("tensor 'x' is not usable", faults=["row 3: value nan"], hint="drop the row"))
    [PC300] tensor 'x' is not usable
      - row 3: value nan
      what to do: drop the row
    """

    code: ClassVar[str] = "PC000"
    exit_code: ClassVar[int] = 1
    shareable: ClassVar[bool] = False

    def __init__(self, what: str, *, faults: Iterable[str] = (), hint: str = "") -> None:
        self.what = what
        self.faults = tuple(faults)
        self.hint = hint
        lines = [f"[{self.code}] {what}", *(f"  - {f}" for f in self.faults)]
        if hint:
            lines.append(f"  what to do: {hint}")
        super().__init__(without_controls("\n".join(lines)))  # a fault may quote what somebody else wrote


class ConfigError(PolyclinicError, ValueError):
    """A study, node file or parameter is wrong (exit code 2)."""

    code = "PC200"
    exit_code = 2
    shareable = True


class MissingExtra(ConfigError, ImportError):
    """An optional dependency is needed and not installed."""

    code = "PC210"

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package '{package}', which is not installed",
            hint=f"pip install 'polyclinic[{extra}]'",
        )


class Divergence(ConfigError, ArithmeticError):
    """A fit left the finite numbers; the step is too large."""

    code = "PC220"


class DataError(PolyclinicError, ValueError):
    """The data are not usable as given (exit code 3). May quote values: stays at the site."""

    code = "PC300"
    exit_code = 3


class PolicyRefusal(PolyclinicError):
    """The owner's policy or budget does not allow it (exit code 4); nothing was computed or sent."""

    code = "PC400"
    exit_code = 4
    shareable = True


class ListRefusal(PolicyRefusal):
    """With earlier exact sums, one over this list of sites would give away one site's part; records do not matter here."""

    code = "PC401"


class LedgerError(PolicyRefusal):
    """The ledger was edited, reordered or cut, or could not be written; no release may leave."""

    code = "PC410"


class PeerLost(PolyclinicError):
    """Too few sites answered in time (exit code 5); the run can be resumed."""

    code = "PC500"
    exit_code = 5
    shareable = True


class SumAborted(PeerLost):
    """A secure sum was aborted and nothing was revealed. Its keys are gone. A new attempt is charged again."""

    code = "PC510"


class ProtocolMismatch(PolyclinicError):
    """Two parties do not speak the same protocol, version, vocabulary or shape."""

    code = "PC600"
    exit_code = 2
    shareable = True


class MessageRefused(PolyclinicError):
    """A message was tampered with, truncated, replayed, too large or wrongly signed."""

    code = "PC610"
    exit_code = 5
    shareable = True
