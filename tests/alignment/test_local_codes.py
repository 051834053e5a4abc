"""Local codes put right from the codes that they occur with: proposals, the owner's answers, privacy, refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.alignment.local_codes import CodePairs
from polyclinic.alignment.matching import Directions, match
from polyclinic.errors import ConfigError, DataError
from polyclinic.methods.code_table import CodeTable
from polyclinic.protocol.schema import schema_of
from polyclinic.records.events.code_maps import CodePair

CODES, TOPICS = 30, 6


def records(patients: int, seed: int, together: bool = True) -> np.ndarray:
    """(patients, codes) 0 or 1: every patient has a topic, and mostly the topic's codes."""
    rng = np.random.default_rng(seed)
    topic = rng.integers(0, TOPICS, patients)
    rates = np.random.default_rng(7).gamma(0.4, 1.0, (TOPICS, CODES)) + 0.02
    chances = rates[topic] if together else np.broadcast_to(rates.mean(0), (patients, CODES))
    return (rng.random((patients, CODES)) < np.minimum(chances, 0.9)).astype(float)


def site(name: str, present: np.ndarray, labels: list[str], vocabulary: str = "public") -> pc.Site:
    where = np.argwhere(present)
    axis = pc.Axis("dx", tuple(labels), vocabulary=vocabulary)  # type: ignore[arg-type]
    return pc.Site(name, pc.SparseTensor(where, np.ones(len(where)), present.shape, ["patient", axis]))


COMMON = [f"c{k:02d}" for k in range(CODES)]
LOCAL = [f"x{(7 * k) % CODES:02d}" if k % 3 == 0 else c for k, c in enumerate(COMMON)]
TRUTH = {x: c for x, c in zip(LOCAL, COMMON) if x != c}


def hospitals(local: list[str] = LOCAL, together: bool = True) -> list[pc.Site]:
    order = np.argsort(local)
    last = records(1500, 3, together)[:, order]
    others = [site(n, records(700, k), COMMON) for k, n in enumerate(("a", "b", "c"))]
    return [*others, site("north", last, [local[k] for k in order])]


def right(pairs: CodePairs) -> int:
    return sum(TRUTH.get(p.local) == p.code for p in pairs)


def test_renamed_codes_are_put_right_and_nothing_is_renamed_before_the_owner_confirms(tmp_path: Path) -> None:
    sites = hospitals()
    pairs = pc.align_codes(sites, ["north"])
    assert right(pairs) >= 9 and len(TRUTH) == 10, list(pairs)
    assert pairs.coverage[0] < 0.8 < pairs.coverage[1]
    assert len(pairs.apply(sites, ["north"])[0].counts().axes[1].labels or ()) == CODES + len(TRUTH)
    file = pairs.write(tmp_path / "codes.csv")
    lines = file.read_text().splitlines()
    wrong = {p.local for p in pairs if TRUTH.get(p.local) != p.code}
    answers = [f"{line}{'no' if line.split(',')[2] in wrong else 'yes'}" for line in lines[1:]]
    file.write_text("\n".join([lines[0], *answers]) + "\n")
    read = CodePairs.read(file)
    assert len(read.answered("yes")) == right(pairs)
    joined = read.apply(sites, ["north"])
    assert len(joined[0].counts().axes[1].labels or ()) == CODES + len(TRUTH) - right(pairs)
    assert pairs.answered("yes") == ()


def test_the_names_of_local_codes_and_the_order_of_sites_change_nothing() -> None:
    sites = hospitals()
    first, again = pc.align_codes(sites, ["north"]), pc.align_codes(sites[::-1], ["north"])
    assert [(p.local, p.code, p.score) for p in first] == [(p.local, p.code, p.score) for p in again]


@pytest.mark.parametrize("broken", ["anchors permuted", "independent codes"])
def test_nothing_is_proposed_where_permuted_tables_do_as_well(broken: str) -> None:
    if broken == "independent codes":
        pairs = pc.align_codes(hospitals(together=False), ["north"])
    else:
        shuffled = np.random.default_rng(5).permutation(CODES)
        pairs = pc.align_codes(hospitals([LOCAL[k] for k in shuffled]), ["north"])
    assert "permuted tables" in pairs.refused and not len(pairs)
    assert pairs.coverage[0] == pairs.coverage[1] and len(pairs.open) == len(TRUTH)


