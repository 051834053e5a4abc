"""Mutations of the coordinator's asks and of neighbours' letters, correctly signed with the key that the attacker holds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

Rng = np.random.Generator
Ask = dict[str, Any]


def _pick(rng: Rng, values: list[Any]) -> Any:
    return values[int(rng.integers(len(values)))]


def _number(rng: Rng, ask: Ask) -> None:
    now = ask.get("number", 0)
    ask["number"] = _pick(rng, [-99, now - 1, now + 1, 2**63 - 1, 10**6, "0", None, 1.5, [0], True])


def _attempt(rng: Rng, ask: Ask) -> None:
    now = ask.get("attempt", 0)
    ask["attempt"] = _pick(rng, [-1, now - 1, 2**40, "0", None, [], float("nan")])


def _sites(rng: Rng, ask: Ask) -> None:
    for key in ("sites", "begin"):
        if isinstance(ask.get(key), list) and (key == "sites" or rng.random() < 0.5):
            names = list(ask[key])
            ask[key] = _pick(
                rng,
                [
                    names[1:],
                    names[:-1],
                    [*names, "nobody"],
                    [*names, names[0]],
                    names[::-1],
                    names[:2],
                    names[:1],
                    [],
                    "east",
                    None,
                    [1, 2, 3],
                    ["../east", *names[1:]],
                    [*names[:-1], names[0]],
                ],
            )
            return
    ask["sites"] = ["nobody"]


def _opened(rng: Rng, ask: Ask) -> None:
    found = ask.get("opened")
    if not isinstance(found, list) or not found:
        ask["opened"] = _pick(rng, [5, "x", [{}], [None], [[]], {"number": 0}])
        return
    found = ask["opened"] = list(found)
    kind = int(rng.integers(6))
    if kind == 0:
        ask["opened"] = _pick(rng, [[], found[1:], found[::-1], found[:-1], [*found, {**found[-1], "number": 7}], None])
        return
    one = found[-1] = dict(found[-1])
    name = _pick(rng, ["arrays", "words"]) if one.get("words") is not None else "arrays"
    if kind == 1 and (one.get(name) is not None and len(one[name])):
        key = None if name == "words" else _pick(rng, sorted(one["arrays"]))
        a = np.array(one[name] if key is None else one[name][key])
        at = int(rng.integers(max(1, a.size)))
        change = int(rng.integers(8))
        if change == 0 and a.size:
            a.flat[at] = a.flat[at] + 1
        elif change == 1 and a.size:
            a.view(np.uint8).flat[int(rng.integers(a.nbytes))] ^= 1 << int(rng.integers(8))
        elif change == 2:
            a = a.ravel()[::-1].reshape(a.shape).copy()
        elif change == 3:
            a = np.zeros_like(a)
        elif change == 4:
            a = np.append(a.ravel(), a.ravel()[:1])
        elif change == 5:
            a = a.astype(np.float32)
        elif change == 6 and a.dtype == np.float64:
            a = np.full_like(a, _pick(rng, [np.nan, np.inf, 1e300]))
        else:
            a = a.ravel()[:-1]
        if key is None:
            one["words"] = a
        else:
            one["arrays"] = {**one["arrays"], key: a}
        return
    entered = dict(one["entered"])
    if kind == 2:
        site = _pick(rng, sorted(entered)) if entered else "east"
        entered = _pick(
            rng,
            [
                {s: k for s, k in entered.items() if s != site},
                {**entered, "nobody": [0, 0]},
                {**entered, site: [9, 9]},
                {**entered, site: [0]},
                {**entered, site: "x"},
                {},
            ],
        )
        one["entered"] = entered
    elif kind == 3:
        one["state"] = _pick(rng, [bytes(32), rng.bytes(32), b"", "text", None, rng.bytes(31)])
    elif kind == 4:
        key = _pick(rng, ["weight", "members", "noise_sd", "number", "attempt", "public"])
        one[key] = _pick(rng, [-1, 10**9, 0.5, float("nan"), float("inf"), "x", None, [], {}, 2**62])
    else:
        one.pop(_pick(rng, sorted(one)))


def _votes(rng: Rng, ask: Ask) -> None:
    votes = ask.get("votes")
    if not isinstance(votes, dict) or not votes:
        ask["votes"] = _pick(rng, [{"east": b""}, {"nobody": bytes(64)}, 5, [], "x"])
        return
    first = sorted(votes)[0]
    ask["votes"] = _pick(
        rng,
        [
            {},
            {first: votes[first]},
            dict.fromkeys(votes, votes[first]),
            {s: bytes(64) for s in votes},
            {s: v[:-1] for s, v in votes.items()},
            {"nobody": votes[first]},
            None,
            [votes[first]],
        ],
    )


def _agreed(rng: Rng, ask: Ask) -> None:
    ask["agreed"] = _pick(
        rng, [{"0": {}}, {"0": {"factors": [np.ones((1, 3000))]}}, 7, {"0": None}, {"1": [1]}, {"0": {"round": 2**40}}]
    )


def _verb(rng: Rng, ask: Ask) -> None:
    ask["what"] = _pick(
        rng,
        ["close", "mail", "take", "look", "catch", "", "__class__", "here", "done", 5, None],
    )


def _field(rng: Rng, ask: Ask) -> None:
    if rng.random() < 0.5:
        ask.pop(_pick(rng, sorted(k for k in ask if k != "what") or ["what"]), None)
    else:
        deep: Any = 1
        for _ in range(int(rng.integers(1, 11))):
            deep = [deep]
        ask[_pick(rng, ["step", "public", "extra", "late", "round"])] = _pick(
            rng, [deep, {"sensitivity": 1e-9}, np.zeros((1, 3000)), "x" * 1000, [1] * 500]
        )


def _letters(rng: Rng, ask: Ask) -> None:
    found = ask.get("letters")
    if not isinstance(found, list) or not found:
        ask["letters"] = _pick(rng, [[b"x"], [5], "x", [rng.bytes(200)], None])
        return
    data = bytearray(found[0])
    kind = int(rng.integers(5))
    if kind == 0:
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        ask["letters"] = [bytes(data)]
    elif kind == 1:
        ask["letters"] = [bytes(data[: int(rng.integers(len(data)))])]
    elif kind == 2:
        ask["letters"] = [*found, *found]
    elif kind == 3:
        ask["letters"] = []
    else:
        ask["letters"] = [rng.bytes(int(rng.integers(1, 300)))]


CLASSES: dict[str, Callable[[Rng, Ask], None]] = {
    "number": _number,
    "attempt": _attempt,
    "sites": _sites,
    "opened": _opened,
    "votes": _votes,
    "agreed": _agreed,
    "verb": _verb,
    "field": _field,
    "letters": _letters,
}


def mutated(rng: Rng, ask: Ask) -> tuple[str, Ask]:
    """One mutation of an ask."""
    name = _pick(rng, sorted(CLASSES))
    if ask.get("what") == "mail" and rng.random() < 0.5:
        name = "letters"
    made = copy.copy(ask)
    CLASSES[name](rng, made)
    return name, made
