"""Feature matrices of new patients on a model's columns: by name where both sides have names, else by position."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from polyclinic.errors import ConfigError, ProtocolMismatch
from polyclinic.models.base import Array, Unseen
from polyclinic.records.sites.site import Site


def records_of(data: object, columns: tuple[str, ...] | None, width: int, unseen: Unseen = "error") -> Array:
    """(patients, d) records in the model's order of columns.

    Parameters
    ----------
    data
        A matrix, a data frame, or a :class:`~polyclinic.records.sites.site.Site` with features.
    columns, width
        The model's columns, or None where they have no names; and how many there are.
    unseen
        Columns that the model does not know: refused by name, or left out. A column that is lacking is always refused.
    """
    if unseen not in ("error", "drop"):
        raise ConfigError(f"unseen = {unseen!r} is neither 'error' nor 'drop'")
    site = data if isinstance(data, Site) else Site("patients", features=cast(ArrayLike, data))
    if unseen == "drop" and columns is not None and site.columns is not None:
        keep = [i for i, c in enumerate(site.columns) if c in columns]
        site = Site(site.name, features=site.matrix()[:, keep], columns=[site.columns[i] for i in keep])
    X = site.arranged(columns).matrix()
    if X.shape[1] != width:
        raise ProtocolMismatch(
            f"new patients have {X.shape[1]} features, the model {width}",
            hint="give the model's columns: " + (", ".join(columns[:20]) if columns else "in the model's order"),
        )
    return np.asarray(X)
