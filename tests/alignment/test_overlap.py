"""Patients at exactly one, two, three ... hospitals: by the ring, directly, and with noise."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.alignment.ecdh_ring import _hash
from polyclinic.alignment.overlap import overlap_by_ring
from polyclinic.errors import DataError
from polyclinic.protocol.interfaces import Message


def planted(sites: int, seed: int, people: int = 60) -> dict[str, list[str]]:
    """Hospital -> identifiers; a few people are at several hospitals."""
    rng = np.random.default_rng(seed)
    number = 1 + rng.binomial(sites - 1, 0.15, people)
    where = [rng.permutation(sites)[:k] for k in number]
    return {f"h{s}": [f"person {p}" for p in range(people) if s in where[p]] for s in range(sites)}


def direct(lists: dict[str, list[str]]) -> dict[int, int]:
    return dict(Counter(Counter(p for x in lists.values() for p in x).values()))


def hospital(name: str, people: list[str]) -> pc.Site:
    coords = [[i, 0] for i in range(len(people))]
    axes = [pc.Axis("patient", tuple(people)), pc.Axis("dx", ("x",), vocabulary="public")]
    return pc.Site(name, pc.SparseTensor(coords, [1.0] * len(people), (len(people), 1), axes))


@pytest.mark.parametrize("sites", [3, 5])
def test_the_ring_counts_as_a_direct_comparison_does(sites: int) -> None:
    lists = planted(sites, sites)
    found = overlap_by_ring(lists, b"shared by the hospitals")
    assert dict(found.counts) == direct(lists) and len(found.counts) > 1
    here = pc.patient_overlap([hospital(n, x) for n, x in lists.items()])
    assert here.counts == dict(sorted(direct(lists).items()))
    assert here.most == found.most == max(direct(lists))
    assert here.words().startswith("measured: ") and here.words().endswith(f"at most {here.most}")


def test_the_transcript_holds_counts_and_points_that_no_dictionary_opens() -> None:
    lists, sent = planted(3, 1), list[Message]()
    overlap_by_ring(lists, b"secret", tap=sent.append)
    told = [m for m in sent if m.sender == "coordinator"]
    assert {m.to for m in told} == set(lists)
    assert {frozenset(m.body) for m in told} == {frozenset({"counts", "signature"})}
    assert all(m.body["counts"].tolist() == [direct(lists).get(k, 0) for k in (1, 2, 3)] for m in told)
    assert {m.kind for m in sent if m.sender != "coordinator"} == {"hello", "tags", *(f"list:{n}" for n in lists)}
    points = {t.tobytes() for m in sent if m.kind == "tags" for t in m.body["points"]}
    everybody = {p for x in lists.values() for p in x}
    assert len(points) == len(everybody)
    assert not points & {_hash("patients", p) for p in everybody}
    again = list[Message]()
    overlap_by_ring(lists, b"secret", tap=again.append)
    assert not points & {t.tobytes() for m in again if m.kind == "tags" for t in m.body["points"]}


def test_noisy_counts_are_charged_at_every_hospital() -> None:
    lists = planted(3, 2, people=3000)
    sites = [hospital(n, x) for n, x in lists.items()]
    noisy = pc.patient_overlap(sites, privacy=pc.Privacy(8.0, 1e-6))
    assert noisy.card is not None
    assert (noisy.card.guarantee, noisy.card.adjacency) == ("formal", "patient")
    assert noisy.card.epsilon == pytest.approx(8.0)
    assert any("one patient is at no more than 3 sites" in a for a in noisy.card.assumptions)
    assert noisy.most == 3 and noisy.words().startswith("measured with noise")
    for k, n in direct(lists).items():
        assert abs(noisy.counts[k] - n) < 100  # 20 standard deviations of the noise


def test_patients_without_names_are_refused() -> None:
    with pytest.raises(DataError, match="site 'a': its patients have no names"):
        pc.patient_overlap([pc.Site("a", pc.SparseTensor([[0, 0]], [1.0], (1, 1)))])
