"""``polyclinic align`` and ``polyclinic overlap``: from records to a sheet, the owner's answers, and a study that uses them."""

from __future__ import annotations

import csv
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.alignment.test_local_codes import COMMON, LOCAL, TRUTH, hospitals, records

import polyclinic as pc
from polyclinic.alignment.local_codes import CodePairs
from polyclinic.cli import main
from polyclinic.config import Node, Study
from polyclinic.errors import DataError
from polyclinic.node.signed_study import make_order
from polyclinic.protocol.wire.sealed import Identity
from polyclinic.records.events.code_maps import CodePair, read_map
from polyclinic.records.ingest import ingest
from polyclinic.studies.code_pairs import digest
from polyclinic.studies.simulate import sites_of

METHOD = '[method]\nname = "topics"\nrank = 3\nrounds = 2\naggregation = "plain"\n'


def node(folder: Path, name: str, present: np.ndarray, codes: list[str], people: list[str] | None = None) -> str:
    people = people or [f"{name}{i}" for i in range(len(present))]
    with (folder / f"{name}.csv").open("w") as f:
        f.write("patient_id,visit_id,kind,code,time\n")
        f.writelines(f"{people[i]},v{name}{i},dx,{codes[j]},2020-01-01\n" for i, j in np.argwhere(present))
    (folder / f"{name}.toml").write_text(f'[site]\nname = "{name}"\n[source]\nkind = "files"\nevents = "{name}.csv"\n')
    return f'[[site]]\nnode = "{name}.toml"\n'


def study(folder: Path, sites: str, more: str = "", tensor: str = "") -> Path:
    head = f'[study]\nname = "codes"\n[tensor]\nmodes = ["dx"]\nwindow = "patient"\n{tensor}'
    (folder / "study.toml").write_text(head + METHOD + more + sites)
    return folder / "study.toml"


@pytest.fixture
def network(tmp_path: Path) -> str:
    others = "".join(node(tmp_path, n, records(1000, k), COMMON) for k, n in enumerate(("a", "b")))
    return others + node(tmp_path, "north", records(1500, 3), LOCAL)


def polyclinic(*words: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(w) for w in words])
    return int(end.value.code or 0)


def answered(sheet: Path, answers: dict[str, str]) -> None:
    rows = list(csv.DictReader(sheet.open()))
    with sheet.open("w") as f:
        out = csv.DictWriter(f, rows[0])
        out.writeheader()
        out.writerows({**r, "accept": answers.get(r["local"], "")} for r in rows)


