"""`site forget`: one patient goes from every stored study of a site, and no later study reads the person."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.node.test_cancelling import closed
from tests.node.test_flare_halves import TRIP, World

from polyclinic.cli import main
from polyclinic.config import Node, Study
from polyclinic.errors import ConfigError
from polyclinic.node.admission.forgetting import forget, holding, statement
from polyclinic.node.enrolment.folders import SiteFolder, alone, append_event
from polyclinic.privacy.gate.owner_rules import ledger_of
from polyclinic.records.ingest import ingest
from polyclinic.tensors.sparse import SparseTensor

MARKER = "south-7"  # a patient that the hospital's records hold


def readable(file: Path) -> bytes:
    """Everything that a file holds, unpacked: text in archives, columns of tables, 32-bit letters of arrays."""
    import pyarrow.parquet as parquet

    data = file.read_bytes()
    if file.suffix == ".parquet":
        data += str(parquet.read_table(file).to_pydict()).encode()
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(io.BytesIO(data)) as z:
            data += b" ".join(z.read(n) for n in z.namelist())
    return data + data.replace(b"\0", b"")


def holders(home: Path, patient: str = MARKER) -> list[str]:
    """Files below a site's folder with the patient's identifier as a word."""
    import re

    word = re.compile(rb"(?<![0-9A-Za-z])" + patient.encode() + rb"(?![0-9])")
    return [str(f) for f in home.rglob("*") if f.is_file() and word.search(readable(f))]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def admitted(world: World, name: str) -> Any:
    """A study whose data lie at every site, as after a stop."""
    order = world.order(world.study(name, TRIP.format(3, "plain")))
    world.open(order)
    for desk in world.desks.values():
        desk.loaded.result(60)
    return order


def test_no_byte_of_the_patient_remains_below_the_sites_folder(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = world.order(world.study("finished", TRIP.format(1, "plain")))
    world.open(finished)
    world.lead(finished).run()
    stopped = [admitted(world, n) for n in ("stopped", "also-stopped")]
    site = world.sites["south"]
    ingest(site.node, Study.read(world.root / "studies" / "stopped.toml"), site.node.home)  # by hand
    append_event(site.events, event="failed", what=f"a fault in the records of {MARKER}")
    (site.path / "worker.log").write_text(f"patient {MARKER}: row 3\npatient south-70: row 9\n")
    before = holders(site.node.home)
    assert {Path(f).name for f in before} >= {"tensor.npz", "labels.parquet", "events.parquet", "events.jsonl"}, before
    with pytest.raises(SystemExit, match="0"):
        main(["site", "forget", MARKER, "--node", str(site.node_path), "--yes", "--json"])
    value = json.loads(capsys.readouterr().out)
    assert holders(site.node.home) == []
    assert value["left"] == []
    assert sorted(value["studies"]) == sorted(o.id for o in stopped)
    assert MARKER not in json.dumps(value), "what is handed out has no identifier"
    assert "south-70: row 9" in (site.path / "worker.log").read_text(), "another patient's line stays"
    for order in stopped:
        assert closed(world, order, "south") == ["forgotten"]
    assert closed(world, finished, "south") == ["finished"]
    assert not (site.study(finished.digest) / "outcome.npz").exists()
    book = ledger_of(site.node)
    assert book.verify() == ()
    assert MARKER.encode() not in book.path.read_bytes()  # type: ignore[union-attr]
    for other in ("north", "east"):
        assert closed(world, stopped[0], other) == []


def test_later_studies_leave_the_patient_out(world: World, tmp_path: Path) -> None:
    study = Study.read(world.study("later", TRIP.format(1, "plain")))
    site = world.sites["south"]
    patients = set(ingest(site.node, study, tmp_path / "before").site.counts().axes[0].labels or ())
    assert MARKER in patients
    forget(site, MARKER, by="officer")
    again = Node.read(site.node_path)
    made = ingest(again, study, tmp_path / "after")
    assert patients - set(made.site.counts().axes[0].labels or ()) == {MARKER}
    tensor = SparseTensor.load(tmp_path / "after" / "tensor.npz")
    assert MARKER not in (tensor.axes[0].labels or ())


def test_the_list_is_kept_and_grows(world: World) -> None:
    site = world.sites["south"]
    mode = site.node_path.stat().st_mode
    for patient in (MARKER, "south-8", MARKER, ' odd, "name" '):
        done = forget(SiteFolder.of(site.node_path), patient, by="officer")
    assert done.optout.read_text() == f'patient_id\n{MARKER}\nsouth-8\n"odd, ""name"""\n'
    assert done.optout.stat().st_mode & 0o077 == 0
    assert site.node_path.read_text().count("[exclude]") == 1
    assert site.node_path.stat().st_mode == mode


