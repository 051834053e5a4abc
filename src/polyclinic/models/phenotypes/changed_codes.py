"""Codes that changed most at one hospital: patients with each code before and now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.util.table import Table

# definition: counts from 1 to 10 are suppressed (minimum cell size 11)
FEW: Final = 11  # patients that must carry a phenotype before its drift says anything
LISTED: Final = 20  # codes that changed most


def changed_codes(axes: Sequence[Axis], now: SparseTensor, before: SparseTensor | None) -> Table:
    """Patients with each code before and now, by the change of their share in standard errors; small counts hidden."""
    changes: list[tuple[float, list[object]]] = []
    for mode, axis in enumerate(axes, start=1):
        later = _patients_by_code(now, mode)
        earlier = {} if before is None else _patients_by_code(before, mode)
        model_codes = earlier | later if axis.labels is None else dict.fromkeys(axis.labels)
        for code in sorted(earlier | later):
            n, m = earlier.get(code, 0), later.get(code, 0)
            knows = "yes" if code in model_codes else "no"
            if before is not None:
                size = abs(_standardised(n, before.patients, m, now.patients))
                changes.append((size, [axis.name, code, _shown(n), _shown(m), knows]))
            elif knows == "no":
                changes.append((m, [axis.name, code, "no earlier records", _shown(m), knows]))
    rows = [row for _, row in sorted(changes, key=lambda c: -c[0])[:LISTED]]
    return Table(["mode", "code", "patients before", "patients now", "in the model"], rows)


def _standardised(n: int, earlier: int, m: int, later: int) -> float:
    """Difference of two shares over its standard error with one common share."""
    share = (n + m) / max(earlier + later, 1)
    error = float(np.sqrt(share * (1.0 - share) * (1.0 / max(earlier, 1) + 1.0 / max(later, 1))))
    return (m / max(later, 1) - n / max(earlier, 1)) / error if error else 0.0


def _patients_by_code(tensor: SparseTensor, mode: int) -> dict[str, int]:
    codes, patients = np.unique(np.unique(tensor.coords[:, [0, mode]], axis=0)[:, 1], return_counts=True)
    return {tensor.axes[mode].label(int(c)): int(n) for c, n in zip(codes, patients)}


def _shown(count: int) -> str:
    return f"fewer than {FEW}" if 0 < count < FEW else str(count)
