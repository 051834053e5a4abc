"""Doctor and status against FLARE's own server: accepted, expired, unknown, revoked."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


def _expired(certificate: bytes, key) -> bytes:
    """The same certificate, by the same authority, with a past end."""
    old = x509.load_pem_x509_certificate(certificate)
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(old.issuer, old.subject, old.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - datetime.timedelta(days=9)).not_valid_after(now - datetime.timedelta(days=2))
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_the_server_itself_accepts_or_refuses(tmp_path):
    pytest.importorskip("nvflare")
    from flare_federation import Federation

    from polyclinic.engines.flare import coordinator, site
    from polyclinic.engines.flare.enrolment import Authority
    from polyclinic.engines.flare.folders import read_events
    from polyclinic.engines.flare.probes import coordinator_probes

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
        for wrong, said in ((_expired(good, key), "expired on"), (_expired(good, other.key), "authority is unknown")):
            paper.write_bytes(wrong)
            value = site.status(north)
            assert (value["state"], value["coordinator"]["reachable"], value["exit"]) == ("not accepted", False, 5)
            assert said in value["problems"][0]["sentence"]
            assert "refuses this certificate" in value["problems"][1]["sentence"], value["problems"]
        site.stop(north)
        site.start(north)  # with the certificate of an unknown authority: its own log says so
        assert any(e["event"] == "certificate" and "unknown" in e["what"] for e in read_events(north.events))
        paper.write_bytes(good)
        coordinator.revoke(made.coordinator, "north")
        value = site.status(north)
        assert (value["state"], value["exit"]) == ("not accepted", 5)
        assert "has revoked this site" in value["problems"][0]["sentence"]
    finally:
        made.stop()
