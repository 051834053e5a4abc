"""Where a model comes from: the method and its parameters, the privacy card, how the rounds went, whose ledgers paid."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Final

import numpy as np
from pydantic import BaseModel

from polyclinic.privacy.card.card import Card
from polyclinic.safe_text import one_line
from polyclinic.util.json_types import Json, JsonMap

_version = cache(version)  # reads a file of metadata each time
TIMED: Final = ("seconds",)  # a clock's figures: two fits of one model differ in nothing else


@dataclass(frozen=True)
class Origin:
    """What is known about a model besides its numbers; no patient, and nothing that a clock decides.

    Parameters
    ----------
    method, version
        Which protocol made it (``"trip"``, 1).
    parameters
        As they were given, plain values.
    card
        What is guaranteed, to whom, under which assumptions.
    history
        One mapping per round: the figures of merit, without seconds.
    rule
        How records became what was fitted ([tensor], [codes], [features], [people] as written); empty if unknown.
    receipts
        Site -> head of its ledger after the run, where there is one.
    versions
        Of the software.
    censored
        Small cells were removed before the model was written (``report --export``).
    figures
        Figures of merit over all patients that were fitted (``fit``), where they were made and may be passed on.
    further
        Keys of a file that this release does not know; kept when the model is saved again.
    """

    method: str
    version: int
    parameters: JsonMap
    card: Card
    history: tuple[JsonMap, ...] = ()
    rule: JsonMap = field(default_factory=dict)
    receipts: Mapping[str, object] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    censored: bool = False
    further: JsonMap = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, method: str, version: int, parameters: JsonMap, card: Card, history: Sequence[JsonMap]) -> Origin:
        """The origin of a model that was just fitted here."""
        rounds = tuple({k: plain(v) for k, v in h.items() if k not in TIMED} for h in history)
        return cls(
            method,
            version,
            {k: plain(v) for k, v in parameters.items() if v is not None},
            card,
            rounds,
            versions=versions(),
        )

    def to_json(self) -> dict[str, object]:
        """Plain values for ``model.json``."""
        return {
            **self.further,
            "method": {"name": self.method, "version": self.version},
            "parameters": plain(self.parameters),
            "privacy": plain(self.card.to_dict()),
            "history": plain(self.history),
            "rule": plain(self.rule),
            "receipts": plain(self.receipts),
            "versions": dict(self.versions),
            "censored": self.censored,
            **({"figures": plain(self.figures)} if self.figures else {}),
        }

    @classmethod
    def from_json(cls, value: JsonMap, known: Sequence[str]) -> Origin:
        """Inverse of :meth:`to_json`; ``known`` are the keys that others read."""
        own_keys = ("method", "parameters", "privacy", "history", "rule", "receipts", "versions", "censored", "figures")
        return cls(
            one_line(value["method"]["name"]),
            int(value["method"]["version"]),
            dict(value["parameters"]),
            Card.from_dict(value["privacy"]),
            tuple(dict(h) for h in value["history"]),
            dict(value["rule"]),
            dict(value["receipts"]),
            dict(value["versions"]),
            bool(value["censored"]),
            {k: v for k, v in value.items() if k not in own_keys and k not in known},
            {str(k): float(v) for k, v in dict(value.get("figures", {})).items()},
        )


def versions() -> dict[str, str]:
    """Versions that a result depends on."""
    names = ("polyclinic", "numpy", "scipy", "numba")
    return {"python": platform.python_version(), **{n: _version(n) for n in names}}


def plain(value: object) -> Json:
    """Numbers, texts, lists and maps of them, as JSON has them; what is not finite becomes null.

    >>> plain({"a": np.float64(1.5), "b": (1, float("nan"))})
    {'a': 1.5, 'b': [1, None]}
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [plain(v) for v in (sorted(value) if isinstance(value, set | frozenset) else value)]
    return plain(value.model_dump(mode="json")) if isinstance(value, BaseModel) else str(value)
