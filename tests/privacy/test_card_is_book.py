"""Card = book, for every method, way to add, number of starts, vocabulary and scaler; and who saw what = what a tap heard."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.methods.phenotypes import DistributedSGD
from polyclinic.methods.similarity.federated import ConsensusUnPSL
from polyclinic.privacy.card.card import Card
from polyclinic.privacy.gate.gate import ReleaseGate
from polyclinic.protocol.aggregators import by_name
from polyclinic.protocol.loop import Simulation
from polyclinic.tensors.axis import Axis

SUMS = ("plain", "masked", "subspace", "cycle", "median")
ENTRY = {"privacy": pc.Privacy(1.2, 1e-4, level="entry", clip=1.0), "zeros": "missing"}
PAID = {"privacy": pc.Privacy(1.0)}
SMALL: dict[str, Any] = {"rank": 2, "rounds": 2, "seed": 1}

TENSORS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "trip": (pc.TRIP, {}),
    "sumals": (pc.SumALS, {}),
    "dpfact": (pc.DPFact, {}),
    "dpfact entry": (pc.DPFact, ENTRY),
    "localtf": (pc.LocalTF, {}),
    "localtf entry": (pc.LocalTF, ENTRY),
    "distributedsgd": (DistributedSGD, {}),
    "distributedsgd entry": (DistributedSGD, ENTRY),
    "dpem": (pc.DPEM, PAID),
}
FEATURES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "mixture": (pc.GaussianMixture, {"n_components": 2, "rounds": 2}),
    "mixture paid": (pc.GaussianMixture, {"n_components": 2, "radius": 5.0, "paid_rounds": 2, **PAID}),
    "standardizer": (pc.Standardizer, {}),
    "standardizer paid": (pc.Standardizer, {"radius": 5.0, **PAID}),
    "pca": (pc.FederatedPCA, {"n_components": 1}),
    "pca paid": (pc.FederatedPCA, {"n_components": 1, "radius": 5.0, **PAID}),
    "unpsl": (ConsensusUnPSL, {"rounds": 2, "rank": 2}),
}


@cache
def tensors(vocabulary: str) -> list[pc.Site]:
    made = []
    for s in pc.datasets.planted_counts(240, 12, 15, phenotypes=2, codes=(4, 5), sites=3, seed=0):
        t = s.counts()
        axes = [t.axes[0], *(replace(Axis.of(a, n), vocabulary=vocabulary) for n, a in enumerate(t.axes[1:], 1))]  # type: ignore[arg-type]
        made.append(replace(s, tensor=type(t)(t.coords, t.values, t.shape, axes)))
    return made


def matrices() -> list[pc.Site]:
    rng = np.random.default_rng(0)
    names = ("east", "north", "south")
    return [pc.Site(n, features=rng.normal(size=(60, 3)), labels=np.arange(60) % 2) for n in names]


def agree(card: Card, doors: dict[str, ReleaseGate]) -> None:
    """The card's epsilon is that of the worst book; none where a line of the book has no bound."""
    books = [d.ledger.charges() for d in doors.values()]
    if card.epsilon is None:
        at = card.delta or 1e-6
        paid = [c for b in books for c in b if c.paid]
        worst = max(d.ledger.epsilon(at) for d in doors.values())
        assert not paid or math.isinf(worst), "the books have a bound, and the card has none"
        return
    assert card.delta is not None
    assert card.adjacency is not None
    worst = max(d.ledger.epsilon(card.delta, adjacency=card.adjacency) for d in doors.values())
    assert card.epsilon == pytest.approx(worst, abs=1e-9)
    if card.guarantee == "formal":
        assert all(c.paid and c.formal and c.adjacency == "patient" for b in books for c in b)


def ran(card: Card, doors: dict[str, ReleaseGate]) -> None:
    books = [d.ledger.charges() for d in doors.values()]
    assert card.aggregation == ", ".join(sorted({c.by.name for b in books for c in b}))


def fitted(model: Any, sites: list[pc.Site], doors: dict[str, ReleaseGate]) -> Card:
    return model.fit(sites, doors=doors).privacy_  # type: ignore[no-any-return]


EVERY_SUM = (
    "trip",
    "dpfact entry",
    "dpem",
    "mixture",
    "mixture paid",
)  # others: one that shows parts, one that hides them


def pairs(names: Iterable[str], sums: Iterable[str]) -> list[tuple[str, str]]:
    return [(n, a) for n in names for a in sums if n in EVERY_SUM or a in ("plain", "masked")]


