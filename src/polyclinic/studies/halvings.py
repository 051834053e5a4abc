"""On how many halvings of the patients a study asks whether its phenotypes come back: what it says, else one where that can be had."""

from __future__ import annotations

from dataclasses import dataclass

from polyclinic.config import Study
from polyclinic.config.evaluate import EvaluateRule
from polyclinic.methods.rounds.factorization import FederatedFactorization
from polyclinic.privacy.guarantee import noisy
from polyclinic.protocol.aggregators import kind_of
from polyclinic.protocol.interfaces import Method
from polyclinic.studies.registry import find

OFF = "[study] replicate = 0 fits once"
PAID = "fitted on two halves instead of everybody: both for the budget of one fit, because no patient is in both"


@dataclass(frozen=True)
class Halvings:
    """How many, and in words: at what cost, or why none; ``can``: whether the study could have them by asking."""

    number: int
    words: str
    can: bool = True


def halvings(study: Study) -> Halvings:
    """The halvings of a study: everything follows from the study alone, so that every site and engine gives the same answer.

    Not said: one, for a phenotype method whose totals are sums. None under ``[privacy]`` unless asked, because each
    half then has half of the patients under the same epsilon.

    >>> asked = {"study": {"name": "icu"}, "method": {"name": "trip", "aggregation": "masked"}}
    >>> halvings(Study.parse(asked)).number, halvings(Study.parse({**asked, "privacy": {"epsilon": 1.0}})).number
    (1, 0)
    """
    said = study.study.replicate
    if said == 0:
        return Halvings(0, "[study] replicate = 0")
    if said is None and (reason := _cannot(study)):
        return Halvings(0, reason, can=False)
    if said is None and (reason := _should_not(study)):
        return Halvings(0, reason)
    number = 1 if said is None else said
    if noisy(study.privacy):
        return Halvings(number, PAID)
    fits = "two halves" if number == 1 else f"{2 * number} halves"
    return Halvings(
        number,
        f"fitted on everybody and on {fits}: about {number + 1} times the work and {1 + 2 * number} times the bytes; {OFF}",
    )


def evaluated(study: Study) -> bool:
    """Whether patients are counted after the fit: as ``[evaluate]`` says, else where an exact study has an outcome or people.

    >>> asked = {"study": {"name": "icu"}, "method": {"name": "trip", "aggregation": "masked"}}
    >>> [evaluated(Study.parse({**asked, **more})) for more in ({}, {"labels": {"outcome": "mortality"}})]
    [False, True]
    """
    if study.evaluate is not None:
        return study.evaluate.what is None or any(a != "replicate" for a in study.evaluate.what)
    named = study.labels is not None or study.people is not None or study.data is not None
    if noisy(study.privacy) or study.method is None or not named:
        return False
    chosen = study.chosen()
    cls = find(chosen.name)
    adds = kind_of(str(chosen.parameters.get("aggregation", "plain"))).adds
    return issubclass(cls, Method) and issubclass(cls, FederatedFactorization) and adds


def _should_not(study: Study) -> str:
    """Why a study that does not say should have no halves; empty: it should."""
    if noisy(study.privacy):
        return (
            "with [privacy] each half has half of the patients for the same budget; [study] replicate = 1 asks for it"
        )
    rule, values = study.evaluate, study.chosen().parameters
    if rule is not None and rule.what is not None and "replicate" not in rule.what:
        return "[evaluate] what does not name it"
    if values.get("variant") == "paper":
        return "a paper's variant publishes what it found"
    if values.get("rank") == "auto":
        return "rank = 'auto' looks at two halves itself, and half of the patients may be too few for it"
    return ""


def _cannot(study: Study) -> str:
    """Why a study has no halves that could be compared; empty: it may have."""
    if study.method is None:
        return "the study names no method"
    chosen = study.chosen()
    cls = find(chosen.name)
    if not (issubclass(cls, Method) and issubclass(cls, FederatedFactorization)):
        return f"{chosen.name} finds no phenotypes by sums over hospitals"
    if cls.whole_only:
        return cls.whole_only
    if study.tensor is not None and len(study.tensor.axes) < 2:
        return "with one kind of codes nobody can ask whether two kinds go together"
    if not kind_of(str(chosen.parameters.get("aggregation", "plain"))).adds:
        return f"aggregation {chosen.parameters['aggregation']!r} gives no sums"
    return ""


def resolved(study: Study) -> Study:
    """The study with halvings and evaluation written down, as it is signed: every reader sees them, and every version runs the same."""
    number = halvings(study).number
    if study.evaluate is None and evaluated(study):
        study = study.model_copy(update={"evaluate": EvaluateRule()})
    if study.study.replicate is not None or number == 0:
        return study
    return study.model_copy(update={"study": study.study.model_copy(update={"replicate": number})})
