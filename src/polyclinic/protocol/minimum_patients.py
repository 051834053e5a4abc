"""Floor: before the first sum of a method, one sum of patients by code; codes of too few patients take no part anywhere.

Counted are PATIENTS OVER ALL SITES: a floor of sites, or of each site's own patients, would remove
what the product exists for, phenotypes of one hospital and rare ones that are thinly spread. With n_kj the patients of site
k who have code j in at least one cell::

    support_j = SUM_k n_kj            one sum, in the way of the study; every site folds it and drops the same codes
    code j stays                      if support_j >= minimum

A dropped code keeps its place on the axis and has no cell left, so shapes, public lists and every later sum are as without
a floor; a patient may be left without cells. Nothing is known of the inner method but that it is one.

A site knows its own n_kj, so the total tells it which codes nobody else has: ``support_j = n_kj``. Their later sums would be
that hospital's alone. Where its owner minds (``[policy] min_feeders = 2``, :attr:`Floor.feeders`) it leaves their cells out of its
own part; the codes stay, as for everybody, and nothing more is sent. That is its own affair: the public state is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, field, make_dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError, DataError
from polyclinic.privacy.facts import KnownAttack, StepMeaning
from polyclinic.privacy.guarantee import noisy
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import Arrays, Contribution, Method, MethodFacts, Schema, Step, Total, seeds
from polyclinic.protocol.outcome import Outcome
from polyclinic.protocol.params import Params
from polyclinic.protocol.restarts import Restarts
from polyclinic.records.sites.rare_codes import carriers, without_cells
from polyclinic.records.sites.site import Site

if TYPE_CHECKING:
    from polyclinic.protocol.estimator import Estimator

PATIENTS: Final = 2.0**31  # patients at one site, at most; public
SUPPORT: Final = "support"
FACTS: Final = MethodFacts(
    attacks=(
        KnownAttack(
            "sum",
            "the support sum tells how many patients have each code over all sites, 1 to 10 of them too; they then drop out",
        ),
    ),
    steps={
        SUPPORT: StepMeaning(
            "how many patients have each code, over all sites; codes of few take no part",
            "the total of a code that one patient has",
        )
    },
)
Array = NDArray[np.float64]


class _Counted(Protocol):
    """Public state: the method's own, and which codes are kept once they were counted."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]
    shape: tuple[int, ...]
    inner: object
    done: bool
    kept: tuple[NDArray[np.bool_], ...]
    support: tuple[NDArray[np.float64], ...]  # of the codes that are kept; 0 of the others


class _Inside(Protocol):
    """Private state: the method's own, None before it opened the site."""

    inner: object | None


def models_of(method: object) -> list[Estimator]:
    """The models of all starts of a method that has them inside, also under a floor; else none."""
    inner = method.method if isinstance(method, MinimumPatients) else method
    return inner.models_ if isinstance(inner, Restarts) else []


