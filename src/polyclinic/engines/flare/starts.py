"""Several starts of one study between hosts: each start is signed and run as a study of its own, and the best is kept.

The seeds are those of one process (``seed``, ``seed + 1``, ...) and so is the choice: the lowest last objective, the first
of equals. Every start releases and is charged like a study, as in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polyclinic.engines import registry
from polyclinic.engines.flare.coordination import sign_study
from polyclinic.engines.flare.folders import CoordinatorFolder, private, read_json, write_json
from polyclinic.engines.flare.order import Order, read_order
from polyclinic.engines.flare.result import read_outcome
from polyclinic.learned.phenotypes import Phenotypes
from polyclinic.study import Study
from polyclinic.tensors.matching import factor_match_score

__all__ = ["choose", "sign_starts", "starts_of"]


def sign_starts(folder: CoordinatorFolder, study: Study) -> list[Order]:
    """One order for each start that a study asks for; all are signed, and refused if need be, before any is sent."""
    method = registry.federated(study)
    n = int(getattr(method.params, "n_starts", 1))
    if n == 1 or method.name == "mixture":  # a mixture has its starts inside the protocol
        return [sign_study(folder, study)]
    values = study.to_json()
    orders = []
    for k in range(n):
        one = {
            **values,
            "study": {**values["study"], "seed": study.seed + k},
            "method": {**values["method"], "n_starts": 1},
        }
        orders.append(sign_study(folder, Study.parse(one, where=f"start {k + 1} of {n}", folder=study.folder)))
    for o in orders:
        write_json(folder.run(o.id) / "starts.json", {"starts": [x.id for x in orders]})
    return orders


def starts_of(folder: CoordinatorFolder, order: Order) -> list[Order]:
    """All starts of the study that an order belongs to; the order itself if there is but one."""
    path = folder.run(order.id) / "starts.json"
    if not path.exists():
        return [order]
    key = folder.identity().public
    return [read_order(read_json(folder.run(i) / "order.json")["order"], key) for i in read_json(path)["starts"]]


def choose(folder: CoordinatorFolder, orders: Sequence[Order]) -> tuple[int, list[Any]]:
    """Which start is kept, and the models of all; how alike the others are stands in its ``stability_``."""
    models = []
    for o in orders:
        model = registry.federated(o.parsed(private(folder.run(o.id) / "files")))
        model.publish(read_outcome(folder.run(o.id), model))
        models.append(model)
    goals = [getattr(m, "objective_", None) for m in models]
    best = int(np.argmin([np.inf if g is None else g for g in goals]))
    if len(models) > 1:
        models[best].chosen_from([m for k, m in enumerate(models) if k != best])
    if len(models) > 1 and isinstance(models[best].result_, Phenotypes):
        others = [m for k, m in enumerate(models) if k != best]
        kept = getattr(models[best], "model_", models[best])  # a study's whole, or its floor, is not the model
        kept.stability_ = float(np.mean([factor_match_score(m.factors_, models[best].factors_) for m in others]))
    return best, models
