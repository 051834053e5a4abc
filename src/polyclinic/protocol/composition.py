"""Methods made of methods: several in lock-step, one after another, on halves of the patients. No method is changed.

A combinator is a :class:`Method` whose public state holds the states of its parts, so that every engine, sum, door and
checkpoint serves it as it is. Each part draws its random numbers as if it ran alone, so its result is the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, field, make_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError
from polyclinic.privacy.guarantee import noisy
from polyclinic.protocol.interfaces import Arrays, Contribution, Method, MethodFacts, Schema, Step, Total, seeds
from polyclinic.protocol.params import Params
from polyclinic.protocol.patient_halves import Taken
from polyclinic.records.sites.site import Site

if TYPE_CHECKING:
    from polyclinic.protocol.estimator import Estimator


class OnHalf(Method[Params, object, object]):
    """A method on one half of every site's patients."""

    def __init__(self, method: Method, key: str, *, half: int, halving: int = 0) -> None:
        self.method, self.taken = method, Taken(key, halving, half)
        self.params, self.facts, self.additive = method.params, method.facts, method.additive  # type: ignore[misc]
        self.name, self.version, self.needs, self.exact = method.name, method.version, method.needs, method.exact  # type: ignore[misc]
        self.Public, self.Private = method.Public, method.Private  # type: ignore[misc]

    @property
    def unsettled(self) -> str:
        return self.method.unsettled

    def init_public(self, setting: Schema, rng: np.random.Generator) -> object:
        """public_0 = method.begin: the half changes who is counted, not how it starts."""
        return self.method.init_public(setting, rng)

    def next_step(self, public: object) -> Step | None:
        """step = method.next_step(public)."""
        return self.method.next_step(public)

    def update_public(self, step: Step, public: object, total: Total) -> object:
        """public' = method.update_public(step, public, total), where total = sum_k x_k over the half's patients."""
        return self.method.update_public(step, public, total)

    def round_metrics(self, public: object) -> Mapping[str, float | None]:
        return self.method.round_metrics(public)

    def init_site(self, site: Site, public: object, rng: np.random.Generator) -> object:
        return self.method.init_site(self.taken(site), public, rng)

    def contribute(
        self, step: Step, site: Site, private: object, public: object, rng: np.random.Generator
    ) -> tuple[object, Contribution]:
        """x_k = method's own part of the site's patients p with half(p) = h."""
        return self.method.contribute(step, self.taken(site), private, public, rng)

    def divergence_hint(self, site: Site, public: object) -> str:
        return self.method.divergence_hint(self.taken(site), public)

    def finalize_site(self, site: Site, private: object, public: object) -> Arrays:
        return self.method.finalize_site(self.taken(site), private, public)


