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


Row = tuple[str, str, tuple[str, ...], list[tuple[list[str], float]]]  # name, meaning, labels, samples


def _gauges(s: Snapshot) -> list[Row]:
    """What is measured now."""
    budgets = [([b.cohort, f"{b.delta:g}"], b) for b in s.budgets]
    accepted = [] if s.accepted is None else [float(s.accepted)]
    days = [] if s.certificate_days is None else [s.certificate_days]
    return [
        ("healthy", "1 if /health answers 200.", (), [([], float(s.healthy))]),
        ("process_up", "1 if the node's process lives.", (), [([], float(s.process))]),
        ("accepted", "1 if site and coordinator accepted each other's certificate.", (), [([], v) for v in accepted]),
        ("certificate_days", "Days until our certificate ends.", (), [([], v) for v in days]),
        ("looked_timestamp_seconds", "When the node was last looked at.", (), [([], s.at)]),
        ("waiting_for_owner", "Studies and releases that wait for a person.", (), [([], float(len(s.asked)))]),
        (
            "epsilon_spent",
            "Patient-level epsilon spent or set aside, at the policy's delta.",
            ("cohort", "delta"),
            [(of, b.spent if math.isfinite(b.spent) else math.inf) for of, b in budgets],
        ),
        (
            "epsilon_left",
            "Patient-level epsilon that the owner's limit leaves.",
            ("cohort", "delta"),
            [(of, b.left) for of, b in budgets if b.left is not None],
        ),
    ]


def _of_studies(s: Snapshot) -> list[Row]:
    """How far studies are, and who is waited for."""
    return [
        ("study_round", "The last round.", ("study",), [([x.study], float(x.round)) for x in s.studies]),
        (
            "waiting_seconds",
            "Since when a study waits for whom.",
            ("study", "for"),
            [([x.study, who], seconds) for x in s.studies for who, seconds in x.waiting.items()],
        ),
        ("last_seen_seconds", "Since a site was last heard of.", ("site",), [([n], v) for n, v in s.seen.items()]),
    ]


def _counters(s: Snapshot) -> list[Row]:
    """What only grows."""
    ways = [([x.study, way], n) for x in s.studies for way, n in (("up", x.bytes_up), ("down", x.bytes_down))]
    releases = [([x.study], float(x.releases)) for x in s.studies if s.kind == "site"]
    return [
        ("releases", "Lines of the ledger.", ("study",), releases),
        ("bytes", "Bytes.", ("study", "way"), [(of, float(n)) for of, n in ways if n is not None]),
    ]


class _Once:
    """What ``prometheus_client`` calls a collector: the families of one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.s = snapshot

    def collect(self) -> Iterator[object]:
        """Every family."""
        from prometheus_client import core

        s, what = self.s, {"name": self.s.name, "kind": self.s.kind, "version": __version__}
        yield core.InfoMetricFamily("polyclinic_node", "This node.", what)
        for kind, rows in (
            (core.GaugeMetricFamily, [*_gauges(s), *_of_studies(s)]),
            (core.CounterMetricFamily, _counters(s)),
        ):
            for name, meaning, labels, samples in rows:
                family = kind(f"polyclinic_{name}", meaning, labels=labels)
                for of, value in samples:
                    family.add_metric(of, value)
                yield family
        state = core.StateSetMetricFamily("polyclinic_study", "How a study stands here.", labels=["study"])
        for x in s.studies:
            state.add_metric([x.study], {k: k == x.state for k in dict.fromkeys((*STATES, x.state))})
        yield state


def exposition(snapshot: Snapshot) -> bytes:
    """The text of ``/metrics``."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.openmetrics.exposition import generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(snapshot))
    return bytes(generate_latest(registry))
