"""What a site signs of its book when a study ends, and the card that is made from it."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from polyclinic.aggregation.secure.masked import Masked
from polyclinic.errors import MessageRefused
from polyclinic.privacy.accounting.accountant import Gaussian, epsilon
from polyclinic.privacy.accounting.charge import Charge
from polyclinic.privacy.card.card import make_card
from polyclinic.privacy.card.release_history import ReleaseHistory
from polyclinic.privacy.card.study_extract import StudyExtract
from polyclinic.privacy.facts import MethodFacts
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.release import Release, Step

FACTS = MethodFacts(formal=True)
NAMES = ("east", "north", "south")
KEYS = {n: Ed25519PrivateKey.generate() for n in NAMES}
PUBLIC = {n: k.public_key().public_bytes_raw() for n, k in KEYS.items()}


def step(n: int, multiplier: float = 10.0) -> Step:
    return Step(n, "statistics", {"x": (3,)}, bound=9.0, sensitivity=1.0, multiplier=multiplier)


def line(site: str, n: int, **more: Any) -> Charge:
    given = {"site": site, "run": "o", "number": n, "by": Masked.facts, "shapes": {"x": (3,)}, "noise": "exact"}
    return replace(Charge("icu", "dpem", n, "statistics", 0, Gaussian(10.0), **given), **more)  # type: ignore[arg-type]


def book(site: str, lines: int = 4, more: tuple[Charge, ...] = ()) -> StudyExtract:
    ledger = Ledger(site=site)
    for n in range(lines):
        ledger.charge(line(site, n, cohort="women of ward 7", release=f"r{n}", bytes="ab"))
    for c in (*more, line(site, 0, run="another order")):
        ledger.charge(c)
    return StudyExtract.of(ledger, site, "o", KEYS[site].sign)


RELEASES = [Release(n, step(n), members=NAMES, by=Masked.facts) for n in range(4)]


def test_it_travels_whole_and_tells_nothing_but_what_is_public() -> None:
    made = book("north")
    back = StudyExtract.read(made.pack())
    assert back == made
    assert back.holds(PUBLIC["north"])
    assert len(back.lines) == 4, "the other order's line is not in it"
    text = made.pack()[64:]
    assert json.loads(text)[:2] == ["north", "o"], "not compressed: nobody learns from its size what is in it"
    assert b"ward 7" not in text
    assert b"r0" not in text
    assert len({e.hash for e in back.entries()}) == 4


@pytest.mark.parametrize("n", range(3))
def test_whoever_changes_it_is_found(n: int) -> None:
    made = book("north")
    lines = list(made.lines)
    changed = [
        replace(made, lines=tuple(lines[:-1])),
        replace(made, lines=(replace(lines[0], event=Gaussian(99.0)), *lines[1:])),
        replace(made, order="other", lines=tuple(replace(c, run="other") for c in lines)),
    ][n]
    assert not changed.holds(PUBLIC["north"])
    assert not made.holds(PUBLIC["east"])
    packed = {"north": changed.pack(), "east": book("south").pack(), "south": book("south").pack()}
    assert [b.site for b in StudyExtract.several(packed, PUBLIC, "o")] == ["south"]


@pytest.mark.parametrize(
    "data",
    [b"", b"x" * 63, *(b"x" * 64 + t for t in (b"no json", b"x no zlib", b"[1, 2]", zlib.compress(b"[1, 2]")))],
)
def test_what_cannot_be_read_is_refused(data: Any) -> None:
    with pytest.raises(MessageRefused):
        StudyExtract.read(data)
    assert StudyExtract.several({"north": data}, PUBLIC, "o") == ()


ODD: dict[str, Any] = {
    "noise": [],
    "site": {},
    "step": 5,
    "adjacency": "nobody",
    "recipient": "all",
    "formal": "yes",
    "sd": "large",
    "share": float("nan"),
    "shapes": {"x": [2.5]},
    "event": {"kind": "gaussian", "multiplier": {}, "count": 1},
    "by": {"name": 5, "reveals": "total"},
}


@pytest.mark.parametrize("field", ODD)
def test_a_line_of_another_kind_is_not_read_whoever_signed_it(field: str) -> None:
    """The card of everybody is made from these lines: one of them stopped it."""
    packed = book("north").pack()
    site, order, groups = json.loads(packed[64:])
    groups[0][0][field] = ODD[field]
    text = json.dumps([site, order, groups]).encode()
    signed = KEYS["north"].sign(b"polyclinic/study/2" + hashlib.sha256(text).digest())
    for sent in (text, zlib.compress(text)):
        with pytest.raises(MessageRefused):
            StudyExtract.read(signed + sent)
        assert StudyExtract.several({"north": signed + sent}, PUBLIC, "o") == ()


def test_a_site_signs_for_itself_only() -> None:
    """With lines of another's name a site could make a release of that one look cheaper, or look signed."""
    for site, holds in (("north", True), ("north.07", False), ("south", False)):
        ledger = Ledger(site="north")
        ledger.charge(line(site, 0))
        made = StudyExtract.of(ledger, "north", "o", KEYS["north"].sign)
        assert made.holds(PUBLIC["north"]) is holds


def test_a_book_of_too_many_bytes_is_refused_as_it_comes_and_unpacked() -> None:
    packed = book("north").pack()
    text = packed[64:] + b" " * (65 * 2**20)  # JSON that could be read
    for sent in (text, zlib.compress(text)):
        with pytest.raises(MessageRefused):
            StudyExtract.read(packed[:64] + sent)


def test_the_card_is_that_of_the_worst_book_and_says_who_signed() -> None:
    dear = book("south", more=(line("south", 3, attempt=1),))
    card = make_card(FACTS, ReleaseHistory.of("dpem", RELEASES, books=(book("east"), book("north"), dear)))
    assert card.epsilon == pytest.approx(epsilon([Gaussian(10.0)] * 5, 1e-6), abs=1e-9)
    assert card.guarantee == "formal"
    assert card.books == "signed by east, north, south: every site that took part"


def test_a_site_that_did_not_sign_is_named_and_counted() -> None:
    card = make_card(FACTS, ReleaseHistory.of("dpem", RELEASES, books=(book("east"), book("north"))))
    assert card.epsilon == pytest.approx(epsilon([Gaussian(10.0)] * 4, 1e-6), abs=1e-9)
    assert "not by south" in card.books


def test_a_book_that_says_too_little_does_not_make_the_card_smaller() -> None:
    poor = StudyExtract("south", "o", book("south").lines[:1])
    poor = replace(poor, signature=KEYS["south"].sign(poor._words()))
    happened = ReleaseHistory.of("dpem", RELEASES, books=(poor,))
    assert happened.differ == ("south",)
    card = make_card(FACTS, happened)
    assert card.epsilon == pytest.approx(epsilon([Gaussian(10.0)] * 4, 1e-6), abs=1e-9)
    assert any("lacks sums that were taken, at south" in r for r in card.reasons)


def test_starts_join_what_was_signed() -> None:
    one = ReleaseHistory.of("dpem", RELEASES, books=tuple(book(n) for n in NAMES))
    two = ReleaseHistory.of("dpem", RELEASES, books=tuple(book(n, lines=5) for n in NAMES[:2]))
    both = one.with_starts([two])
    assert both.signed == ("east", "north")
    assert both.unsigned == ("south",)
    card = make_card(FACTS, both)
    assert card.epsilon == pytest.approx(epsilon([Gaussian(10.0)] * 9, 1e-6), abs=1e-9)
