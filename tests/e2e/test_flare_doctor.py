"""Doctor and status against FLARE's own server: accepted, expired, self-signed, unknown, revoked; dead, failed, no room, no data."""

from __future__ import annotations

import datetime
import os
import signal
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


def _expired(certificate: bytes, key: str) -> bytes:
    """The same certificate, by the same authority, with a past end."""
    old = x509.load_pem_x509_certificate(certificate)
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - datetime.timedelta(days=9)).not_valid_after(now - datetime.timedelta(days=2))
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)  # type: ignore[arg-type]


def _by_itself(certificate: bytes, key: bytes) -> bytes:
    """A certificate of the same name and key that nobody but its owner signed."""
    old = x509.load_pem_x509_certificate(certificate)
    own = serialization.load_pem_private_key(key, None)
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(old.subject, old.subject, own.public_key(), x509.random_serial_number())  # type: ignore[arg-type]
    made = made.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=99))
    return made.sign(own, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)  # type: ignore[arg-type]


def test_the_server_itself_accepts_or_refuses(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    from tests.e2e.flare_federation import Federation

    from polyclinic.node.doctor.probes import coordinator_probes
    from polyclinic.node.enrolment.authority import Authority
    from polyclinic.node.enrolment.folders import append_event, read_events
    from polyclinic.node.enrolment.processes import Recorded, alive, wait_for
    from polyclinic.node.flare import coordinator_service as coordinator
    from polyclinic.node.flare import site_service as site

    made = Federation(tmp_path, enrol=True, rehearsal=True)
    north, key = made.sites["north"], Authority.read(made.coordinator.authority).key
    other, _ = Authority.make("another")
    paper = north.workspace / "startup" / "client.crt"
    good = paper.read_bytes()
    try:
        coordinator.start(made.coordinator)
        site.start(north)
        value = site.status(north)
        assert (value["state"], value["coordinator"]["reachable"], value["exit"]) == ("running", True, 0), value
        assert [p for p in coordinator_probes(made.coordinator) if p.state == "fault"] == []
        alone = _by_itself(good, (north.workspace / "startup" / "client.key").read_bytes())
        for wrong, said in (
            (_expired(good, key), "expired on"),  # type: ignore[arg-type]
            (_expired(good, other.key), "authority is unknown"),  # type: ignore[arg-type]
            (alone, "signed by itself"),
        ):
            paper.write_bytes(wrong)
            value = site.status(north)
            assert (value["state"], value["coordinator"]["reachable"], value["exit"]) == ("not accepted", False, 5)
            assert said in value["problems"][0]["sentence"]
            assert "refuses this certificate" in value["problems"][1]["sentence"], value["problems"]
        site.stop(north)
        site.start(north)  # with a certificate that it signed itself: its own log says so
        assert any(e["event"] == "certificate" and "signed by itself" in e["what"] for e in read_events(north.events))
        paper.write_bytes(good)
        records = north.node.path("events.parquet")
        records.rename(records.with_suffix(".away"))
        value = site.status(north)
        assert (value["state"], value["exit"]) == ("data away", 3)
        assert "events.parquet" in value["problems"][0]["sentence"]
        records.with_suffix(".away").rename(records)
        append_event(north.events, event="failed", study="icu-1", error="MemoryError")
        value = site.status(north)
        assert (value["state"], value["exit"]) == ("study failed", 5)
        append_event(north.events, event="finished", study="icu-2")
        assert site.status(north)["exit"] == 0
        client = Recorded.read(north.pids / "client.json")
        os.kill(client.pid, signal.SIGKILL)  # type: ignore[union-attr]
        assert wait_for(lambda: not alive(client), 10.0)
        value = site.status(north)
        assert (value["state"], value["exit"]) == ("stopped", 5)
        site.start(north)
        coordinator.revoke(made.coordinator, "north")
        value = site.status(north)
        assert (value["state"], value["exit"]) == ("not accepted", 5)
        assert "has revoked this site" in value["problems"][0]["sentence"]
    finally:
        made.stop()
