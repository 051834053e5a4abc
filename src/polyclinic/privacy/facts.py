"""What a way to add and a method say of themselves: the only words a card, a review or a consent may use of them.

Facts are values of the classes they speak of. Nothing looks a method up by its name, so another author's method is not
taken for one that was studied: without facts a card says "no attack was studied".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

__all__ = ["PLAIN", "Attack", "MethodFacts", "StepMeaning", "SumFacts"]

Against = Literal["each", "sum", "noise"]


@dataclass(frozen=True)
class SumFacts:
    """A way to add, in its own words.

    Attributes
    ----------
    name
        As a study names it.
    reveals
        ``"each"``: somebody sees single contributions. ``"total"``: nobody sees more than the sum.
    topology
        ``"star"``: through a coordinator. ``"peers"``: between sites only.
    checked
        Whether a changed total is noticed by the sites.
    tolerates_loss
        Whether a sum goes on when a site is lost.
    pooled
        What parties that pool what they see learn beyond this; empty: nothing that is not assumed away.
    sentence
        What its protection is called without privacy noise; empty: none worth a name.
    saw
        Party -> what it saw; the word ``{values}`` stands for "exact" or "with noise".
    """

    name: str
    reveals: Literal["each", "total"]
    topology: Literal["star", "peers"] = "star"
    checked: bool = False
    tolerates_loss: bool = True
    pooled: str = ""
    sentence: str = ""
    saw: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Attack:
    """An attack that was shown to work, with the size at which it did.

    ``against``: ``"each"`` needs single exact contributions, ``"sum"`` works on exact totals too, ``"noise"`` on releases
    with the method's own noise.
    """

    against: Against
    text: str


@dataclass(frozen=True)
class StepMeaning:
    """One step in words, for an owner: what the numbers are, and what they could tell if they were exact."""

    what: str
    could_tell: str = ""


@dataclass(frozen=True)
class MethodFacts:
    """What is known about a method.

    Attributes
    ----------
    paper
        Where it comes from.
    formal
        Whether a theorem covers it with patient-level privacy.
    attacks
        Those that were shown to work; None: nobody has looked.
    assumptions
        What its guarantee needs beyond the general ones.
    steps
        Step name -> meaning; a name that ends in ``*`` stands for all that begin so.
    """

    paper: str = ""
    formal: bool = False
    attacks: tuple[Attack, ...] | None = None
    assumptions: tuple[str, ...] = ()
    steps: Mapping[str, StepMeaning] = field(default_factory=dict)

    def meaning(self, step: str) -> StepMeaning | None:
        """The words for one step, or None.

        >>> MethodFacts(steps={"lloyd-*": StepMeaning("sums of records")}).meaning("lloyd-0-1").what
        'sums of records'
        """
        if "+" in step:  # several methods side by side in one sum
            parts = [self.meaning(p) for p in step.split("+")]
            known = [p for p in parts if p is not None]
            if len(known) < len(parts):
                return None
            return StepMeaning("; ".join(p.what for p in known), "; ".join(p.could_tell for p in known if p.could_tell))
        name = step.rpartition("/")[2]  # "2/sweep": the same step of another start
        found = self.steps.get(step) or self.steps.get(name)
        starred = (m for k, m in self.steps.items() if k.endswith("*") and name.startswith(k[:-1]))
        return found or next(starred, None)

    @classmethod
    def joined(cls, parts: Sequence[MethodFacts]) -> MethodFacts:
        """Of several methods that run as one: what is known of any; unstudied if one is."""
        attacks = [p.attacks for p in parts]
        return cls(
            "; ".join(dict.fromkeys(p.paper for p in parts if p.paper)),
            all(p.formal for p in parts),
            None if None in attacks else tuple(dict.fromkeys(a for some in attacks for a in some or ())),
            tuple(dict.fromkeys(a for p in parts for a in p.assumptions)),
            {k: m for p in reversed(parts) for k, m in p.steps.items()},
        )

    def known(self, *, each: bool, exact: bool) -> tuple[str, ...]:
        """The attacks that apply to how contributions were added and whether noise was; said so where nobody looked.

        >>> MethodFacts().known(each=True, exact=True)
        ('no attack was studied',)
        """
        if self.attacks is None:
            return (UNSTUDIED,)
        works = {"noise"} if not exact else {"sum", "each"} if each else {"sum"}
        return tuple(a.text for a in self.attacks if a.against in works)


UNSTUDIED: Final = "no attack was studied"

PLAIN: Final = SumFacts(
    "plain",
    "each",
    saw={
        "the coordinator": "each site's contribution, {values}",
        "other sites": "the sum over sites, {values}",  # every site folds the totals for itself
    },
)