@pytest.mark.parametrize(("name", "adder"), pairs(TENSORS, SUMS))
def test_tensors(name: str, adder: str) -> None:
    kind, more = TENSORS[name]
    patient = more.get("privacy") is not None and more["privacy"].level == "patient"
    # several private starts are refused: see below; that lines of starts are added does not depend on the way to add
    for starts in (1,) if patient or adder not in ("plain", "masked") else (1, 2):
        for vocabulary in ("public", "data") if starts == 1 else ("public",):
            sites = tensors(vocabulary)
            doors = {s.name: ReleaseGate(s.name) for s in sites}
            model = kind(**SMALL, n_starts=starts, aggregation=adder, **more)
            card = fitted(model, sites, doors)
            agree(card, doors)
            ran(card, doors)
            if patient:
                assert (card.guarantee == "formal") == (vocabulary != "data" and adder != "cycle")
            lines = sum(len(d.ledger.charges()) for d in doors.values())
            assert len(model.happened_.lines) == lines, "every line of every start, and no other"


@pytest.mark.parametrize("starts", [2, 3])
def test_several_private_starts_are_refused_before_anything_is_paid(starts: int) -> None:
    with pytest.raises(pc.errors.ConfigError, match="every start"):
        pc.DPEM(**SMALL, n_starts=starts, **PAID)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "adder"), pairs(FEATURES, SUMS))
def test_features(name: str, adder: str) -> None:
    kind, more = FEATURES[name]
    for scaler in (None, {}, {"radius": 5.0, **PAID}) if adder == "masked" else (None,):
        for starts in (1, 2) if kind is pc.GaussianMixture and "privacy" not in more else (1,):
            sites = matrices()
            doors = {s.name: ReleaseGate(s.name) for s in sites}
            if scaler is not None:
                sites = pc.Standardizer(**scaler).fit(sites, doors=doors).transform(sites)  # type: ignore[arg-type]
            model = kind(aggregation=adder, **more, **({} if starts == 1 else {"n_starts": starts}))
            card = fitted(model, sites, doors)
            agree(card, doors)
            ran(card, doors)
            assert len(model.happened_.lines) == sum(len(d.ledger.charges()) for d in doors.values())


# ---- who saw what


def heard(
    model: Any, sites: list[pc.Site], adder: str, doors: dict[str, ReleaseGate]
) -> tuple[set[tuple[str, str]], Card, list[Any]]:
    """Who received which kind of message from a site; the card; and every line of the books."""
    got: set[tuple[str, str]] = set()

    def tap(m: Any) -> None:
        got.add(("coordinator" if m.to == "coordinator" else "site", m.kind))

    model.publish(Simulation(model, sites, adder=by_name(adder), tap=tap, doors=doors).run())
    return got, model.privacy_, [c for d in doors.values() for c in d.ledger.charges()]


SECRET = {"masked", "shares", "inbox", "unmask", "keys", "advertise", "survivors", "signed", "signatures"}
FAMILIES = {**TENSORS, **FEATURES}


@pytest.mark.parametrize(
    ("name", "adder"), pairs(FAMILIES, ["plain", "masked", "cycle", "median", "krum", "geometric"])
)
def test_who_saw_what_is_what_a_tap_heard(name: str, adder: str) -> None:
    kind, more = FAMILIES[name]
    sites = tensors("public") if name in TENSORS else matrices()
    sites = [*sites, *(replace(s, name=f"{s.name}2") for s in sites)]  # krum wants more than three
    given = SMALL if name in TENSORS else {}
    got, card, lines = heard(kind(**(given | more)), sites, adder, {s.name: ReleaseGate(s.name) for s in sites})
    saw = card.saw
    each = ("coordinator", "contribution") in got
    assert each == ("each site's contribution" in saw.get("the coordinator", ""))
    assert (("coordinator", "masked") in got) == (saw.get("the coordinator", "").startswith("the sum over sites"))
    assert any(to == "coordinator" for to, _ in got) == ("the coordinator" in saw)
    to_sites = {k for to, k in got if to == "site"}
    assert bool(to_sites & SECRET) == ("masked messages" in saw.get("other sites", ""))
    assert ("pass" in to_sites) == ("running sum" in saw.get("the next site", ""))
    assert ("total" in to_sites) == ("every site" in saw)
    assert to_sites <= SECRET | {"hello", "pass", "total"}, "no site receives another's contribution"
    exact = "exact" in " ".join(saw.values())
    assert exact == (not all(c.paid for c in lines))


def test_what_a_step_that_shows_each_part_says() -> None:
    """LocalModel gathers: the coordinator has each hospital's own factors, and a sum that hides them refuses."""
    model = pc.LocalModel(rank=2, rounds=2).fit(tensors("public"))
    assert model.privacy_.saw["the coordinator (shown)"] == "each site's own factors"
    with pytest.raises(pc.errors.ConfigError, match="only ever reveals the sum"):
        pc.LocalModel(rank=2, rounds=2, aggregation="masked").fit(tensors("public"))
