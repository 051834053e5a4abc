"""What a study between hosts leaves at the coordinator: the model, its history, figures and privacy card; no patient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from polyclinic.engines.flare.folders import write_json
from polyclinic.engines.flare.order import Order
from polyclinic.federation import wire
from polyclinic.federation.fold import Outcome
from polyclinic.federation.protocol import Method
from polyclinic.run import RunFolder
from polyclinic.tensors.files import atomic

__all__ = ["read_public", "write_result"]

LIMIT = 2**40


def write_result(folder: Path, method: Method[Any, Any, Any], outcome: Outcome, order: Order) -> None:
    """Write ``public.ckpt`` (the final public state), ``outcome.npz``, ``history.json``, ``card.json`` and ``metrics.json``."""
    run = RunFolder(folder)
    with atomic(folder / "public.ckpt") as temporary:
        temporary.write_bytes(wire.encode({"method": method.name, "public": wire.pack(outcome.public)}, limit=LIMIT))
    arrays = {k: v for k, v in _flat("", wire.pack(outcome.public)).items() if isinstance(v, np.ndarray)}
    run.write_arrays(run.outcome, arrays)
    card = _card(method, outcome)
    run.write_json(folder / "history.json", {"history": outcome.history})
    if card is not None:
        write_json(folder / "card.json", card.to_json() if hasattr(card, "to_json") else vars(card))
    last = outcome.history[-1] if outcome.history else {}
    figures = {k: v for k, v in last.items() if isinstance(v, float | int) and math.isfinite(v)}
    write_json(
        run.metrics,
        {
            "study": order.id,
            "engine": "flare",
            "sites": list(order.sites),
            "rmse_observed": figures.get("rmse_observed"),
            "rmse_full": figures.get("rmse_full"),
            "fit": figures.get("fit"),
            "objective": figures.get("objective"),
            "rounds": outcome.traffic.rounds,
            "bytes_up": outcome.traffic.bytes_up,
            "bytes_down": outcome.traffic.bytes_down,
            "payload_bytes_up": outcome.traffic.payload_bytes_up,
            "seconds": outcome.seconds,
            "epsilon": getattr(card, "epsilon", None),
            "delta": getattr(card, "delta", None),
            "adjacency": getattr(card, "adjacency", None),
            "guarantee": getattr(card, "guarantee", "none"),
        },
    )


def _card(method: Method[Any, Any, Any], outcome: Outcome) -> Any:
    from polyclinic.privacy.card import card_of

    return card_of(method, outcome)


def _flat(prefix: str, tree: Any) -> dict[str, Any]:
    if isinstance(tree, Mapping):
        items: Any = tree.items()
    elif isinstance(tree, list | tuple):
        items = enumerate(tree)
    else:
        return {prefix: tree}
    out: dict[str, Any] = {}
    for k, v in items:
        out |= _flat(f"{prefix}.{k}" if prefix else str(k), v)
    return out


def read_public(folder: Path, method: Method[Any, Any, Any]) -> Any:
    """The final public state of a run between hosts."""
    value = wire.decode((folder / "public.ckpt").read_bytes(), limit=LIMIT)
    return wire.unpack(method.Public, value["public"])
