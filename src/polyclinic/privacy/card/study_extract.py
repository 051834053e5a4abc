"""What one site's book says of one study, signed by the site when the study ends: a card between hosts is made from these.

Without digests of bytes, cohort and versions it tells nothing that is not public: every sum's step and cost follow from the
order. Equal lines but for their round, number and attempt are written once.
"""

from __future__ import annotations

import hashlib
import json
import math
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, get_args

from polyclinic.errors import MessageRefused
from polyclinic.privacy.accounting.charge import Charge, charge_from, plain
from polyclinic.privacy.ledger.entries import Entry
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.ledger.signed_head import signed_by
from polyclinic.privacy.release import Adjacency

LIMIT: Final = 64 * 2**20  # bytes of one book's lines
AT: Final = ("round", "number", "attempt")


@dataclass(frozen=True)
class StudyExtract:
    """The charges of one order at one site.

    Attributes
    ----------
    site, order
        Whose, and of what (its digest).
    lines
        As they stand in the book, without what is nobody else's business.
    signature
        Of the site's identity.
    elsewhere
        At how many other hospitals one of its patients may be, as the owner states; None: not stated.
    """

    site: str
    order: str
    lines: tuple[Charge, ...]
    signature: bytes = b""
    elsewhere: int | None = None

    @classmethod
    def of(
        cls, ledger: Ledger, site: str, order: str, sign: Callable[[bytes], bytes], elsewhere: int | None = None
    ) -> StudyExtract:
        """What a book says of an order, signed."""
        bare = cls(site, order, tuple(_public(c) for c in ledger.charges() if c.run == order), elsewhere=elsewhere)
        return replace(bare, signature=sign(bare._words()))

    def _words(self) -> bytes:
        return b"polyclinic/study/2" + hashlib.sha256(self._text()).digest()

    def _text(self) -> bytes:
        groups: dict[str, list[list[int]]] = {}
        for c in self.lines:
            value = {k: v for k, v in plain(c).items() if k not in AT}
            groups.setdefault(json.dumps(value, sort_keys=True), []).append([c.round, c.number, c.attempt])
        text = [self.site, self.order, [[json.loads(k), v] for k, v in groups.items()]]
        return json.dumps(text if self.elsewhere is None else [*text, self.elsewhere]).encode()

    def holds(self, key: bytes) -> bool:
        """Whether the site signed it, about itself and this order."""
        about_itself = all(c.site in ("", self.site) and c.run == self.order for c in self.lines)
        return about_itself and signed_by(key.hex(), self.signature.hex(), self._words())

    def pack(self) -> bytes:
        """As it travels."""
        return self.signature + self._text()  # not compressed: its size would move with its digests

    @classmethod
    def read(cls, data: bytes) -> StudyExtract:
        """Inverse of :meth:`pack`."""
        try:
            if len(data) > LIMIT:
                raise ValueError(f"more than {LIMIT} bytes")
            site, order, groups, *stated = json.loads(data[64:])
            if stated and (type(stated[0]) is not int or stated[0] not in range(2**20) or len(stated) > 1):
                raise ValueError("a statement about other hospitals that cannot be")
            lines = [_line(value, at) for value, many in groups for at in many]
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as e:
            raise MessageRefused(f"a site's ledger of a study cannot be read ({type(e).__name__})") from None
        return cls(str(site), str(order), tuple(lines), data[:64], stated[0] if stated else None)

    def entries(self) -> tuple[Entry, ...]:
        """As lines of a book, each with a name of its own."""
        mark = hashlib.sha256(self._text()).hexdigest()
        return tuple(
            Entry(n, "", self.site, c, "", hashlib.sha256(f"{mark} {n}".encode()).hexdigest())
            for n, c in enumerate(self.lines)
        )

    @classmethod
    def in_folder(cls, folder: Path) -> tuple[StudyExtract, ...]:
        """The signed extracts of a run between hosts that hold."""
        path = folder / "books.json"
        if not path.exists():
            return ()
        value = json.loads(path.read_text(encoding="utf-8"))
        keys = {s: bytes.fromhex(k) for s, k in value["keys"].items()}
        return cls.several({s: b64decode(b) for s, b in value["books"].items()}, keys, str(value["order"]))

    @classmethod
    def several(cls, packed: Mapping[str, bytes], keys: Mapping[str, bytes], order: str) -> tuple[StudyExtract, ...]:
        """Those of many sites that hold, by the names of the sites."""
        extracts = []
        for site, data in sorted(packed.items()):
            try:
                book = cls.read(data)
                right = (book.site, book.order) == (site, order) and site in keys and book.holds(keys[site])
            except (MessageRefused, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
                continue  # a site may write anything into its own book
            if right:
                extracts.append(book)
        return tuple(extracts)


def _public(c: Charge) -> Charge:
    return replace(c, cohort="all", release="", bytes="", versions={})


def _line(value: Mapping[str, Any], at: Iterable[int]) -> Charge:
    round, number, attempt = (int(x) for x in at)
    charge = charge_from({**value, "round": round, "number": number, "attempt": attempt})
    if faulty := [name for name, good in _sound(charge).items() if not good]:
        raise ValueError(f"a line whose {', '.join(faulty)} cannot be")
    return charge


def _sound(c: Charge) -> dict[str, bool]:
    """Whether the parts of a line are of their kinds: a site signs what it likes, and the card of everybody is made from it."""
    texts = (c.study, c.method, c.step, c.cohort, c.site, c.run, c.noise, c.release, c.bytes)
    aggregator = (c.by.name, c.by.reveals, c.by.topology, c.by.pooled, c.by.sentence, *c.by.saw, *c.by.saw.values())
    sizes = [n for name, shape in c.shapes.items() for n in (len(name), *shape)]
    numbers = [c.sd, c.share, *(x for x in (c.sensitivity, c.grid) if x is not None), *vars(c.event).values()]
    return {
        "text": all(isinstance(x, str) for x in (*texts, *aggregator)),
        "way to add": isinstance(c.by.checked, bool) and isinstance(c.by.tolerates_loss, bool),
        "words": c.adjacency in get_args(Adjacency) and c.how in ("sum", "gather"),
        "recipient": c.recipient in ("coordinator", "total", "peers"),
        "truth values": isinstance(c.formal, bool) and isinstance(c.counts, bool),
        "shapes": all(type(n) is int and 0 <= n < 2**40 for n in (*sizes, c.sites_per_patient)),
        "numbers": all(type(x) in (int, float) and not math.isnan(x) for x in numbers),
    }
