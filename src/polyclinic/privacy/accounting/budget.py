"""The privacy a study asks for."""

from __future__ import annotations

import warnings
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from polyclinic.errors import ConfigError

MOST: Final = 1e9  # no noise worth the name belongs to a larger epsilon, and the curve's tails are lost in float64
WEAK: Final = 20  # an epsilon above it gets a warning


class Privacy(BaseModel):
    """Ask for differential privacy: ``pc.DPEM(privacy=pc.Privacy(epsilon=1.0, delta=1e-6))``.

    Parameters
    ----------
    epsilon
        Bound on the privacy loss of the whole study. Smaller protects better. Usual values are 0.5 to 10.
    delta
        Probability with which the bound may fail. It should be far below one divided by the number of patients.
    level
        ``"patient"``: all records of a patient. ``"entry"``: one count of the tensor, the papers' heuristic mechanism.
    max_sites_per_patient
        At how many sites one patient may appear. All of them are charged.
    clip, count_cap
        Bound of the gradient, and the largest count (``level="entry"`` alone).

    See Also
    --------
    DPEM : phenotypes with patient-level differential privacy.
    audit : tests whether a method has the noise that its ledger charged.

    References
    ----------
    Dwork, Roth. The Algorithmic Foundations of Differential Privacy. 2014.

    Examples
    --------
    >>> Privacy(epsilon=1.0, delta=1e-6)
    Privacy(epsilon=1.0, delta=1e-06, level='patient', max_sites_per_patient=1, clip=None, count_cap=None)
    >>> Privacy(epsilon=-1)
    Traceback (most recent call last):
    polyclinic.errors.ConfigError: [PC200] Privacy: wrong parameters
      - epsilon: Input should be greater than 0 (got -1)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    epsilon: float = Field(gt=0, le=MOST, description="Bound on the privacy loss, for the whole study.")
    delta: float = Field(1e-6, gt=0, lt=1, description="Probability with which the bound may fail.")
    level: Literal["patient", "entry"] = Field(
        "patient", description="Neighbouring data: one patient added or removed, or one entry changed (the papers')."
    )
    max_sites_per_patient: int = Field(1, ge=1, description="At how many sites one patient may appear; all are paid.")
    clip: float | None = Field(None, gt=0, description="Gradient bound L of the papers' mechanism (level='entry').")
    count_cap: float | None = Field(None, gt=0, description="Largest count (level='entry').")

    def __init__(self, epsilon: float, delta: float = 1e-6, **more: object) -> None:
        try:
            super().__init__(epsilon=epsilon, delta=delta, **more)
        except ValidationError as e:
            unknown = f"not a parameter of Privacy; known: {', '.join(type(self).model_fields)}"
            said = [
                unknown if f["type"] == "extra_forbidden" else f"{f['msg']} (got {f['input']!r})" for f in e.errors()
            ]
            faults = [f"{'.'.join(map(str, f['loc']))}: {text}" for f, text in zip(e.errors(), said)]
            raise ConfigError("Privacy: wrong parameters", faults=faults) from None
        if epsilon > WEAK:
            warnings.warn(
                f"epsilon {epsilon:g} is above {WEAK}: the bound on what an attacker learns about a patient is weak. Usual values are 0.5 to 10",
                UserWarning,
                stacklevel=2,
            )
