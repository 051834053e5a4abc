"""What is asked of an owner: a whole order in words. Consent is of these words and of this order, by their digests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from polyclinic.config import Study
from polyclinic.errors import PolyclinicError
from polyclinic.node.signed_study import COORDINATOR, StudyOrder
from polyclinic.safe_text import one_line
from polyclinic.studies.halvings import halvings

NONE: Final = "none: no bound on what the released sums reveal about a patient"
TOLD: Final = (
    "study",
    "method",
    "privacy",
    "evaluate",
)  # sections that have words of their own; all others are read out


@dataclass(frozen=True)
class Offer:
    """An order as its owner reads it before agreeing; everything that the order says is in it."""

    order: StudyOrder

    def plain(self) -> dict[str, Any]:
        """For machines."""
        order, study = self.order, self.order.study
        return {
            "study": order.id,
            "order": order.digest,
            "name": study["study"]["name"],
            "description": study["study"].get("description", ""),
            "method": dict(study["method"]),
            "privacy": study.get("privacy") or NONE,
            "data": {k: v for k, v in study.items() if k not in TOLD and v},
            "halvings": self._halvings(),
            "findings": self._findings(),
            "lost": self._lost(),
            "quorum": order.least,
            "roster": {n: order.keys[n] for n in order.sites},
            "coordinator": order.keys[COORDINATOR],
        }

    def words(self) -> list[str]:
        """Line by line; no text of the sender's can be mistaken for a line of ours."""
        order, study = self.order, self.order.study
        rule, method, asked = dict(study["study"]), dict(study["method"]), study.get("privacy")
        lines = [f"order {order.digest}, from the coordinator with the key {order.keys[COORDINATOR][:16]}"]
        if rule.get("description"):
            lines.append(f"it says: {one_line(rule['description'])}")
        lines.append(f"method: {one_line(method.pop('name', '?'))}{_listed(method, ' ({})')}")
        if isinstance(asked, Mapping):
            lines.append(f"privacy asked, over the whole study: {_listed(asked)}")
        else:
            lines.append(f"privacy asked: {NONE}")
        lines += [f"{one_line(k)}: {_value(v)}" for k, v in study.items() if k not in TOLD and v]
        lines += [self._halvings(), self._findings(), self._lost()]
        own = {k: v for k, v in rule.items() if k not in ("name", "description", "replicate", "quorum")}
        lines.append(f"study {one_line(rule.get('name', '?'))}{_listed(own, ': {}')}")
        lines.append(f"at least {order.least} of {len(order.sites)} sites in every sum")
        return [x for x in lines if x]

    def digest(self) -> str:
        """Of the words: what an agreement is an agreement to."""
        return hashlib.sha256("\n".join(self.words()).encode()).hexdigest()

    def _halvings(self) -> str:
        try:
            found = halvings(Study.parse(self.order.study, where="the order"))
        except PolyclinicError as e:
            return f"halves of the patients: cannot be told ({one_line(e.what)})"
        if not found.number:
            return f"halves of the patients: none ({one_line(found.words)})"
        return f"halves of the patients: {found.number} halving{'s' * (found.number > 1)}; {one_line(found.words)}"

    def _findings(self) -> str:
        rule = self.order.study.get("evaluate")
        if rule is None:
            return "findings: none, the fit alone"
        if self.order.study.get("privacy"):
            kind = "with noise, from the same budget"
        else:
            kind = "exact: the difference of two such tables is the patients in whom they differ"
        acts = rule.get("what") if isinstance(rule, Mapping) else None
        more = {k: v for k, v in rule.items() if k != "what"} if isinstance(rule, Mapping) else {}
        return f"findings after the fit: {_value(acts) if acts else 'all that the data allow'}, {kind}{_listed(more, '; {}')}"

    def _lost(self) -> str:
        if not self.order.secure or self.order.study.get("privacy"):
            return ""
        return "if a site is lost: exact sums wait for a site that is lost"


def _listed(values: Mapping[str, Any], form: str = "{}") -> str:
    what = ", ".join(f"{one_line(k)} {_value(v)}" for k, v in values.items() if not _empty(v))
    return form.replace("{}", what) if what else ""


def _empty(value: object) -> bool:
    return value is None or value in ("", [], {}, ())


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{one_line(k)}={_value(v)}" for k, v in value.items() if not _empty(v))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(_value, value))
    return one_line(value)
