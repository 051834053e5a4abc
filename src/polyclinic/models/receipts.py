"""Receipts of a model: the signed ends of the books of the sites that it was learned at, when it had been learned.

A receipt shows that the site's book had at least so many lines, and which was the last. It does not say that the model was
made from them: only the owner, who has the book, can look (``polyclinic model verify FILE --node node.toml``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from polyclinic.models.base import Value
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.ledger.signed_head import SignedHead


@dataclass(frozen=True)
class Receipt:
    """What a model file says about one site's book, and what a look at it found.

    ``state``: ``"signed"`` by the key that it names; ``"unsigned"``, a book in memory; ``"false"``: changed, or of another
    site; ``"missing"``: the site took part and none is there.
    """

    site: str
    head: SignedHead | None
    state: Literal["signed", "unsigned", "false", "missing"]

    @classmethod
    def of(cls, site: str, told: object) -> Receipt:
        """Read and check one receipt."""
        try:
            head = SignedHead.from_json(told)  # type: ignore[arg-type]  # whatever stands there
        except (KeyError, TypeError, ValueError, AttributeError):
            return cls(site, None, "false")
        if not head.signature and not head.key:
            return cls(site, head, "unsigned")
        return cls(site, head, "signed" if head.valid and head.site == site else "false")

    def faults(self, book: Ledger | None = None) -> list[str]:
        """What is wrong with it, by itself and, where the owner gives the book, against that."""
        if self.state in ("false", "missing"):
            reason = "is not there" if self.head is None and self.state == "missing" else "lacks its site's signature"
            return [f"{self.site}: the receipt {reason}"]
        if book is None or self.head is None:
            return []
        if not self.head.count:  # every book agrees with a head of nothing
            return [f"{self.site}: the receipt names no line of the book"]
        return [f"{self.site}: {f}" for f in book.verify(anchor=self.head)]

    def __str__(self) -> str:
        if self.head is None or self.state in ("false", "missing"):
            return f"{self.site}: {self.state}"
        key = f", key {self.head.key[:16]}" if self.head.key else ""
        return f"{self.site}: {self.state}, {self.head.count} lines, last {self.head.hash[:16]}{key}"


def receipts(model: Value, sites: Sequence[str] = ()) -> tuple[Receipt, ...]:
    """The receipts of a model, in the order of their sites.

    Parameters
    ----------
    model
        As loaded.
    sites
        Those that took part, where the run folder says so: one without a receipt is ``"missing"``.
    """
    stored = model.origin.receipts
    receipts_found = [Receipt.of(n, v) for n, v in stored.items()]
    return tuple(
        sorted(
            [*receipts_found, *(Receipt(s, None, "missing") for s in sites if s not in stored)], key=lambda r: r.site
        )
    )
