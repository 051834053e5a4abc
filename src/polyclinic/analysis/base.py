"""An act: a method that takes a fitted model as given and answers one question by sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyclinic.analysis.projection import Projector, half_of
from polyclinic.protocol.estimator import Configured
from polyclinic.protocol.interfaces import Arrays, Method
from polyclinic.protocol.params import Params
from polyclinic.records.sites.site import Site

# limit: of the encoding of a sum
PATIENTS: Final = 2.0**31  # patients at one site, at most; public


class AnalysisParams(Params):
    """What every act has."""

    model: object = Field(None, description="The fitted model.")
    key: str = Field("polyclinic", description="Of the halves; public, fixed before the data are read.")
    halving: int = Field(0, ge=0, description="Which halving of the patients.")


@dataclass(frozen=True)
class NoMemory:
    """An act keeps nothing from one sum to the next."""


class Analysis(Configured, Method):
    """Base of the acts: places patients once, keeps no private state."""

    Params: ClassVar[type[Params]] = AnalysisParams
    Private = NoMemory
    params: Any

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        self.placer = Projector.of(self.params.model)
        self._halves: WeakKeyDictionary[Site, NDArray[np.int64]] = WeakKeyDictionary()

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # an act is made once; what it derives may bear a parameter's name

    def half(self, site: Site) -> NDArray[np.int64]:
        """(patients,) 0 or 1."""
        return half_of(site, self.params.key, self._halves, self.params.halving)

    def init_site(self, site: Site, public: object, rng: np.random.Generator) -> NoMemory:
        site.counts()
        return NoMemory()

    def finalize_site(self, site: Site, private: NoMemory, public: object) -> Arrays:
        return {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.placer.rank} phenotypes)"
