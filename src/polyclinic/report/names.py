"""Names of phenotypes: a person's own, else a suggestion from the leading codes of every mode. No two are the same."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from polyclinic.models.phenotypes.phenotypes import Phenotypes

LOOSE: Final = frozenset(
    "and or with without of the by in to for from on at as except that caused other due a an".split()  # noqa: SIM905
)
ORDERED: Final = ("visit", "time")  # modes whose positions follow one another: they name nothing


@dataclass(frozen=True)
class CardCode:
    """A code of a phenotype: its part of the phenotype's weight in its mode, and its lift.

    The lift is this part over the code's part of all phenotypes together: 1 says nothing about the phenotype.
    """

    label: str
    name: str
    weight: float
    share: float
    lift: float | None = None

    @property
    def brief(self) -> str:
        """Its name; of a path, the end and the part before it.

        >>> CardCode("x", "endocrine|glucose metabolism|DKA", 1.0, 1.0).brief
        'glucose metabolism, DKA'
        """
        return ", ".join(part.strip() for part in self.name.split("|")[-2:] if part.strip()) or self.name


def suggest_name(modes: Sequence[tuple[str, Sequence[CardCode]]], *, avoid: Container[str] = ()) -> str:
    """A name from the leading codes of every mode, diagnoses first; empty if no code may be shown.

    A further code is added where the name is another phenotype's already (``avoid``).

    >>> drug = ("drug", (CardCode("7", "furosemide", 1, 0.4),))
    >>> diagnosis = ("diagnosis", (CardCode("428.0", "congestive heart failure", 1, 0.6), CardCode("401.9", "hypertension", 1, 0.1)))
    >>> suggest_name([drug, diagnosis])
    'Congestive heart failure with furosemide'
    >>> suggest_name([drug, diagnosis], avoid={"Congestive heart failure with furosemide"})
    'Congestive heart failure and hypertension with furosemide'
    """
    order = sorted(modes, key=lambda m: 0 if "diag" in m[0].lower() or "condition" in m[0].lower() else 1)
    lists = [codes for mode, codes in order if codes and mode not in ORDERED]
    return next((name for name in _tries(lists) if name not in avoid), "") if lists else ""


def names_of(model: Phenotypes) -> list[str]:
    """Every phenotype's name: a person's own, else suggested from its codes; for the eyes of who has the model."""
    names: list[str] = []
    rows = list(model.top(3))
    for r in range(model.rank):
        own = [row for row in rows if row["phenotype"] == r]
        modes = dict.fromkeys(row["mode"] for row in own)
        codes = [
            (m, [CardCode(c["code"], c["name"], c["weight"], c["share"]) for c in own if c["mode"] == m]) for m in modes
        ]
        given = model.names[r] if model.names else ""
        names.append(given or suggest_name(codes, avoid=[*names, *model.names]) or f"Phenotype {r + 1}")
    return names


def _tries(lists: Sequence[Sequence[CardCode]]) -> Iterator[str]:
    """Names of one, two and three codes of each mode, shortest first."""
    first = lists[0]
    similar = len(first) > 1 and first[1].share >= 0.7 * first[0].share
    sizes = sorted(product((1, 2, 3), repeat=len(lists)), key=sum)
    for size in [(2, *(1 for _ in lists[1:])), *sizes] if similar else sizes:
        parts = [" and ".join(dict.fromkeys(_short(c.name) for c in codes[:n])) for codes, n in zip(lists, size)]
        text = " with ".join([parts[0], ", ".join(parts[1:])]) if len(parts) > 1 else parts[0]
        yield text[:1].upper() + text[1:]


def _short(name: str, limit: int = 48) -> str:
    """The part of a description before its qualifications, or the end of a path; at most ``limit`` characters.

    >>> _short("Pneumonia (except that caused by tuberculosis); other"), _short("endocrine|glucose metabolism|DKA")
    ('Pneumonia (except that caused by tuberculosis)', 'glucose metabolism, DKA')
    """
    if "|" in name:  # a path: its end says what it is, the part before it of what ("diabetes mellitus, Type I")
        return _cut(", ".join(part.strip() for part in name.split("|")[-2:] if part.strip()) or name, limit)
    return _cut(name.split(",")[0].split(";")[0].strip() or name.strip(), limit)


def _cut(head: str, limit: int) -> str:
    if len(head) <= limit:
        return head
    words = head[: limit - 1].rsplit(" ", 1)[0].split(" ")
    while len(words) > 1 and words[-1].strip("(").lower() in LOOSE:  # a name does not end in "and ..."
        words.pop()
    return " ".join(words) + "\N{HORIZONTAL ELLIPSIS}"
