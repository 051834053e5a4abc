"""A snapshot in OpenMetrics, by ``prometheus_client`` (extra ``monitor``)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from polyclinic import __version__
from polyclinic.errors import ConfigError
from polyclinic.node.monitor.snapshot import STATES, Snapshot


def need_client() -> None:
    """The package, or the extra that brings it."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise ConfigError(
            "[monitor] listen needs the package prometheus-client (extra monitor)",
            hint="pip install 'polyclinic[monitor]', or remove the line",
        ) from None


class _Once:
    """What ``prometheus_client`` calls a collector: the families of one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.s = snapshot

    def collect(self) -> Iterator[object]:
        """Every family."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            InfoMetricFamily,
            StateSetMetricFamily,
        )

        s = self.s
        yield InfoMetricFamily(
            "polyclinic_node", "This node.", {"name": s.name, "kind": s.kind, "version": __version__}
        )
        yield GaugeMetricFamily("polyclinic_healthy", "1 if /health answers 200.", float(s.healthy))
        yield GaugeMetricFamily("polyclinic_process_up", "1 if the node's process lives.", float(s.process))
        if s.accepted is not None:
            text = "1 if this site and its coordinator accepted each other's certificates in the last look."
            yield GaugeMetricFamily("polyclinic_accepted", text, float(s.accepted))
        if s.certificate_days is not None:
            yield GaugeMetricFamily(
                "polyclinic_certificate_days", "Days until our certificate ends.", s.certificate_days
            )
        yield GaugeMetricFamily("polyclinic_looked_timestamp_seconds", "When the node was last looked at.", s.at)
        yield GaugeMetricFamily(
            "polyclinic_waiting_for_owner", "Studies and releases that wait for a person.", len(s.asked)
        )
        spent = GaugeMetricFamily(
            "polyclinic_epsilon_spent",
            "Patient-level epsilon spent or reserved, at the policy's delta.",
            labels=["cohort", "delta"],
        )
        left = GaugeMetricFamily(
            "polyclinic_epsilon_left",
            "Patient-level epsilon that the owner's limit leaves.",
            labels=["cohort", "delta"],
        )
        for b in s.budgets:
            spent.add_metric([b.cohort, f"{b.delta:g}"], b.spent if math.isfinite(b.spent) else math.inf)
            if b.left is not None:
                left.add_metric([b.cohort, f"{b.delta:g}"], b.left)
        yield from (spent, left)
        state = StateSetMetricFamily("polyclinic_study", "How a study stands here.", labels=["study"])
        rounds = GaugeMetricFamily("polyclinic_study_round", "The last round.", labels=["study"])
        releases = CounterMetricFamily("polyclinic_releases", "Lines of the book.", labels=["study"])
        size = CounterMetricFamily("polyclinic_bytes", "Bytes.", labels=["study", "way"])
        wait = GaugeMetricFamily(
            "polyclinic_waiting_seconds", "Since when a study waits for whom.", labels=["study", "for"]
        )
        for x in s.studies:
            state.add_metric(
                [x.study], {k: k == x.state for k in (*STATES, *(() if x.state in STATES else (x.state,)))}
            )
            rounds.add_metric([x.study], float(x.round))
            if s.kind == "site":
                releases.add_metric([x.study], float(x.releases))
            for way, n in (("up", x.bytes_up), ("down", x.bytes_down)):
                if n is not None:
                    size.add_metric([x.study, way], float(n))
            for who, seconds in x.waiting.items():
                wait.add_metric([x.study, who], seconds)
        yield from (state, rounds, releases, size, wait)
        seen = GaugeMetricFamily("polyclinic_last_seen_seconds", "Since a site was last heard of.", labels=["site"])
        for name, seconds in s.seen.items():
            seen.add_metric([name], seconds)
        yield seen


def exposition(snapshot: Snapshot) -> bytes:
    """The text of ``/metrics``."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.openmetrics.exposition import generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(snapshot))
    return bytes(generate_latest(registry))
