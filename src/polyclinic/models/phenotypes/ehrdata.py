"""Patients and their memberships for ehrdata and ehrapy (scverse): one annotated matrix, for the hospital that owns it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from polyclinic.errors import ConfigError
from polyclinic.models.base import Unseen
from polyclinic.models.phenotypes.coverage import on_codes, patients_of
from polyclinic.records.sites.site import Site
from polyclinic.tensors.sparse import SparseTensor

if TYPE_CHECKING:
    from ehrdata import EHRData
    from pandas import DataFrame

    from polyclinic.models.phenotypes.phenotypes import Phenotypes

KEY = "phenotypes"


def to_ehrdata(model: Phenotypes, data: SparseTensor | Site, *, unseen: Unseen = "error") -> EHRData:
    """One hospital's patients as an ``ehrdata.EHRData``: it holds patients, so it stays where they are.

    ``X[i, j] = sum over cells of patient i that name code j``, sparse, the codes of all modes side by side; ``var`` says
    mode, code and name; ``obs`` the outcome and covariates; ``obsm["phenotypes"]`` the memberships,
    ``varm["phenotypes"]`` the factors, ``uns["polyclinic"]`` method, digest and what is guaranteed.

    Parameters
    ----------
    model
        The phenotypes.
    data
        The hospital's patients.
    unseen
        Codes that the model does not know: ``"error"`` names them, ``"drop"`` leaves their events out.
    """

    try:
        pd, library = import_module("pandas"), import_module("ehrdata")
    except ImportError as e:
        raise ConfigError(
            f"to_ehrdata needs the package {e.name or 'ehrdata'}, which is not installed",
            hint="pip install ehrdata (or the extra: polyclinic[ehrdata])",
        ) from e
    from scipy.sparse import csr_matrix

    placed = model.transform(data, unseen=unseen)
    tensor, _ = on_codes(patients_of(data), model.axes, model.factors, unseen=unseen)
    sizes = [len(f) for f in model.factors]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    coords = tensor.coords
    columns = np.concatenate([coords[:, n + 1] + starts[n] for n in range(len(sizes))])
    rows, values = np.tile(coords[:, 0], len(sizes)), np.tile(tensor.values, len(sizes))
    codes = [(a.name, a.label(i), a.describe(i)) for a, size in zip(model.axes, sizes) for i in range(size)]
    var = pd.DataFrame(codes, columns=["mode", "code", "name"], index=[f"{m}:{c}" for m, c, _ in codes])
    return library.EHRData(
        X=csr_matrix((values, (rows, columns)), shape=(tensor.patients, len(codes))),
        obs=_people(pd, data, tensor),
        var=var,
        obsm={KEY: placed},
        varm={KEY: np.concatenate(model.factors)},
        uns={"polyclinic": {"method": model.method, "digest": model.digest(), "privacy": model.card.headline}},
    )


def _people(pd: ModuleType, data: SparseTensor | Site, tensor: SparseTensor) -> DataFrame:
    """A row per patient: outcome, covariates, time and event where they are known."""
    names = patients if (patients := tensor.axes[0].labels) is not None else range(tensor.patients)
    held: dict[str, object] = {}
    if isinstance(data, Site):
        people = data.people
        if people is not None:
            held |= dict(people.columns)
            held |= {} if people.time is None else {"time": people.time, "event": people.event}
        held |= {} if data.labels is None else {"outcome": data.labels}
    return pd.DataFrame(held, index=[str(n) for n in names])
