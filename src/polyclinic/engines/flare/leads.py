"""Which lead a study needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from polyclinic.engines.flare.lead import Ask, Lead
from polyclinic.engines.flare.order import Order
from polyclinic.engines.flare.ring import RingLead
from polyclinic.engines.flare.star import StarLead
from polyclinic.federation.envelope import Identity

__all__ = ["lead_for"]


def lead_for(
    order: Order, identity: Identity, folder: Path, ask: Ask, stopped: Callable[[], bool] = lambda: False
) -> Lead:
    """The lead of a study, by its way to add."""
    kind = RingLead if order.aggregation in ("subspace", "cycle") else StarLead
    return kind(order, identity, folder, ask, stopped)