class MinimumPatients(Method[Params, _Counted, _Inside]):
    """A method without the codes that fewer than ``minimum`` patients have over all sites.

    Parameters
    ----------
    method
        On tensors, without privacy: the support would have to be paid for, too.
    minimum
        Fewest patients of a code, over all sites.
    modes
        Names of the feature modes, for messages.

    Examples
    --------
    >>> import polyclinic as pc
    >>> from polyclinic.protocol.loop import run
    >>> sites = pc.datasets.icu_network(patients=120, seed=0)
    >>> floor = MinimumPatients(pc.SumALS(rank=2, rounds=2), minimum=30)
    >>> public = run(floor, sites).public
    >>> [int(k.sum()) for k in public.kept] == [int((c >= 30).sum()) for c in floor.counted(sites)]
    True
    """

    def __init__(self, method: Estimator, minimum: int, modes: tuple[str, ...] = ()) -> None:
        if method.needs != "tensor" or noisy(method.params.privacy):
            raise ConfigError(
                f"{method.name}: a floor counts the patients of every code; not of features, and not under [privacy]"
            )
        self.method, self.minimum, self.modes = method, minimum, modes
        self.feeders = 1  # hospitals that a code must have for this one to take part in its sums; of the owner's policy
        self.params, self.needs, self.name, self.version = method.params, method.needs, method.name, method.version  # type: ignore[misc]
        self.slack, self.exact = method.slack, method.exact  # type: ignore[misc]
        self.facts = MethodFacts.joined([method.facts, FACTS])  # type: ignore[misc]
        self.Public = make_dataclass(  # type: ignore[misc]
            "FloorPublic",
            [
                ("shape", tuple[int, ...]),
                ("inner", method.Public),
                ("done", bool, field(default=False)),
                ("kept", tuple[NDArray[np.bool_], ...], field(default=())),
                ("support", tuple[NDArray[np.float64], ...], field(default=())),
            ],
            frozen=True,
        )
        fields = [("inner", method.Private | None, field(default=None))]
        self.Private = make_dataclass("FloorPrivate", fields, frozen=True)  # type: ignore[misc]
        # a site as the method sees it, made once
        self._less: WeakKeyDictionary[Site, tuple[tuple[NDArray[np.bool_], ...], Site]] = WeakKeyDictionary()
        self._mine: WeakKeyDictionary[Site, list[Array]] = WeakKeyDictionary()

    def counted(self, sites: Sequence[Site]) -> list[Array]:
        """Per feature mode the patients of each code over some sites."""
        return [
            np.sum([carriers(s.counts(), n) for s in sites], axis=0).astype(np.float64)
            for n in range(1, sites[0].counts().ndim)
        ]

    # ---- coordinator

    def init_public(self, setting: Schema, rng: np.random.Generator) -> _Counted:
        """public_0 = (begin of the method, no code counted yet)."""
        state: _Counted = self.Public(tuple(setting.shape), self.method.init_public(setting, rng))
        return state

    def next_step(self, public: _Counted) -> Step | None:
        """First the support, c_n = sum_k (patients of each code of mode n at site k); then the method's own sums."""
        if public.done:
            return self.method.next_step(public.inner)
        shapes = {f"mode{n}": (int(size),) for n, size in enumerate(public.shape, start=1)}
        return Step(0, SUPPORT, shapes, bound=PATIENTS, counts=False)

    def update_public(self, step: Step, public: _Counted, total: Total) -> _Counted:
        """kept_n = (c_n >= minimum); later public' = method.update_public(step, public, total)."""
        if public.done:
            return replace(public, inner=self.method.update_public(step, public.inner, total))
        masks = tuple(total.arrays[f"mode{n}"] >= self.minimum - 0.5 for n in range(1, len(public.shape) + 1))
        faults = [
            f"{self._mode(n)}: none of {len(k)} codes has {self.minimum} patients over all sites"
            for n, k in enumerate(masks)
            if not k.any()
        ]
        if faults:
            raise DataError(
                "no code is left",
                faults=faults,
                hint=f"[tensor] minimum_patients (now {self.minimum}), coarser codes, or more sites",
            )
        support = tuple(np.where(k, total.arrays[f"mode{n}"], 0.0) for n, k in enumerate(masks, start=1))
        return replace(public, done=True, kept=masks, support=support)

    def round_metrics(self, public: _Counted) -> Mapping[str, float | None]:
        return self.method.round_metrics(public.inner) if public.done else {}

    # ---- hospital

    def init_site(self, site: Site, public: _Counted, rng: np.random.Generator) -> _Inside:
        return self._own(None)

    def contribute(
        self, step: Step, site: Site, private: _Inside, public: _Counted, rng: np.random.Generator
    ) -> tuple[_Inside, Contribution]:
        """x_k = patients of each code; later the method's part of the cells whose codes are all kept."""
        if not public.done:
            counts = enumerate(self.counted([site]), start=1)
            return private, Contribution({f"mode{n}": c for n, c in counts})
        less = self._site(site, public)
        state, out = self.method.contribute(step, less, self._opened(less, private, public), public.inner, rng)
        return self._own(state), out

    def divergence_hint(self, site: Site, public: _Counted) -> str:
        return str(self.method.divergence_hint(self._site(site, public), public.inner))

    def finalize_site(self, site: Site, private: _Inside, public: _Counted) -> Arrays:
        less = self._site(site, public)
        arrays = self.method.finalize_site(less, self._opened(less, private, public), public.inner)
        if less.patients == site.patients:
            return arrays
        expanded = {}
        for name, a in arrays.items():  # rows of patients who took no part are 0
            if len(a) == less.patients:
                expanded[name] = np.zeros((site.patients, *a.shape[1:]), a.dtype)
                expanded[name][self._stay(site, public)] = a
        return {**arrays, **expanded}

    def _own(self, inner: object) -> _Inside:
        state: _Inside = self.Private(inner)
        return state

    def _opened(self, less: Site, private: _Inside, public: _Counted) -> object:
        """The inner method's private state; it begins with the codes that are left, as if there were no others."""
        if private.inner is not None:
            return private.inner
        return self.method.init_site(less, public.inner, seeds(self.params.seed, less.name, "open"))

    def _site(self, site: Site, public: _Counted) -> Site:
        if not public.kept:
            return site
        entry, masks = self._less.get(site), self._masks(site, public)
        if entry is None or any(not np.array_equal(a, b) for a, b in zip(entry[0], masks)):
            less = without_cells(site, masks)
            stay = self._stay(site, public)
            entry = (masks, less if len(stay) == site.patients else less.take(stay))
            self._less[site] = entry
        return entry[1]

    def _stay(self, site: Site, public: _Counted) -> NDArray[np.int64]:
        """Patients who have a cell of codes that are kept; the others take no part, as where all sites are in one process."""
        out: NDArray[np.int64] = np.unique(without_cells(site, public.kept).counts().coords[:, 0])
        return out

    def _masks(self, site: Site, public: _Counted) -> tuple[NDArray[np.bool_], ...]:
        """Codes of which this site sends cells: those that are kept and, where the owner asks for it, that others have, too."""
        if self.feeders < 2:
            return public.kept
        if site not in self._mine:
            self._mine[site] = self.counted([site])
        return tuple(k & (s - m > 0.5) for k, s, m in zip(public.kept, public.support, self._mine[site]))

    def _mode(self, n: int) -> str:
        return f"mode {self.modes[n]!r}" if n < len(self.modes) else f"mode {n + 1}"

    # ---- results: those of the inner method, which knows nothing of the floor but that its sum was taken

    def publish(self, outcome: Outcome) -> None:
        """The fitted model of an outcome of any engine."""
        self.method.facts = self.facts  # type: ignore[misc]  # its card speaks of the support, too
        self.method.publish(replace(outcome, public=outcome.public.inner, privates={}))

    @property
    def model_(self) -> Estimator:
        """The fitted model itself."""
        return self.method.model_

    def with_params(self, **params: object) -> MinimumPatients:
        """The same study with some of the method's parameters changed."""
        return MinimumPatients(self.method.with_params(**params), self.minimum, self.modes)

    def __getattr__(self, name: str) -> object:
        inner = self.__dict__.get("method")
        if name.startswith("__") or inner is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(inner, name)
