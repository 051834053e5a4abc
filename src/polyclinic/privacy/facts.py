"""What a way to add and a method say of themselves: the only words a card, a review or a consent may use of them.

Facts are values of the classes they speak of. Nothing looks a method up by its name, so another author's method is not
taken for one that was studied: without facts a card says "no attack was studied".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

Against = Literal["each", "sum", "noise"]


@dataclass(frozen=True)
class AggregatorFacts:
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
class KnownAttack:
    """An attack that was shown to work, with the size at which it did.

    ``against``: ``"each"`` needs single exact contributions, ``"sum"`` works on exact totals too, ``"noise"`` on releases
    with the method's own noise. ``step``: the step it works on, as in ``MethodFacts.steps``; empty: any.
    """

    against: Against
    text: str
    step: str = ""

    def concerns(self, names: Collection[str] | None) -> bool:
        """Whether it works on one of these steps, which left without noise; None: not known, so all."""
        if not self.step or names is None or self.against == "noise":
            return True
        return any(is_step(n, self.step) for n in names)


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
    attacks: tuple[KnownAttack, ...] | None = None
    assumptions: tuple[str, ...] = ()
    steps: Mapping[str, StepMeaning] = field(default_factory=dict)

    def meaning(self, step: str) -> StepMeaning | None:
        """The words for one step, or None.

        >>> MethodFacts(steps={"lloyd-*": StepMeaning("sums of records")}).meaning("lloyd-0-1").what
        'sums of records'
        """
        parts = [self._meaning(name) for name in step_names(step)]
        meanings = [p for p in parts if p is not None]
        if len(meanings) < len(parts):
            return None
        return StepMeaning(
            "; ".join(p.what for p in meanings), "; ".join(p.could_tell for p in meanings if p.could_tell)
        )

    def _meaning(self, name: str) -> StepMeaning | None:
        exact_match = self.steps.get(name)
        return exact_match or next((m for k, m in self.steps.items() if is_step(name, k)), None)

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

    def known(
        self, *, each: bool, exact: bool, noisy: bool | None = None, ran: Iterable[str] | None = None
    ) -> tuple[str, ...]:
        """The attacks that apply to how contributions were added and whether noise was; said so where nobody looked.

        Parameters
        ----------
        each
            Whether somebody saw single contributions.
        exact
            Whether values left without noise.
        noisy
            Whether values left with noise; None: where none left without.
        ran
            Steps that left without noise; None: not known, so all.

        >>> MethodFacts().known(each=True, exact=True)
        ('no attack was studied',)
        """
        if self.attacks is None:
            return (UNSTUDIED,)
        works = {"sum": exact, "each": exact and each, "noise": not exact if noisy is None else noisy}
        names = None if ran is None else {n for step in ran for n in step_names(step)}
        return tuple(a.text for a in self.attacks if works[a.against] and a.concerns(names))


def step_names(step: str) -> tuple[str, ...]:
    """The names in a step's: of several methods side by side (``a+b``), without its start (``2/sweep``) or try (``cells+1``).

    >>> step_names("2/cells+1"), step_names("pca+lloyd-0")
    (('cells',), ('pca', 'lloyd-0'))
    """
    first, *later = (part.rpartition("/")[2] for part in step.split("+"))
    return (first, *(n for n in later if not n.isdigit()))


def is_step(name: str, pattern: str) -> bool:
    """Whether a name is a pattern's: the same, or beginning so where the pattern ends in ``*``."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


UNSTUDIED: Final = "no attack was studied"

PLAIN: Final = AggregatorFacts(
    "plain",
    "each",
    saw={
        "the coordinator": "each site's contribution, {values}",
        "other sites": "the sum over sites, {values}",  # every site folds the totals for itself
    },
)
