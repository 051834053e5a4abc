"""Alignment: every way gives the same rows up to a permutation; the ring shows no code; bad input is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyclinic as pc
from polyclinic.alignment import align_by_ring, align_to
from polyclinic.alignment.ecdh_ring import RingSite, ring, step_of
from polyclinic.errors import ConfigError, MessageRefused, ProtocolMismatch
from polyclinic.protocol.interfaces import Message, Roster
from polyclinic.protocol.wire.sealed import SealedMessage, introduce
from polyclinic.tensors.axis import read_public_axis
from polyclinic_papers.polynomial import legacy_insecure

vocabularies = st.lists(st.sets(st.sampled_from("abcdefgh"), max_size=5), min_size=2, max_size=4)


@settings(max_examples=15, deadline=None)
@given(vocabularies)
def test_ring_gives_equal_codes_equal_places(sets: list[set[str]]) -> None:
    codes = {f"s{k}": sorted(v) for k, v in enumerate(sets)}
    places, size = ring(codes, "drug")
    union = set().union(*sets)
    assert size == len(union)
    where = {}  # type: ignore[var-annotated]
    for site, own in codes.items():
        assert set(places[site]) == set(own)
        for c, i in places[site].items():
            assert where.setdefault(c, i) == i
    assert sorted(where.values()) == list(range(size))


@pytest.mark.parametrize(
    "sets", [["ab", "cd", "e"], ["ab", "ab", "ab"], ["a", "", "b"]], ids=["disjoint", "same", "empty"]
)
def test_ring_on_disjoint_identical_and_empty_lists(sets: list[str]) -> None:
    places, size = ring({f"s{k}": list(v) for k, v in enumerate(sets)}, "x", pad=8)
    assert size == len(set("".join(sets)))
    assert [len(p) for p in places.values()] == [len(v) for v in sets]


def test_padding_hides_how_many_codes_a_site_has() -> None:
    lengths = set()
    ring(
        {"a": ["x"], "b": ["x", "y", "z"], "c": []},
        "m",
        pad=7,
        tap=lambda m: lengths.add(len(m.body["sealed"])) if m.kind.startswith("list") else None,
    )
    assert lengths == {12 + 7 * 32 + 16}  # nonce, points, tag of the seal


def test_letters_of_the_ring_are_sealed_and_tell_nothing_to_a_relay() -> None:
    """Whoever carries the letters sees no point of a list: the same secrets never show twice, nor the hash of a code."""
    from polyclinic.alignment.ecdh_ring import _hash

    seen: list[bytes] = []
    places, _ = ring(
        {"a": ["x", "y"], "b": ["y"], "c": ["z"]},
        "m",
        tap=lambda m: seen.append(b"".join(bytes(v) for v in m.body.values() if isinstance(v, bytes))),
    )
    assert set(places["a"]) == {"x", "y"}
    assert all(_hash("m", c) not in text for c in "xyz" for text in seen)


def test_sites_on_a_public_list_are_left_alone() -> None:
    axes = ["patient", pc.Axis("drug", ("p", "q"), None, "public"), pc.Axis("diagnosis", ("d",))]
    sites = [pc.Site(n, pc.SparseTensor([[0, 1, 0]], [1.0], (1, 2, 1), axes=axes)) for n in "ab"]  # type: ignore[arg-type]
    aligned = align_by_ring(sites)
    assert aligned[0].tensor is not None
    assert aligned[0].tensor.axes[1].labels == ("p", "q")
    assert aligned[0].tensor.axes[2].labels == ("diagnosis 0",)


def test_secrets_are_gone_after_the_ring() -> None:
    names = ("a", "b", "c")
    identities, keys = introduce([*names, "coordinator"])
    roster = Roster(names, "coordinator", threshold=3, keys=keys)
    parties = {n: RingSite(SealedMessage(n, roster, step_of("m"), identities[n]), "m", ["x", n]) for n in names}
    queue = [m for p in parties.values() for m in p.start()]
    while queue:
        m = queue.pop(0)
        if m.to in parties:
            queue += parties[m.to].receive(m)
    assert all(p._secret is None for p in parties.values())


def test_tampered_lists_are_refused() -> None:
    names = ("a", "b", "c")
    identities, keys = introduce([*names, "coordinator"])
    roster = Roster(names, "coordinator", threshold=3, keys=keys)
    a, b, c = (RingSite(SealedMessage(n, roster, step_of("m"), identities[n]), "m", ["x"]) for n in names)
    hellos = [m for p in (a, b, c) for m in p.start()]
    (letter,) = [x for m in hellos if m.to == "a" for x in a.receive(m)]
    assert b.receive(letter) == []  # it overtook the hellos, and waits
    with pytest.raises(MessageRefused, match="out of turn"):
        b.receive(letter)
    b._early.clear()
    for m in hellos:
        if m.to == "b":
            b.receive(m)
    sealed = bytearray(letter.body["sealed"])
    sealed[20] ^= 1
    with pytest.raises(MessageRefused, match="signature"):
        b.receive(Message(**{**letter.__dict__, "body": {**letter.body, "sealed": bytes(sealed)}}))
    with pytest.raises(MessageRefused, match="does not open"):
        b.receive(a.envelope.seal("b", "list:a", {"sealed": bytes(sealed)}))
    short = a._lines["b"].seal(b"\0" * 31, "list:a")
    with pytest.raises(MessageRefused):
        b.receive(a.envelope.seal("b", "list:a", {"sealed": short}))
    with pytest.raises(MessageRefused, match="not before"):
        b.receive(c.envelope.seal("b", "list:c", {"sealed": b""}))
    b.receive(letter)
    with pytest.raises(MessageRefused):
        b.receive(letter)


def test_too_long_or_doubled_lists_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most 65,536"):
        ring({"a": [str(i) for i in range(65_537)], "b": []}, "m")
    with pytest.raises(ConfigError, match="listed twice"):
        ring({"a": ["x", "x"], "b": []}, "m")


def test_all_alignments_give_the_same_model_after_relabelling(tmp_path: Path) -> None:
    sites = pc.datasets.icu_network(patients=240, seed=0, own_vocabulary=True)
    union, hidden = pc.align(sites), align_by_ring(sites)
    lists = {}
    for n, mode in enumerate(("procedure", "diagnosis"), start=1):
        path = tmp_path / f"{mode}.csv"
        assert union[0].tensor is not None
        codes = union[0].tensor.axes[n].labels
        path.write_text("code,name\n" + "".join(f"{c},\n" for c in (*codes, "extra")))  # type: ignore[misc]
        lists[mode] = read_public_axis(mode, path)
    public = align_to(sites, lists)
    assert public[0].tensor is not None
    assert public[0].tensor.axes[1].vocabulary == "public" and hidden[0].tensor.axes[1].vocabulary == "data"  # type: ignore[union-attr]
    scores = [pc.SumALS(rank=4, rounds=1, warmup=0, seed=0).fit(s).history_[-1]["bytes_up"] for s in (union, hidden)]
    assert scores[0] == scores[1]
    for a, b in zip(union, hidden):
        assert a.tensor is not None
        assert b.tensor is not None
        assert a.tensor.nnz == b.tensor.nnz
        for n in (1, 2):
            assert sites[0].tensor is not None
            order = [int(x) for x in np.argsort([_place(b, n, c) for c in sites[0].tensor.axes[n].labels])]  # type: ignore[union-attr]
            assert len(order) == len(set(order))
    assert union[0].tensor is not None
    start = [np.random.default_rng(0).random((d, 4)) for d in union[0].tensor.shape[1:]]
    moved = [f[_moved(union, hidden, n)] for n, f in enumerate(start, start=1)]
    one = pc.CPALS(rank=4, rounds=15, tol=0, warmup=0).fit(union, start=start)
    other = pc.CPALS(rank=4, rounds=15, tol=0, warmup=0).fit(hidden, start=moved)
    assert one.quality(union)["fit"] == pytest.approx(other.quality(hidden)["fit"], abs=1e-9)


def _place(site: pc.Site, mode: int, code: str) -> int:
    assert site.tensor is not None
    names = site.tensor.axes[mode].names
    return next((i for i, t in enumerate(names) if t.split(" ")[0] == code), -1)  # type: ignore[arg-type]


def _moved(union: list[pc.Site], hidden: list[pc.Site], mode: int) -> list[int]:
    """Row of the union that stands at each place of the ring's order."""
    assert hidden[0].tensor is not None
    at = [-1] * hidden[0].tensor.shape[mode]
    for s in hidden:
        assert s.tensor is not None
        for place, text in enumerate(s.tensor.axes[mode].names):  # type: ignore[arg-type]
            if text:
                assert union[0].tensor is not None
                at[place] = union[0].tensor.axes[mode].labels.index(text.split(" ")[0])  # type: ignore[union-attr]
    return at


