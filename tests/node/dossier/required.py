"""Every statement that a dossier has to make, chapter by chapter; BY_HAND: only the institution knows it."""

from __future__ import annotations

from typing import Any

BY_HAND = {
    "art30.controller",
    "art30.representative",
    "art30.officer",
    "art30.legal_basis",
    "art30.transfers",
    "art30.organisation",
    "dpia.necessity",
    "dpia.views",
    "expert.expert",
    "expert.determination",
}
REQUIRED = {
    *(
        f"protocol.{k}"
        for k in ("question", "cohort", "data", "method", "leaves", "recipients", "retention", "privacy", "rules")
    ),
    *(f"art30.{k}" for k in ("purposes", "subjects", "data", "recipients", "erasure", "security")),
    *(f"dpia.{k}" for k in ("description", "risks", "measures", "remains")),
    *(f"expert.{k}" for k in ("released", "attacks", "audit", "cell")),
    *(f"trail.{k}" for k in ("books", "whole", "spent", "decisions")),
    *(f"model.{k}" for k in ("what", "use", "privacy", "figures", "limits")),
}


def check_complete(value: dict[str, Any]) -> None:
    """Fails on a statement that is missing or empty; what is left to people is there, marked, and nothing else is."""
    said = {
        f"{part}.{key}": line
        for part, lines in value["parts"].items()
        for key, line in lines.items()
        if isinstance(line, dict) and "text" in line
    }
    assert set(said) == REQUIRED | BY_HAND
    assert {k for k, v in said.items() if v["by_hand"] and not "".join(v["text"]).strip()} <= BY_HAND
    empty = {k for k in REQUIRED if not "".join(said[k]["text"]).strip()}
    assert not empty, f"empty: {sorted(empty)}"
    assert value["missing"] == []
    assert value["to_be_signed_by"]
