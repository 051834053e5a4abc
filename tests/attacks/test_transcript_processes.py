"""The same attacks against real processes: a database server that reads an order's text, and sites behind FLARE."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pytest
from tests.databases import copied
from tests.waiting import wait_until

from polyclinic.config import Node, Study
from polyclinic.errors import DataError
from polyclinic.records.ingest import ingest

pytestmark = [pytest.mark.attack, pytest.mark.e2e, pytest.mark.timeout(400)]


def test_transcript_of_a_study_is_not_read_as_sql_by_postgresql(
    postgres: str, data_path: Callable[[str], Path], tmp_path: Path
) -> None:
    psycopg: Any = pytest.importorskip("psycopg", reason="psycopg is not installed")
    with duckdb.connect() as con, psycopg.connect(postgres) as link:
        copied(data_path("synthea27nj_omop"), con, link, tmp_path)
        link.execute("ALTER DATABASE postgres SET standard_conforming_strings = off")
        link.commit()
    node = Node.parse({"site": {"name": "a"}, "source": {"kind": "omop", "url": postgres, "schema": "cdm"}})
    tensor = {"modes": ["drug", "diagnosis"], "window": "7d"}
    study = Study.parse({"study": {"name": "s"}, "tensor": tensor, "visits": {"types": ["\\') or true --"]}})
    with pytest.raises(DataError) as refusal:  # nobody has such a visit
        ingest(node, study, tmp_path / "out")
    assert "syntax error" not in str(refusal.value)  # of PostgreSQL: it read the order's text as a statement


DPEM = 'name = "dpem"\nplanning_size = 1000\nrank = 2\nrounds = 2\naggregation = "masked"'


@pytest.mark.slow
@pytest.mark.nobody
@pytest.mark.parametrize("consent", ["policy", "ask"])
def test_transcript_between_processes_does_not_tell_who_has_a_patient(tmp_path: Path, consent: str) -> None:
    pytest.importorskip("nvflare")
    from tests.e2e.flare_federation import Federation, running

    from polyclinic.node.admission import membership

    federation = Federation(tmp_path, codes=31, policy="max_epsilon_total = 1.0")  # nobody has DI30, but ...
    events = tmp_path / "north" / "events.parquet"
    with duckdb.connect() as con:
        con.execute(f"CREATE TABLE events AS SELECT * FROM '{events}'")
        for kind, code in (("drug", "DR01"), ("diagnosis", "DI30")):
            con.execute("INSERT INTO events VALUES ('north-7', 'north-7-9', '2023-05-17 08:00:00', ?, ?)", [kind, code])
        con.execute(f"COPY events TO '{events}' (FORMAT parquet)")
    if consent == "ask":
        for site in federation.sites.values():
            site.node_path.write_text(site.node_path.read_text().replace('studies = "policy"', 'studies = "ask"'))
        federation.sites = {n: type(s).of(s.node_path) for n, s in federation.sites.items()}
    heard = {}

    def agree(site: Any, study: str) -> None:
        """The owner agrees when the study waits at the site."""
        assert wait_until(
            lambda: (study, "waiting") in {(s["study"], s["state"]) for s in membership.studies(site)}, 120
        )
        membership.decide(site, study, accept=True)

    with ThreadPoolExecutor() as owners, running(federation):
        for name, end in (("with", "2023-05-17"), ("without", "2023-05-16")):
            tail = (
                f'[cohort]\nfirst = {{diagnosis = ["DI30"]}}\n[time]\nstart = 2023-01-01\nend = {end}\n'
                "[privacy]\nepsilon = 0.001\n"
            )
            order = federation.order(federation.study(name, DPEM, tail=tail))
            asked = [owners.submit(agree, s, order.id) for s in federation.sites.values()] if consent == "ask" else []
            federation.follow(order)
            for owner in asked:
                owner.result()
            words = {(e["site"], e["event"]) for e in federation.events(order) if e["event"] in ("ready", "refused")}
            heard[name] = sorted(words)
    assert heard["with"] == heard["without"], heard
    assert {word for words in heard.values() for _, word in words} == {"ready"}