class Parallel(Method[Params, object, object]):
    """Several methods in lock-step: one sum carries the next sum of each that is not finished.

    Arrays are called ``q/name`` for part q, and each part's are divided by its bound (a power of two, so exactly), so that
    a secure sum's fixed-point scale serves parts of different size. What a part learns is what it learns alone.

    Parameters
    ----------
    parts
        The methods; all add in the same way.
    disjoint
        No patient feeds more than one part (halves): then one patient moves the joint sum as far as one part's, and the
        stack costs one epsilon. Parts with privacy must be disjoint and ask for the same noise.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.icu_network(patients=120, seed=0)
    >>> several = Parallel([pc.SumALS(rank=r, rounds=2) for r in (2, 3)])
    >>> from polyclinic.protocol.loop import run
    >>> [len(p.factors[0].T) for p in several.publics(run(several, sites).public)]
    [2, 3]
    """

    name = "ladder"
    exact: float | None  # type: ignore[misc]

    def __init__(self, parts: Sequence[Method], *, disjoint: bool = False, name: str | None = None) -> None:
        _refuse_unlike(parts, disjoint)
        self.parts, self.disjoint = tuple(parts), disjoint
        self.params, self.needs = parts[0].params, parts[0].needs  # type: ignore[misc]
        self.facts = MethodFacts.joined([m.facts for m in parts])  # type: ignore[misc]
        self.additive = all(m.additive for m in parts)  # type: ignore[misc]
        if name is not None:
            self.name = name  # type: ignore[misc]
        exact = [m.exact for m in parts]
        self.exact = None if any(e is None for e in exact) else max(e for e in exact if e is not None)
        self.Public = make_dataclass("LadderPublic", [(f"q{i}", m.Public) for i, m in enumerate(parts)], frozen=True)  # type: ignore[misc]
        self.Private = make_dataclass("LadderPrivate", [(f"q{i}", m.Private) for i, m in enumerate(parts)], frozen=True)  # type: ignore[misc]

    def publics(self, public: object) -> tuple[Any, ...]:
        """The public state of every part."""
        return tuple(getattr(public, f"q{i}") for i in range(len(self.parts)))

    def privates(self, private: object) -> tuple[object, ...]:
        """The private state of every part, at one site."""
        return tuple(getattr(private, f"q{i}") for i in range(len(self.parts)))

    def _steps(self, public: object) -> dict[int, Step]:
        steps = {i: m.next_step(p) for i, (m, p) in enumerate(zip(self.parts, self.publics(public)))}
        return {i: s for i, s in steps.items() if s is not None}

    # ---- coordinator

    def init_public(self, setting: Schema, rng: np.random.Generator) -> object:
        """public_0 = (begin_1, ..., begin_Q): each part from its own seed."""
        return self.Public(*(m.init_public(setting, seeds(m.params.seed, "begin")) for m in self.parts))

    def next_step(self, public: object) -> Step | None:
        """The next sums of all unfinished parts in one: shapes ``q/name``, each bounded by 1 after division by its unit."""
        steps = self._steps(public)
        if not steps:
            return None
        first = next(iter(steps.values()))
        if any(s.how != "sum" for s in steps.values()) and len(self.parts) > 1:
            raise ConfigError(f"step {first.name!r} shows single contributions: such a method runs alone")
        shapes: dict[str, tuple[int, ...]] = {}
        for i, s in steps.items():
            shapes |= {f"{i}/{n}": tuple(shape) for n, shape in s.shapes.items()}
            shapes |= {f"{i}/~weight": (1,)} if s.weight_bound != 1.0 else {}
        joint = Step(
            max(s.round for s in steps.values()),
            "+".join(dict.fromkeys(s.name for s in steps.values())),
            shapes,
            bound=1.0,
            counts=any(s.counts for s in steps.values()),
            asides=tuple(f"{i}/{a}" for i, s in steps.items() for a in (s.asides if s.counts else s.shapes)),
        )
        return _with_noise(joint, list(steps.values()))

    def update_public(self, step: Step, public: object, total: Total) -> object:
        """public_q' = combine_q(step_q, public_q, unit_q * total_q) for every part that had a sum."""
        publics = list(self.publics(public))
        for i, s in self._steps(public).items():
            unit = 1.0 if step.sensitivity is not None else _unit(s)
            arrays = {n: total.arrays[f"{i}/{n}"] * unit for n in s.shapes}
            weight = float(total.members)
            if s.weight_bound != 1.0:
                weight = float(total.arrays[f"{i}/~weight"][0]) * s.weight_bound
            publics[i] = self.parts[i].update_public(
                s, publics[i], Total(arrays, weight, total.members, total.noise_sd)
            )
        return self.Public(*publics)

    def round_metrics(self, public: object) -> Mapping[str, float | None]:
        return self.parts[0].round_metrics(self.publics(public)[0])

    # ---- hospital

    def init_site(self, site: Site, public: object, rng: np.random.Generator) -> object:
        pairs = zip(self.parts, self.publics(public))
        return self.Private(*(m.init_site(site, p, seeds(m.params.seed, site.name, "open")) for m, p in pairs))

    def contribute(
        self, step: Step, site: Site, private: object, public: object, rng: np.random.Generator
    ) -> tuple[object, Contribution]:
        """x = (w_1 x_1 / unit_1, ..., w_Q x_Q / unit_Q), unit_q the power of two above the part's bound."""
        privates, publics = list(self.privates(private)), self.publics(public)
        arrays: dict[str, NDArray[np.float64]] = {}
        for i, s in self._steps(public).items():
            rng_of_part = seeds(self.parts[i].params.seed, site.name, s.round, s.name)
            privates[i], part = self.parts[i].contribute(s, site, privates[i], publics[i], rng_of_part)
            unit = 1.0 if step.sensitivity is not None else _unit(s)
            arrays |= {f"{i}/{n}": np.asarray(a) * (part.weight / unit) for n, a in part.arrays.items()}
            if s.weight_bound != 1.0:
                arrays[f"{i}/~weight"] = np.array([part.weight / s.weight_bound])
        return self.Private(*privates), Contribution(arrays)

    def divergence_hint(self, site: Site, public: object) -> str:
        return self.parts[0].divergence_hint(site, self.publics(public)[0])

    def finalize_site(self, site: Site, private: object, public: object) -> Arrays:
        out: dict[str, NDArray[np.float64]] = {}
        for i, (m, mine, p) in enumerate(zip(self.parts, self.privates(private), self.publics(public))):
            out |= {f"{i}/{n}": a for n, a in m.finalize_site(site, mine, p).items()}
        return out


