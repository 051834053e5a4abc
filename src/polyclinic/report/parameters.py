"""The method's parameters in words: as a study file spells them, and privacy as a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.card.card import ADJACENCY, Card

__all__ = ["privacy_words", "spelled"]


def spelled(value: object) -> str:
    """A parameter's value as a study file has it, without the marks of a programming language.

    >>> spelled(None), spelled(True), spelled(0.05), spelled(["a", 2]), spelled({"north": 0.1, "south": 0.2})
    ('not set', 'true', '0.05', 'a, 2', 'north: 0.1, south: 0.2')
    """
    match value:
        case None:
            return "not set"
        case bool():
            return str(value).lower()
        case Mapping():
            return ", ".join(f"{k}: {spelled(v)}" for k, v in value.items())
        case list() | tuple():
            return ", ".join(spelled(v) for v in value)
        case _:
            return str(value)


def privacy_words(asked: Mapping[str, Any], card: Card) -> str:
    """The privacy that was asked for, with its adjacency, its delta, and the kind of guarantee that was reached.

    >>> card = Card("dpem", "heuristic", 2.0, 1e-6, "patient")
    >>> privacy_words({"epsilon": 2.0, "delta": 1e-6, "level": "patient", "max_sites_per_patient": 2}, card)
    'asked for: patient-level, epsilon 2 at delta 1e-06 (one patient added or removed), one patient at no more than 2 sites; guarantee reached: heuristic'
    """
    p = Privacy(**asked)
    sites = f"one patient at no more than {p.max_sites_per_patient} site{'s' if p.max_sites_per_patient > 1 else ''}"
    bounds = [f"{what} {v:g}" for what, v in (("gradients up to", p.clip), ("counts up to", p.count_cap)) if v]
    told = [
        f"{p.level}-level",
        f"epsilon {p.epsilon:.4g} at delta {p.delta:g} ({ADJACENCY[p.level]})",
        *([sites] if p.level == "patient" else []),
        *bounds,
    ]
    return f"asked for: {', '.join(told)}; guarantee reached: {card.guarantee}"