def test_a_list_without_a_last_line_end_and_other_settings_stay(world: World) -> None:
    site = world.sites["south"]
    listed = site.node_path.parent / "gone.csv"
    listed.write_text("patient\nsouth-1")
    kept = site.node_path.read_text() + '\n[exclude]\npatients = "gone.csv"\n'
    site.node_path.write_text(kept)
    forget(SiteFolder.of(site.node_path), MARKER, by="officer")
    assert listed.read_text() == f"patient\nsouth-1\n{MARKER}\n"
    assert site.node_path.read_text() == kept


def test_a_study_that_runs_without_the_patient_goes_on(world: World) -> None:
    order = admitted(world, "others")
    site = world.sites["south"]
    assert holding(site, "south-700") == []
    done = forget(site, "south-700", by="officer")
    assert done.studies == ()
    assert closed(world, order, "south") == []
    assert (site.study(order.digest) / "data" / "tensor.npz").exists()
    assert "no stored study" in "\n".join(statement(done))


def test_a_study_that_is_being_read_ends_too(world: World) -> None:
    order = admitted(world, "reading")
    site = world.sites["south"]
    (site.study(order.digest) / "data" / "manifest.json").unlink()  # it is written last
    assert [o.id for o in holding(site, "south-700")] == [order.id]
    assert forget(site, "south-700", by="officer").studies == (order.id,)


def test_a_file_that_cannot_be_read_counts_as_holding_the_patient(world: World) -> None:
    order = admitted(world, "torn")
    site = world.sites["south"]
    (site.study(order.digest) / "data" / "tensor.npz").write_bytes(b"PK torn")
    assert [o.id for o in holding(site, "nobody")] == [order.id]


def test_nothing_more_leaves_in_a_study_that_ended_here(world: World) -> None:
    order = admitted(world, "leaves")
    forget(world.sites["south"], MARKER, by="officer")
    world.open(order)  # the node starts the worker again
    assert wait_for_stage(world, "south") == ("refused", "closed")
    assert not ledger_of(world.sites["south"].node).charges(study="leaves")


def wait_for_stage(world: World, name: str) -> tuple[str, str | None]:
    world.desks[name].loaded.result(60)
    return world.desks[name].study.stage, world.desks[name].study.why


@pytest.mark.parametrize("patient", ["", "  ", "a\nb", "x\x00"])
def test_what_is_no_identifier_changes_nothing(world: World, patient: str) -> None:
    site = world.sites["south"]
    before = site.node_path.read_bytes()
    with pytest.raises(ConfigError, match="no identifier"):
        forget(site, patient, by="officer")
    assert site.node_path.read_bytes() == before
    assert not (site.node_path.parent / "optout.csv").exists()


def test_a_courier_at_work_is_stopped_first(world: World) -> None:
    site = world.sites["south"]
    with alone(site.path / "courier" / "lock", "the courier"), pytest.raises(ConfigError, match="at work"):
        forget(site, MARKER, by="officer")


def test_a_short_number_in_logs_is_reported_and_not_replaced(world: World) -> None:
    site = world.sites["south"]
    append_event(site.events, event="round", number=12)
    before = site.events.read_text()
    done = forget(site, "12", by="officer")
    assert site.events.read_text().startswith(before)
    assert site.events in done.left


def test_a_link_below_the_folder_is_not_followed(world: World, tmp_path: Path) -> None:
    site = world.sites["south"]
    outside = tmp_path / "outside.log"
    outside.write_text(f"{MARKER} outside")
    (site.path / "link.log").symlink_to(outside)
    forget(site, MARKER, by="officer")
    assert outside.read_text() == f"{MARKER} outside"


def test_the_identifier_may_come_from_standard_input(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = world.sites["south"]
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{MARKER}\n"))
    with pytest.raises(SystemExit, match="0"):
        main(["site", "forget", "-", "--node", str(site.node_path), "--yes"])
    assert "Statement of south" in capsys.readouterr().out
    assert MARKER in (site.node_path.parent / "optout.csv").read_text()
