"""What an owner reads before a release leaves, in words; and what an approval is an approval of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from polyclinic.privacy.facts import AggregatorFacts, MethodFacts
from polyclinic.privacy.release import Step

__all__ = ["AHEAD", "facts_digest", "in_words", "list_ahead"]

AHEAD = "ahead"  # approved before the study, by the name of its step alone


def facts_digest(step: Step, share: float, by: AggregatorFacts) -> str:
    """What ``review = "names"`` approves: everything public about a step but its round.

    A later step of the same name with any other of these facts waits again. The bound is one of them only where noise is
    drawn for it: in exact steps it follows the size of the model from round to round and tells nothing.
    """
    words: list[object] = [
        step.name,
        {k: list(v) for k, v in sorted(step.shapes.items())},
        step.how,
        step.adjacency,
        share,
        by.name,
        by.reveals,
    ]
    if step.noise_sd > 0:
        words += [step.bound, step.sensitivity, step.multiplier, step.grid, step.sites_per_patient]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def in_words(step: Step, share: float, by: AggregatorFacts, facts: MethodFacts) -> list[str]:
    """The step as an owner reads it: what it is, who sees it, the noise, what it could tell."""
    meaning = facts.meaning(step.name)
    numbers = f"{len(step.shapes)} array{'s' if len(step.shapes) > 1 else ''}, {step.size:,} numbers"
    noisy = step.noise_sd > 0
    values = "with noise" if noisy else "exact"
    shown = step.how == "gather"
    seen = [f"{who}: {text.format(values=values)}" for who, text in by.saw.items()]
    lines = [
        f"step {step.name!r}: {numbers}: {meaning.what if meaning is not None else 'its author says nothing about it'}",
        "who sees it: " + ("the coordinator: your own values, by themselves" if shown else "; ".join(seen)),
    ]
    if noisy:
        part = "" if share == 1.0 else f", of which this site adds {share:.3g} of the variance"
        who = "one patient" if step.adjacency == "patient" else "one entry"
        lines.append(
            f"noise: {step.multiplier:.4g} times what {who} can move, standard deviation {step.noise_sd:.4g} in the sum{part}"
        )
    else:
        lines.append("noise: none")
        if meaning is not None and meaning.could_tell:
            lines.append(f"could tell: {meaning.could_tell}")
        for attack in facts.known(each=shown or by.reveals == "each", exact=True, ran=[step.name]):
            lines.append(f"shown to work: {attack}" if facts.attacks is not None else attack)
    return lines


def list_ahead(facts: MethodFacts, by: AggregatorFacts) -> Mapping[str, list[str]]:
    """All steps of a method before a study starts, each in words: one sitting, and nothing waits in the night."""
    seen = "; ".join(f"{who}: {text.format(values='as the study asks')}" for who, text in by.saw.items())
    return {
        name: [
            f"step {name!r}: {m.what}",
            f"who sees it: {seen}",
            *([f"could tell: {m.could_tell}"] if m.could_tell else []),
        ]
        for name, m in facts.steps.items()
    }