def test_a_patient_changes_the_private_table_by_at_most_one() -> None:
    sites = hospitals()[:1]
    table = CodeTable(privacy=pc.Privacy(1.0))
    present = records(700, 0)
    for k in (0, 1, 2):
        fewer = [site("a", np.delete(present, k, 0), COMMON)]
        public = table.init_public(schema_of(table, sites), np.random.default_rng(0))
        step = table.next_step(public)
        assert step is not None and step.sensitivity == 1.0
        sums = [table.contribute(step, s[0], None, public, np.random.default_rng(0))[1] for s in (sites, fewer)]  # type: ignore[arg-type]
        change = sums[0].arrays["pairs"] - sums[1].arrays["pairs"]
        assert 0.5 < np.linalg.norm(change) <= 1.0


def test_a_private_alignment_is_charged_and_its_cards_are_formal() -> None:
    pairs = pc.align_codes(hospitals(), ["north"], privacy=pc.Privacy(8.0, 1e-6))
    assert right(pairs) >= 7
    for card in pairs.cards:
        assert (card.guarantee, card.adjacency) == ("formal", "patient") and card.epsilon == pytest.approx(8.0), (
            card.reasons
        )
    with pytest.raises(ConfigError, match="patients only"):
        pc.align_codes(hospitals(), ["north"], privacy=pc.Privacy(1.0, level="entry", clip=1.0))


def test_masked_sums_give_the_same_pairs() -> None:
    *common, north = hospitals()
    parts = [north.take(np.arange(north.patients) % 3 == k) for k in range(3)]
    local = [pc.Site(f"north {k}", p.tensor) for k, p in enumerate(parts)]
    names = [s.name for s in local]
    plain, masked = (pc.align_codes([*common, *local], names, aggregation=a) for a in ("plain", "masked"))
    assert [(p.local, p.code) for p in plain] == [(p.local, p.code) for p in masked]


def test_wrong_names_files_and_answers_are_told(tmp_path: Path) -> None:
    sites = hospitals()
    with pytest.raises(ConfigError, match="no site 'south'"):
        pc.align_codes(sites, ["south"])
    with pytest.raises(ConfigError, match="none is left with common ones"):
        pc.align_codes(sites, [s.name for s in sites])
    pairs = CodePairs((CodePair("dx", "x00", "c00"), CodePair("dx", "x21", "c00")))
    with pytest.raises(ConfigError, match="no pair of these local codes"):
        pairs.confirm(["x99"])
    with pytest.raises(DataError, match="two of its codes would have one name"):
        pairs.confirm().apply(sites, ["north"])
    file = tmp_path / "codes.csv"
    file.write_text("mode,local,code,accept\ndx,x00,c00,perhaps\n")
    with pytest.raises(DataError, match=r"line 2: accept: .*got 'perhaps'"):
        CodePairs.read(file)
    file.write_text("local,code\nx00,c00\n")
    with pytest.raises(DataError, match="line 2: mode: Field required"):
        CodePairs.read(file)


def test_a_released_model_names_codes_to_a_party_with_similar_patients_and_noise_lowers_it() -> None:
    """The attack of docs/explanation/threat-model.md: chance is 1 of 10."""
    unknown = [k for k in range(CODES) if k % 3 == 0]
    known = np.setdiff1d(np.arange(CODES), unknown)
    sites, own = hospitals(COMMON), records(3000, 11)

    def named(model: object) -> float:
        (columns,) = model.factors_  # type: ignore[attr-defined]
        released = columns @ columns.T
        held = own.T @ (own / np.maximum(own.sum(1, keepdims=True), 1))
        for q in (released, held):
            np.fill_diagonal(q, 0.0)
        shown = Directions.of(released * held.sum() / released.sum())
        rows, places, found = match(shown, Directions.of(held), (known, known), np.ones((CODES, CODES), bool))
        return float((rows[found.rows] == places[found.columns]).mean())

    assert named(pc.Topics(rank=TOPICS, aggregation="masked").fit(sites)) >= 0.8
    noisy = pc.DPEM(rank=TOPICS, privacy=pc.Privacy(0.02), planning_size=3600)
    assert named(noisy.fit(sites)) <= 0.6
