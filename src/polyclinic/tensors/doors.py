"""The doors: tables and matrices that people already have, turned into hospitals."""

from __future__ import annotations

from typing import Any

__all__ = ["which_door"]


def which_door(given: Any) -> str:
    """What to call with something that is neither a tensor nor a site.

    >>> import numpy as np
    >>> which_door(np.ones((2, 3)))
    'call pc.from_numpy(array, axes=[...]) first'
    """
    module = type(given).__module__.split(".")[0]
    if module == "scipy":
        return "call pc.from_scipy(matrix, columns=[...]) first"
    if hasattr(given, "__dataframe__") or hasattr(given, "__arrow_c_stream__") or module in ("pandas", "polars"):
        return 'call pc.from_frame(frame, patient="...", modes=["...", "..."]) first'
    if module == "numpy":
        return "call pc.from_numpy(array, axes=[...]) first"
    return "make them with pc.from_frame, pc.from_scipy, pc.from_numpy, or pc.SparseTensor"