def test_a_code_or_a_mode_without_a_public_list_is_refused() -> None:
    site = pc.Site("a", pc.SparseTensor([[0, 0]], [1.0], (1, 1), axes=[pc.Axis("drug", ("own",))]))
    with pytest.raises(ProtocolMismatch, match="'own'"):
        align_to([site], {"drug": pc.Axis("drug", ("x",), vocabulary="public")})
    with pytest.raises(ProtocolMismatch, match="site 'a': drug"):
        align_to([site], {})


def test_polynomials_are_refused_unless_allowed(rng: np.random.Generator) -> None:
    with pytest.raises(ConfigError, match="shows every hospital's codes"):
        legacy_insecure({"a": [1]}, rng=rng)
    places, size, _ = legacy_insecure({"a": [1, 2, 3], "b": [2, 3, 9], "c": [3]}, rng=rng, allow_insecure=True)
    assert size == 4
    assert places["a"][2] == places["b"][2] and places["a"][3] == places["b"][3] == places["c"][3]
    assert len({*places["a"].values(), *places["b"].values()}) == 4


@pytest.mark.slow
def test_ring_of_ten_sites_and_a_thousand_codes_counts_their_union() -> None:
    codes = {f"s{k}": [f"c{i}" for i in range(100 * k, 100 * k + 1000)] for k in range(10)}
    _, size = ring(codes, "diagnosis")
    assert size == 1900
