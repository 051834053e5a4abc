"""The figures of a fitted model, whatever its kind: what ``metrics.json`` holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from polyclinic.analysis.simulated.cross_fit import Judging
from polyclinic.analysis.simulated.prediction import predict
from polyclinic.analysis.simulated.presence import MINIMUM
from polyclinic.errors import DataError
from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.protocol.estimator import Configured
from polyclinic.records.sites.site import Site, truth_of
from polyclinic.tensors.axis import Axis
from polyclinic.tensors.matching import recovery

__all__ = ["privacy_figures", "quality", "summary", "to_truth"]

NAMES = ("rmse_observed", "rmse_full", "fit")


def quality(model: object, sites: Sequence[Site], *, seed: int = 0, held: Judging | None = None) -> dict[str, object]:
    """How well a model describes the sites, and how well it predicts their outcome where labels exist.

    The outcome's AUC is of held-out patients: memberships by ``transform``, logistic regression on 60 % of each site's
    patients, tested on 40 %; the factors saw no label. The AUC of frozen random factors stands beside it.
    """
    value = vars(model).get("result_")
    if not isinstance(value, Phenotypes):
        return {}
    figures: dict[str, object] = dict(value.quality(sites))
    if any(s.labels is not None for s in sites):
        figures |= _outcome(Judging(model, sites, seed) if held is None else held)
    return figures | to_truth(value, truth_of(sites))


def _outcome(held: Judging) -> dict[str, object]:
    """AUC of held-out patients with a known outcome, and how many have none (None: 1 to 10, a small count)."""
    labelled = held.known
    too_few = 0 < labelled.unknown < MINIMUM
    out: dict[str, object] = {"outcome_unknown": None if too_few else labelled.unknown}
    if not labelled.sites:
        return {"auc": None, "auc_reason": "no patient has a known outcome", **out}
    train, test = held.halves(held.labels)
    try:
        (a, b), (c, d) = held.halves(held.placed), held.halves(held.random)
        auc, random = predict(a, train, b, test).auc, predict(c, train, d, test).auc
    except DataError as e:
        return {"auc": None, "auc_reason": e.what, **out}
    return {"auc": auc, "auc_random_factors": random, **out}


@runtime_checkable
class Planted(Protocol):
    """The phenotypes that a generator planted."""

    @property
    def axes(self) -> Sequence[Axis]: ...

    @property
    def factors(self) -> Sequence[NDArray[np.float64]]: ...


def to_truth(model: Phenotypes, truth: object) -> dict[str, float]:
    """Match score (recall) and precision to the planted phenotypes of a generated network, by the codes' labels.

    Empty where nothing was planted, or where the codes differ.
    """
    if not isinstance(truth, Planted):
        return {}
    planted = []
    for axis, own, factor in zip(truth.axes, model.axes, truth.factors):
        if axis.labels is None or own.labels is None:
            planted.append(factor)
            continue
        positions = {label: i for i, label in enumerate(axis.labels)}
        planted.append(
            np.array([factor[positions[x]] if x in positions else np.zeros(factor.shape[1]) for x in own.labels])
        )
    if [len(f) for f in planted] != [len(f) for f in model.factors]:
        return {}
    score = recovery(planted, model.factors)
    return {"fms_to_truth": score.recall, "precision_to_truth": score.precision}


def privacy_figures(model: Configured) -> dict[str, object]:
    """What may be claimed; never an epsilon without its delta, adjacency and kind."""
    card = model.privacy_
    return {"epsilon": card.epsilon, "delta": card.delta, "adjacency": card.adjacency, "guarantee": card.guarantee}


def summary(model: Configured, sites: Sequence[Site], *, seed: int = 0, held: Judging | None = None) -> dict[str, Any]:
    """All figures of a run. Under a formal guarantee what was not paid for is null, and stands in ``simulation_only``.

    ``held``: the outcome's patients, where somebody else (:func:`~polyclinic.analysis.simulated.association.associate`) uses them, too.
    """
    figures = quality(model, sites, seed=seed, held=held)
    out: dict[str, Any] = {name: figures.pop(name, None) for name in NAMES}
    out |= {"auc": figures.pop("auc", None)} if "auc" in figures else {}
    out |= figures
    if model.privacy_.guarantee == "formal":
        out = {**dict.fromkeys(out, None), "simulation_only": dict(out)}
    traffic = model.traffic_
    out |= {
        "rounds": traffic.rounds or len(model.history_),
        "bytes_up": traffic.bytes_up,
        "bytes_down": traffic.bytes_down,
        "payload_bytes_up": traffic.payload_bytes_up,
        "seconds_at_15_MB_per_s": traffic.seconds(),
    }
    return out | privacy_figures(model)