def _refuse_unlike(parts: Sequence[Method], disjoint: bool) -> None:
    """Refuse methods that cannot run side by side."""
    if not parts:
        raise ConfigError("a ladder needs at least one method")
    first = parts[0]
    faults = [
        f"{m.name}: aggregation {m.params.aggregation!r}, the first has {first.params.aggregation!r}"
        for m in parts
        if m.params.aggregation != first.params.aggregation
    ]
    faults += [f"{m.name} needs {m.needs}, the first {first.needs}" for m in parts if m.needs != first.needs]
    many_parts = len(parts) > 1
    if many_parts and not disjoint and any(noisy(m.params.privacy) for m in parts):
        faults.append("with privacy every part costs budget: use one method per study, or halves")
    if faults:
        raise ConfigError("these methods cannot run side by side", faults=faults)
    if many_parts and disjoint and first.unsettled:
        fault = f"{first.name} cannot be fitted on halves that pay together"
        raise ConfigError(fault, faults=[first.unsettled], hint="do so, or fit once: [study] replicate = 0")


def _with_noise(joint: Step, steps: Sequence[Step]) -> Step:
    """The joint step with the noise that its parts are paid for, or on the grid of their whole numbers."""
    first = steps[0]
    if first.sensitivity is not None and first.multiplier is not None:
        names = ("sensitivity", "multiplier", "grid", "adjacency", "formal", "sites_per_patient")
        noise = {name: getattr(first, name) for name in names}
        if any(getattr(s, name) != value for s in steps for name, value in noise.items()):
            raise ConfigError("parts that are charged must ask for the same noise")
        return replace(joint, bound=max(s.bound for s in steps), **noise)
    if all(s.grid is not None and s.noise_sd == 0 and s.weight_bound == 1.0 for s in steps):
        # whole numbers all of them (packed sums): the joint sum is whole, too, on the finest of their grids
        return replace(joint, grid=min(float(s.grid or 0.0) / _unit(s) for s in steps))
    return joint


def _unit(step: Step) -> float:
    """A power of two that no entry, weighted, exceeds."""
    return float(2.0 ** np.ceil(np.log2(max(step.bound * step.weight_bound, 1e-300))))


def half_method(method: Estimator, key: str, *, half: int, halving: int = 0) -> OnHalf:
    """One half's own copy of a method."""
    seed = int(seeds(method.params.seed, "half", halving, half).integers(1, 2**31))
    return OnHalf(method.with_params(seed=seed), key, half=half, halving=halving)


