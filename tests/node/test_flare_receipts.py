"""Receipts of a study between hosts: the model file carries the signed end of every site's book."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from tests.node import test_flare_halves as halves

import polyclinic as pc
from polyclinic.cli import main
from polyclinic.models.receipts import receipts
from polyclinic.node.flare.result import read_model, write_outcome
from polyclinic.node.flare.run_study import publish
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.privacy.ledger.signed_head import SignedHead, heads_of


def call(*arguments: object) -> None:
    with pytest.raises(SystemExit) as e:
        main([str(a) for a in arguments])
    assert not e.value.code


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Any:
    world = halves.World(tmp_path_factory.mktemp("receipts"))
    order = world.order(world.study("trip-receipts", halves.TRIP.format(2, "masked")))
    world.open(order)
    lead = world.lead(order)
    run = world.coordinator.run(order.id)
    write_outcome(run, lead.run())
    publish(run, order, read_model(run, order))
    return world, run


def test_the_coordinators_model_file_carries_every_sites_signed_head(
    done: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    world, run = done
    model = pc.load(run)
    found = receipts(model, sites=tuple(world.sites))
    assert [r.site for r in found] == sorted(world.sites)
    assert {r.state for r in found} == {"signed"}
    for r in found:
        book = ledger_of(world.sites[r.site].node)
        assert r.head is not None
        assert (r.head.count, r.head.hash, r.head.key) == (book.head.count, book.head.hash, book.head.key)
        assert r.faults(book) == []
    call("model", "verify", run, "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["whole"] is True
    assert {v["state"] for v in told["receipts"].values()} == {"signed"}
    node = world.root / sorted(world.sites)[0] / "node.toml"
    call("model", "verify", run / "model.phenotypes", "--node", node)
    assert "and in your ledger" in capsys.readouterr().out


def test_a_receipt_that_its_book_did_not_sign_is_found(
    done: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, run = done
    model = pc.load(run)
    told = dict(model.origin.receipts)
    site = sorted(told)[0]
    for name, lie in (
        ("longer", {"count": told[site]["count"] + 1}),  # type: ignore[index]
        ("other", {"site": "elsewhere"}),
        ("cut", {"signature": ""}),
    ):
        path = model.with_origin(receipts={**told, site: {**told[site], **lie}}).save(tmp_path / f"{name}.phenotypes")  # type: ignore[dict-item]
        with pytest.raises(SystemExit) as e:
            main(["model", "verify", str(path)])
        assert e.value.code == 3
        assert f"{site}: the receipt lacks its site's signature" in capsys.readouterr().err
    assert [r.state for r in receipts(model, sites=(*told, "west")) if r.site == "west"] == ["missing"]


def test_the_owner_finds_a_book_that_was_put_back(done: Any, tmp_path: Path) -> None:
    world, run = done
    model = pc.load(run)
    name = sorted(world.sites)[0]
    real = ledger_of(world.sites[name].node)
    assert real.path is not None
    short = tmp_path / real.path.name
    short.write_bytes(b"".join(real.path.read_bytes().splitlines(keepends=True)[:-1]))
    (tmp_path / f"{real.path.name}.key").write_bytes(real.path.with_name(f"{real.path.name}.key").read_bytes())
    (receipt,) = [r for r in receipts(model) if r.site == name]
    assert any(
        "is not the one that the head that was exported names" in f for f in receipt.faults(Ledger(short, site=name))
    )


def test_heads_that_nobody_signed_are_not_kept(done: Any) -> None:
    world, _ = done
    name = sorted(world.sites)[0]
    head = ledger_of(world.sites[name].node).head
    assert heads_of({name: asdict(head)}) == {name: head}
    assert heads_of({"west": asdict(head), name: asdict(replace(head, count=1)), "x": 3, "y": {"count": "?"}}) == {}
    assert heads_of(None) == {}
    assert not SignedHead(1, "0" * 64).valid
