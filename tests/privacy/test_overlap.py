"""Patients of several hospitals: refused or accounted for where this is known, and the card says how it is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.attacks.test_transcript import DIAGNOSES, DPEM, DRUGS
from tests.attacks.transcript_rig import Records, Transcript, visits

import polyclinic as pc
from polyclinic.config import Node, Study
from polyclinic.errors import DataError, MessageRefused
from polyclinic.node.enrolment.folders import SiteFolder
from polyclinic.privacy.card.release_history import ReleaseHistory
from polyclinic.privacy.card.study_extract import StudyExtract
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.records.ingest import read_sites
from polyclinic.records.preflight import check_node

ROWS = [(p, s, d) for p in range(30) for s in "abc" for d in ("x", "y") if p < 6 or "abc"[p % 3] == s]


def frame(rows: list[tuple[int, str, str]]) -> dict[str, list[str]]:
    return {"pid": [f"p{p}" for p, _, _ in rows], "site": [s for _, s, _ in rows], "dx": [d for _, _, d in rows]}


def fit(sites: list[pc.Site], most: int) -> pc.DPEM:
    privacy = pc.Privacy(1.0, max_sites_per_patient=most)
    return pc.DPEM(rank=1, rounds=1, privacy=privacy, planning_size=1000, seed=0).fit(sites)


def line(model: pc.DPEM) -> str:
    return next(a for a in model.privacy_.assumptions if "one patient is at no more" in a)


@pytest.mark.filterwarnings("ignore")
def test_a_frame_whose_patients_are_at_three_sites_is_refused_or_accounted_for() -> None:
    sites = pc.from_frame(frame(ROWS), patient="pid", modes=["dx"], site="site")
    with pytest.raises(DataError, match="one patient is at up to 3 sites, and the study accounts for 1"):
        fit(sites, 1)
    with pytest.raises(DataError, match="up to 3 sites"):  # some patients of each: what is known of the table travels
        fit([s.take(np.arange(s.patients) % 2 == 0) for s in sites], 2)
    assert (
        line(fit(sites, 3))
        == "one patient is at no more than 3 sites: stated by the owners, or by names within one table; assumed between tables"
    )


@pytest.mark.filterwarnings("ignore")
def test_tables_of_single_hospitals_are_assumed_and_equal_names_are_told() -> None:
    table = [pc.from_frame(frame([r for r in ROWS if r[1] == s]), patient="pid", modes=["dx"])[0] for s in "abc"]
    by_hand = [replace(s, name=n) for n, s in zip("abc", table)]
    with pytest.warns(UserWarning, match="assumed, although 6 patient names occur at more sites"):
        model = fit(by_hand, 1)
    assert line(model).endswith("1 site: assumed, although 6 patient names occur at more sites")
    assert line(fit(by_hand, 3)).endswith("3 sites: assumed")


def study_file(tmp_path: Path, more: str) -> Study:
    with (tmp_path / "events.csv").open("w") as f:
        f.write("patient_id,site,visit_id,kind,code,time\n")
        f.writelines(f"p{p},{s},v{p}{s},dx,{d},2020-01-01\n" for p, s, d in ROWS)
    (tmp_path / "codes.csv").write_text("code\nx\ny\n")
    (tmp_path / "study.toml").write_text(
        '[study]\nname = "s"\n[tensor]\nmodes = ["dx"]\nvocabulary = { dx = "codes.csv" }\n'
        f'[method]\nname = "dpem"\naggregation = "plain"\nrank = 1\nrounds = 1\n[privacy]\nepsilon = 1.0\n{more}\n'
    )
    return Study.read(tmp_path / "study.toml")


NODE = '[site]\nname = "a"\n[source]\nkind = "files"\nevents = "events.csv"\nsplit = "site"\n'


@pytest.mark.parametrize(("covered", "ok"), [("", False), ("max_sites_per_patient = 3", True)])
def test_check_fails_where_privacy_does_not_account_for_the_overlap(tmp_path: Path, covered: str, ok: bool) -> None:
    (tmp_path / "a.toml").write_text(NODE)
    study = study_file(tmp_path, f'{covered}\n[sites]\nnodes = ["a.toml"]\nsplit = true')
    found = check_node(Node.read(tmp_path / "a.toml"), study)
    told = [f for f in found.faults if "6 patients occur at up to 3" in f]
    assert bool(told) is not ok, (found.faults, found.remarks)
    assert max(s.several for s in read_sites(study)) == 3
    if ok:
        assert "6 patients occur at several of the source's sites" in found.remarks


def test_what_an_owner_states_counts_in_a_simulation(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(NODE.replace('split = "site"\n', "elsewhere = 2\n"))
    study = study_file(tmp_path, '[sites]\nnodes = ["a.toml"]')
    assert [s.several for s in read_sites(study)] == [3]


def extract(site: str, elsewhere: int | None) -> StudyExtract:
    return StudyExtract.of(Ledger(), site, "o", Ed25519PrivateKey.generate().sign, elsewhere)


def test_a_card_between_hosts_counts_the_owners_who_stated_it() -> None:
    books = [StudyExtract.read(extract(n, e).pack()) for n, e in (("a", 0), ("b", None), ("c", 1))]
    assert [b.elsewhere for b in books] == [0, None, 1]
    assert ReleaseHistory.of("dpem", [], books=books, sites="abc").overlap == "stated by 2 of 3 owners"
    assert ReleaseHistory.of("dpem", [], books=books[1:2], sites="abc").overlap == ""


@pytest.mark.parametrize(
    "wrong", [b'["a", "o", [], "0"]', b'["a", "o", [], -1]', b'["a", "o", [], true]', b'["a", "o", [], 0, 0]']
)
def test_a_statement_that_cannot_be_is_refused(wrong: bytes) -> None:
    with pytest.raises(MessageRefused):
        StudyExtract.read(bytes(64) + wrong)


def between_hosts(world: Records, name: str, most: int) -> Transcript:
    tail = f"[privacy]\nepsilon = 0.1\nmax_sites_per_patient = {most}\n"
    return Transcript(world, world.order(name, DPEM, data=world.tensor("s", DRUGS, DIAGNOSES), tail=tail))


def test_a_site_whose_owner_states_more_sites_declines_before_records_are_read(tmp_path: Path) -> None:
    world = Records(tmp_path, {n: {"events": visits(n, 20)} for n in "abc"}, policy="max_epsilon_total = 1.0")
    for site, stated in (("a", 1), ("b", 0)):
        node = tmp_path / site / "node.toml"
        node.write_text(node.read_text().replace("[source]\n", f"[source]\nelsewhere = {stated}\n"))
        world.sites[site] = SiteFolder.of(node)
    (tmp_path / "a" / "events.csv").rename(tmp_path / "a" / "away.csv")
    assert {n: stage for n, (stage, _) in between_hosts(world, "one", 1).words().items()} == {
        "a": "refused",
        "b": "ready",
        "c": "ready",
    }
    (tmp_path / "a" / "away.csv").rename(tmp_path / "a" / "events.csv")
    outcome = between_hosts(world, "two", 2).outcome()
    assert outcome is not None
    history = ReleaseHistory.of("dpem", outcome.releases, books=outcome.books, sites="abc")
    assert history.overlap == "stated by 2 of 3 owners"