class _Both(Protocol):
    """Public state of :class:`Sequential`: the first method's, and the second's once it began."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]
    shape: tuple[int, ...]
    sites: tuple[str, ...]
    first: object
    rounds: int
    second: object | None


class _Own(Protocol):
    """Private state of :class:`Sequential`, at one site."""

    first: object
    second: object | None


class Sequential(Method[Params, _Both, _Own]):
    """A method, and after its end another one that takes its public outcome as given: one run, one roster, one ledger.

    Parameters
    ----------
    first
        Runs to its end.
    second
        Makes the next method from the first one's final public state; at the coordinator and at every site the same.
    kinds
        Classes of the second's public and private states.
    """

    def __init__(
        self, first: Method, second: Callable[[object, Schema], Method], kinds: tuple[type[object], type[object]]
    ) -> None:
        self.first, self.second, self.facts = first, second, first.facts  # type: ignore[misc]
        self.params, self.needs, self.name, self.version = first.params, first.needs, first.name, first.version  # type: ignore[misc]
        self._made: tuple[object, Method] | None = None
        self.additive = first.additive  # type: ignore[misc]
        self.Public = make_dataclass(  # type: ignore[misc]
            "ThenPublic",
            [
                ("shape", tuple[int, ...]),
                ("sites", tuple[str, ...]),
                ("first", first.Public),
                ("rounds", int, field(default=0)),
                ("second", kinds[0] | None, field(default=None)),
            ],
            frozen=True,
        )
        self.Private = make_dataclass(  # type: ignore[misc]
            "ThenPrivate", [("first", first.Private), ("second", kinds[1] | None, field(default=None))], frozen=True
        )

    def _own(self, first: object, second: object = None) -> _Own:
        state: _Own = self.Private(first, second)
        return state

    def after(self, public: _Both) -> Method:
        """The second method; made once for a final state of the first."""
        if self._made is None or self._made[0] is not public.first:
            setting = Schema(tuple(public.shape), (), tuple(public.sites))
            self._made = (public.first, self.second(public.first, setting))
        return self._made[1]

    def init_public(self, setting: Schema, rng: np.random.Generator) -> _Both:
        """public_0 = (begin_1, nothing yet of the second)."""
        state: _Both = self.Public(tuple(setting.shape), tuple(setting.sites), self.first.init_public(setting, rng))
        return self._advanced(state, 0)

    def _advanced(self, public: _Both, rounds: int) -> _Both:
        if public.second is not None or self.first.next_step(public.first) is not None:
            return public
        m = self.after(public)
        setting = Schema(tuple(public.shape), (), tuple(public.sites))
        return replace(public, rounds=rounds, second=m.init_public(setting, seeds(m.params.seed, "begin")))

    def next_step(self, public: _Both) -> Step | None:
        """step = next_1 until it is None, then next_2 with rounds counted on."""
        if public.second is None:
            return self.first.next_step(public.first)
        step = self.after(public).next_step(public.second)
        return None if step is None else replace(step, round=step.round + public.rounds, counts=False)

    def update_public(self, step: Step, public: _Both, total: Total) -> _Both:
        """public_1' = combine_1(step, public_1, total); after its end public_2' = combine_2(step, public_2, total)."""
        if public.second is None:
            return self._advanced(
                replace(public, first=self.first.update_public(step, public.first, total)), step.round
            )
        m = self.after(public)
        inner = m.next_step(public.second)
        assert inner is not None
        return replace(public, second=m.update_public(inner, public.second, total))

    def round_metrics(self, public: _Both) -> Mapping[str, float | None]:
        return (
            self.first.round_metrics(public.first)
            if public.second is None
            else self.after(public).round_metrics(public.second)
        )

    def init_site(self, site: Site, public: _Both, rng: np.random.Generator) -> _Own:
        return self._own(self.first.init_site(site, public.first, rng))

    def contribute(
        self, step: Step, site: Site, private: _Own, public: _Both, rng: np.random.Generator
    ) -> tuple[_Own, Contribution]:
        """x_k = contribute_1 until the first has ended, then contribute_2, each given its own states."""
        if public.second is None:
            state, out = self.first.contribute(step, site, private.first, public.first, rng)
            return self._own(state), out
        m = self.after(public)
        inner = m.next_step(public.second)
        assert inner is not None
        state = private.second
        if state is None:
            state = m.init_site(site, public.second, seeds(m.params.seed, site.name, "open"))
        state, out = m.contribute(
            inner, site, state, public.second, seeds(m.params.seed, site.name, inner.round, inner.name)
        )
        return self._own(private.first, state), out

    def divergence_hint(self, site: Site, public: _Both) -> str:
        return self.first.divergence_hint(site, public.first)

    def finalize_site(self, site: Site, private: _Own, public: _Both) -> Arrays:
        return self.first.finalize_site(site, private.first, public.first)