def test_a_sheet_is_proposed_answered_and_used_and_the_study_records_its_digest(
    tmp_path: Path, network: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file, sheet, kept = study(tmp_path, network), tmp_path / "pairs.csv", tmp_path / "accepted.csv"
    assert polyclinic("align", file, "--local", "north", "--out", sheet) == 0
    assert "Nothing is renamed yet" in capsys.readouterr().out
    proposed = list(csv.DictReader(sheet.open()))
    right = [r["local"] for r in proposed if TRUTH.get(r["local"]) == r["code"]]
    assert len(right) >= 9 and {r["accept"] for r in proposed} == {""}
    assert all(int(r["patients"]) >= 20 for r in proposed)
    assert polyclinic("align", file, "--apply", sheet, "--out", kept) == 3
    assert "no pair is accepted" in capsys.readouterr().err and not kept.exists()
    used, rejected = right[:4], right[4]
    answered(sheet, dict.fromkeys(used, " Yes") | {rejected: "no"})
    assert polyclinic("align", file, "--apply", sheet, "--out", kept, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["accepted"], told["rejected"]) == (4, 1)
    assert told["coverage"][0] < told["coverage"][1] < 1
    assert [r["patients"] for r in csv.DictReader(kept.open())] == [""] * 4
    mapped = study(tmp_path, network, '[codes.dx]\nto = "accepted.csv"\n')
    labels = set(sites_of(Study.read(mapped))[0].counts().axes[1].labels or ())
    assert labels == set(COMMON) | {x for x in TRUTH if x not in used}
    assert polyclinic("simulate", mapped, "--out", tmp_path / "run") == 0
    words = " ".join(capsys.readouterr().out.split())
    assert f"pairs that the owner accepted: 4 (sha256 {told['sha256'][:12]})" in words
    assert f"{100 * told['coverage'][1]:.1f} % after" in words
    kept_record = json.loads((tmp_path / "run" / "study.json").read_text())["code_pairs"]
    assert kept_record == {k: told[k] for k in ("accepted", "sha256", "coverage")}
    answered(sheet, dict.fromkeys(right[:5], "yes"))
    assert polyclinic("align", file, "--apply", sheet, "--out", kept, "--json") == 0
    capsys.readouterr()
    assert digest(CodePairs.read(kept).answered("yes")) != told["sha256"]


def test_pairs_reach_a_public_list_that_has_no_local_codes(tmp_path: Path, network: str) -> None:
    (tmp_path / "list.csv").write_text("code\n" + "\n".join(COMMON) + "\n")
    listed = 'vocabulary = { dx = "list.csv" }\n'
    assert (
        polyclinic("align", study(tmp_path, network, "", listed), "--local", "north", "--out", tmp_path / "p.csv") == 0
    )
    pairs = CodePairs.read(tmp_path / "p.csv").confirm()
    pairs.write(tmp_path / "p.csv")
    before, after = (
        sites_of(Study.read(study(tmp_path, network, more, listed)))[2].counts()
        for more in ("", '[codes.dx]\nto = "p.csv"\n')
    )
    assert before.shape[1] == after.shape[1] == len(COMMON) and after.nnz > before.nnz


def test_a_signed_order_carries_the_accepted_pairs_by_their_digest_and_a_hospital_uses_them(tmp_path: Path) -> None:
    records_here = node(tmp_path, "north", records(300, 3), LOCAL)
    (tmp_path / "list.csv").write_text("code\n" + "\n".join(COMMON) + "\n")
    pairs = CodePairs(tuple(CodePair("dx", x, c, patients="25", score=0.9) for x, c in TRUTH.items()))
    sheet = pairs.confirm(sorted(TRUTH)[:4]).bare().write(tmp_path / "p.csv")
    listed = 'vocabulary = { dx = "list.csv" }\n'
    stored = {}
    for name, more in (("without", ""), ("with", '[codes.dx]\nto = "p.csv"\n')):
        asked = Study.read(study(tmp_path, records_here, more, listed))
        keys = {n: Identity.generate(n) for n in ("coordinator", "north", "south", "west")}
        key = keys.pop("coordinator")
        order = make_order(asked, name, {n: k.public.hex() for n, k in keys.items()}, key)
        (tmp_path / name).mkdir()
        there = order.parsed(tmp_path / name)
        stored[name] = ingest(Node.read(tmp_path / "north.toml"), there, tmp_path / name / "data").site.counts().nnz
    name = hashlib.sha256(sheet.read_bytes()).hexdigest()
    assert order.files[order.study["codes"]["dx"]["to"]] == sheet.read_text()
    assert name in order.study["codes"]["dx"]["to"] and ",25," not in sheet.read_text()
    assert stored["without"] < stored["with"]


def test_a_hospital_whose_codes_nobody_shares_gets_few_proposals_for_codes_without_a_counterpart() -> None:
    """Codes of the others are left out where a local code stands for them: every proposal would be wrong."""
    *common, north = hospitals()
    kept = [k for k, c in enumerate(COMMON) if k % 6 != 0]
    there = [k for k, c in enumerate(COMMON) if k % 3 != 0 or k % 6 == 0]
    first = [_only(s, [COMMON[k] for k in kept]) for s in common]
    pairs = pc.align_codes([*first, _only(north, [LOCAL[k] for k in there])], ["north"])
    assert len(pairs.open) + len(pairs) == 5
    assert len(pairs) <= 1, list(pairs)


def _only(site: pc.Site, codes: list[str]) -> pc.Site:
    tensor = site.counts()
    places = [codes.index(c) if c in codes else -1 for c in tensor.axes[1].labels or ()]
    axis = replace(tensor.axes[1], labels=tuple(codes))
    return replace(site, tensor=tensor.recode(1, places, axis, len(codes)))


def test_wrong_use_of_align_is_told(tmp_path: Path, network: str, capsys: pytest.CaptureFixture[str]) -> None:
    file, sheet = study(tmp_path, network), tmp_path / "pairs.csv"

    def fault(*words: object) -> str:
        assert polyclinic("align", *words) in (2, 3)
        return capsys.readouterr().err

    north = network.splitlines(keepends=True)[-2:]
    assert "north: 67" in fault(file, "--out", sheet) or "are known elsewhere" in fault(file, "--out", sheet)
    assert "there are a, b, north" in fault(file, "--local", "nord", "--out", sheet)
    assert "every local code is a common code already" in fault(file, "--local", "a", "--out", sheet)
    alone = study(tmp_path, "".join(north))
    assert "none is left with common ones" in fault(alone, "--local", "north", "--out", sheet)
    CodePairs((CodePair("dx", "x00", "c00", accept="yes"),)).write(sheet)
    grouped = study(tmp_path, network, '[codes.dx]\nto = "rubric"\n')
    assert "codes are grouped already" in fault(grouped, "--apply", sheet, "--out", tmp_path / "k.csv")
    generated = study(tmp_path, '[data]\ndataset = "icu_network"\n')
    assert "[data] has none" in fault(generated, "--apply", sheet, "--out", tmp_path / "k.csv")
    sheet.write_text(sheet.read_text().replace(",yes", ",perhaps"))
    assert "line 2: accept: " in fault(file, "--apply", sheet, "--out", tmp_path / "k.csv")


def test_only_accepted_pairs_of_a_mode_are_a_map(tmp_path: Path) -> None:
    pairs = [
        CodePair("dx", "x1", "c1", accept="yes"),
        CodePair("dx", "x2", "c2", accept="no"),
        CodePair("dx", "x3", "c3"),
    ]
    file = CodePairs((*pairs, CodePair("drug", "x4", "c4", accept="yes"))).write(tmp_path / "pairs.csv")
    assert {code: group for (_, code), (group, _) in read_map(file, "dx").items()} == {"X1": "c1"}
    with pytest.raises(DataError, match="no pair of lab codes is accepted"):
        read_map(file, "lab")
    CodePairs((*pairs[:1], CodePair("dx", "x1", "c9", accept="yes"))).write(file)
    with pytest.raises(DataError, match="codes in several groups"):
        read_map(file, "dx")


def test_overlap_is_counted_small_counts_are_not_shown_and_a_contradicted_guarantee_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    present = records(40, 1)
    present[:, :2] = 1
    people = {"a": range(40), "b": range(25, 65), "c": range(37, 77)}
    sites = "".join(node(tmp_path, n, present, COMMON, [f"p{i}" for i in x]) for n, x in people.items())
    assert polyclinic("overlap", study(tmp_path, sites)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "37 patients at exactly 1 hospital",
        "37 patients at exactly 2 hospitals",
        "fewer than 11 patients at exactly 3 hospitals",
    ]
    assert lines[-2:] == [
        "measured: 44.0 % of patients at one hospital, at most 3 (fewer than 11 counted as 10)",
        "For [privacy]: max_sites_per_patient = 3",
    ]
    private = study(tmp_path, sites, "[privacy]\nepsilon = 1.0\nmax_sites_per_patient = 2\n")
    private.write_text(private.read_text().replace('name = "topics"', 'name = "dpem"'))
    assert polyclinic("overlap", private) == 2
    printed = capsys.readouterr()
    assert "one patient is at up to 3 hospitals" in printed.err and "does not cover them" in printed.out
    private.write_text(private.read_text().replace("patient = 2", "patient = 3"))
    assert polyclinic("overlap", private, "--epsilon", "8", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["words"].startswith("measured with noise") and told["most"] == 3
