"""Latent classes over hospitals: categories, counts and measurements together, values missing at random; both halves.

Maximises sum_i log sum_j w_j prod_c f(x_ic; theta_jc) over all hospitals' patients i. A column c is categorical, Poisson or normal,
so the sums of its statistics t(x) are all that EM needs (:mod:`polyclinic.models.mixtures.columns`). One round, for every class j:

    hospital k     r_ij = w_j prod_c f(x_ic; theta_jc) / sum_l w_l prod_c f(x_ic; theta_lc)
                   T_j  = sum_i r_ij t(x_i),   t(x) = (1, levels as 0 and 1, counts, (z, z^2, 1) of measurements)
    coordinator    w_j' = T_j0 / n,   theta_jc' = the maximum likelihood estimate from T_jc

with T summed over the hospitals. The moments of all patients and the levels of every column come first and tell the kinds of the
columns. One sum of pairwise tables gives the start (:mod:`.pair_start`). The phases with privacy are :mod:`.private_rounds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from scipy.special import logsumexp

from polyclinic.errors import ConfigError, DataError
from polyclinic.methods.latent_classes.fitted import FittedClasses
from polyclinic.methods.latent_classes.pair_start import PairTable, binned
from polyclinic.methods.latent_classes.private_rounds import GRID, NoisyClassEM, NoisyPairs
from polyclinic.methods.latent_classes.state import FACTS, ClassPrivate, ClassPublic, LatentClassParams
from polyclinic.methods.moments.moments import RADIUS, ROOM, MomentsPhase, SummedMoments
from polyclinic.models.mixtures.columns import Array, Column, Layout
from polyclinic.models.mixtures.gaussian import blocks
from polyclinic.protocol.interfaces import Answer, Arrays, Contribution, Schema, Step, Total
from polyclinic.protocol.phases import Phase, PhaseDispatch
from polyclinic.records.sites.site import Site

__all__ = ["GRID", "LatentClass"]

LEVELS: Final = 32  # limit: levels of a category that is told by its values alone
FEW_VALUES: Final = 10  # definition: whole numbers with so few different values are categories, as `kinds` says


class LatentClass(PhaseDispatch[ClassPublic, ClassPrivate], FittedClasses):
    """Fit latent classes of patients whose columns are categories, counts and measurements.

    Within a class the columns are independent. Class profiles are shared and equal those of the pooled records. Every site
    keeps its own shares of the classes (``shares_``). Empty values (NaN) are missing at random. The types of a frame decide the
    kinds of columns: texts, categories and booleans are categorical, whole numbers counts, the rest continuous. In plain
    arrays, whole numbers of at least 0 with at most 10 values are categories and other whole numbers counts. With ``privacy``
    kinds, levels and ``bounds`` are public and must be given.

    See Also
    --------
    GaussianMixture : for measurements that depend on each other.

    References
    ----------
    Vermunt, Magidson. Latent Class Cluster Analysis. In: Applied Latent Class Analysis, Cambridge University Press 2002.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> ill = rng.random(600) < 0.4
    >>> frame = {"smoker": np.where(rng.random(600) < np.where(ill, 0.9, 0.1), "yes", "no"),
    ...          "visits": rng.poisson(np.where(ill, 8, 2)), "crp": rng.normal(np.where(ill, 40.0, 5.0), 4.0)}
    >>> m = LatentClass(n_components=2, seed=0).fit({"north": frame})
    >>> m.weights_.round(1).tolist(), [c.kind for c in m.layout_.columns]
    ([0.6, 0.4], ['categorical', 'count', 'continuous'])
    """

    name = "latentclass"
    version = 2
    facts = FACTS
    additive = True  # with privacy
    needs = "features"
    exact = 1e-6
    Params = LatentClassParams
    Public = ClassPublic
    Private = ClassPrivate
    params: LatentClassParams

    # ---- coordinator

    def init_public(self, setting: Schema, rng: np.random.Generator) -> ClassPublic:
        """w_j = 1 / k; the columns' kinds are found first, or given with privacy."""
        p, d, k = self.params, setting.shape[0], self.params.n_components
        names = setting.columns or tuple(f"feature {j}" for j in range(d))
        unknown = sorted({*p.kinds, *p.bounds} - set(names))
        if unknown:
            raise ConfigError(
                "kinds or bounds of columns that no site has", faults=[repr(n) for n in unknown], hint=", ".join(names)
            )
        layout = Layout(() if p.privacy is None else tuple(self._public_column(n) for n in self._given(names)))
        moments = SummedMoments.begin(d, RADIUS, crossed=False)
        return self.outset(ClassPublic("", 0, names, moments, layout, np.ones(k) / k, np.zeros((k, 0))))

    def _given(self, names: tuple[str, ...]) -> tuple[str, ...]:
        faults = [f"kinds: {n} is not given" for n in names if n not in self.params.kinds]
        if faults:
            raise ConfigError("with privacy the kind of every column is public", faults=faults)
        return names

    def _public_column(self, name: str) -> Column:
        kind = self.params.kinds[name]
        if isinstance(kind, list | tuple):
            return Column(name, "categorical", tuple(str(x) for x in kind))
        low, high = self.params.bounds[name]
        if kind == "count":
            return Column(name, "count", unit=max(high, 1.0), low=max(low, 0.0), high=high)
        return Column(name, "continuous", centre=(low + high) / 2, unit=(high - low) / 2, low=low, high=high)

    @property
    def phases(self) -> Mapping[str, Phase[ClassPublic, ClassPrivate]]:
        if self.params.privacy is not None:
            return {"pairs": NoisyPairs(self), "em": NoisyClassEM(self)}
        return {
            "moments": ClassMoments(self),
            "levels": Levels(self),
            "pairs": Pairs(self),
            "em": ClassEM(self),
            "score": ClassScore(self),
        }

    def begin_rounds(self, public: ClassPublic) -> ClassPublic:
        """Begin EM from the explicit start, or from the classes that the pairwise tables gave."""
        p = self.params
        if p.profiles_init is None:
            return replace(public, round=1)
        profiles, weights = np.array(p.profiles_init, float), np.array(p.weights_init, float)
        if profiles.shape[1] != public.layout.profile:
            raise ConfigError(
                f"profiles_init has {profiles.shape[1]} numbers a class, these columns have {public.layout.profile}",
                faults=[f"{c.name}: {c.kind}, {c.parameters} numbers" for c in public.layout.columns],
            )
        return replace(public, round=1, weights=weights, profiles=profiles)

    def round_metrics(self, public: ClassPublic) -> Mapping[str, float | None]:
        bound, gain = public.last_round
        return {"objective": None if bound is None else -bound, "lower_bound": bound, "gain": gain}

    # ---- hospital k

    def init_site(self, site: Site, public: ClassPublic, rng: np.random.Generator) -> ClassPrivate:
        X = site.matrix()
        faults = [f"{n}: values beyond {RADIUS:g}" for n, x in zip(public.names, X.T) if (np.abs(x) > RADIUS).any()]
        faults += [] if self.params.privacy is None else public.layout.faults(X)
        _refuse(site, faults)
        return ClassPrivate(np.full(self.params.n_components, 1.0 / self.params.n_components))

    def records(self, site: Site, public: ClassPublic) -> Array:
        """Return the site's records, checked against the kinds that the sums over all sites told."""
        _refuse(site, public.layout.faults(site.matrix()))
        return site.matrix()

    def shares_at(self, private: ClassPrivate, public: ClassPublic) -> Array:
        """Return the classes' shares at a site: its own, or those of all patients."""
        return private.weights if self.params.shares == "site" and not public.binned else public.weights

    def finalize_site(self, site: Site, private: ClassPrivate, public: ClassPublic) -> Arrays:
        r, _ = responsibilities(public, self.shares_at(private, public), site.matrix())
        return {"responsibilities": r, "shares": r.mean(0) if len(r) else np.zeros(r.shape[1])}

    def divergence_hint(self, site: Site, public: ClassPublic) -> str:
        return f"raise reg_covar (now {self.params.reg_covar:g}) or smoothing (now {self.params.smoothing:g})"


def _refuse(site: Site, faults: list[str]) -> None:
    if faults:
        raise DataError(f"site {site.name!r}: the values do not fit the columns' kinds", faults=faults)


class ClassMoments(MomentsPhase[ClassPublic, ClassPrivate]):
    """Number of patients, and mean and unit of every column."""

    def records(self, site: Site, public: ClassPublic) -> Array:
        """Return the records with missing values at the mean so far."""
        X = site.matrix()
        return np.where(np.isnan(X), public.moments.mean, X)


class Levels(Phase[ClassPublic, ClassPrivate]):
    """Patients at each level of each column: they tell the kinds of columns that were not given."""

    fit: LatentClass

    def step(self, public: ClassPublic) -> Step:
        shapes: dict[str, tuple[int, ...]] = {"levels": (len(public.names), LEVELS + 3)}
        return Step(0, "levels", shapes, bound=max(public.moments.n, 1.0) * ROOM, grid=1.0, counts=False)

    def contribute(self, step: Step, site: Site, private: ClassPrivate, public: ClassPublic) -> Answer[ClassPrivate]:
        """x_k = per column, the values that are known, broken or negative, above all levels, and at each level."""
        X = site.matrix()
        counts = np.zeros((X.shape[1], LEVELS + 3))
        for j in range(X.shape[1]):
            x = X[:, j][~np.isnan(X[:, j])]
            natural = (x == np.rint(x)) & (x >= 0)
            levels = x[natural & (x < LEVELS)].astype(np.int64)
            counts[j, :3] = len(x), int((~natural).sum()), int((natural & (x >= LEVELS)).sum())
            counts[j, 3:] = np.bincount(levels, minlength=LEVELS)
        return private, Contribution({"levels": counts})

    def combine(self, step: Step, public: ClassPublic, total: Total) -> ClassPublic:
        """kind_c = categorical, count or continuous, as sum_k x_k tells."""
        counts = total.arrays["levels"]
        columns = tuple(self._column(public, j, counts[j]) for j in range(len(public.names)))
        return self.fit.onward(replace(public, layout=Layout(columns)))

    def _column(self, public: ClassPublic, j: int, counts: Array) -> Column:
        """Make the column of a kind that was given, or that its counts tell."""
        name = public.names[j]
        kind = self.fit.params.kinds.get(name) or _kind(counts)
        if isinstance(kind, list | tuple):
            return Column(name, "categorical", tuple(str(x) for x in kind))
        if kind == "categorical":
            if (counts[1:3] > 0.5).any():
                raise DataError(
                    f"{name}: values that are no position 0 to {LEVELS - 1} of a level",
                    hint="give a frame with texts, or name the levels: kinds={'" + name + "': [...]}",
                )
            levels = max(int(np.flatnonzero(counts[3:] > 0.5).max(initial=0)) + 1, 2)
            return Column(name, "categorical", tuple(str(x) for x in range(levels)))
        centre, unit = float(public.moments.mean[j]), float(public.moments.unit[j])
        if kind == "count":
            return Column(name, "count", centre=centre, unit=max(centre, 1.0))
        return Column(name, "continuous", centre=centre, unit=max(unit, 1e-12))


def _kind(counts: Array) -> str:
    """Tell a column's kind from its known, broken or negative, and large values, and the patients at each level."""
    values, broken, large = counts[:3]
    if broken > 0.5 or values <= 0.5:
        return "continuous"
    return "categorical" if large < 0.5 and np.count_nonzero(counts[3:] > 0.5) <= FEW_VALUES else "count"


class Pairs(PairTable):
    """How often two answers occur together: one table gives the start."""

    fit: LatentClass

    def step(self, public: ClassPublic) -> Step:
        return replace(super().step(public), bound=max(public.moments.n, 1.0) * ROOM)

    def records(self, site: Site, public: ClassPublic) -> Array:
        return self.fit.records(site, public)

    def combine(self, step: Step, public: ClassPublic, total: Total) -> ClassPublic:
        """w_j, p_ja = the classes whose tables n sum_j w_j p_ja p_jb are nearest; the first E-step is that of the bins."""
        weights, profiles = self.fit_tables(public, total)
        return self.fit.onward(replace(public, weights=weights, profiles=profiles, binned=True))


class ClassEM(Phase[ClassPublic, ClassPrivate]):
    """The rounds of EM."""

    fit: LatentClass

    def enter(self, public: ClassPublic) -> ClassPublic:
        return self.fit.begin_rounds(public)

    def step(self, public: ClassPublic) -> Step:
        shapes = {"sums": (len(public.weights), public.layout.width), "loglik": (1,)}
        return Step(public.round, "statistics", shapes, bound=_reach(public), asides=("loglik",))

    def contribute(self, step: Step, site: Site, private: ClassPrivate, public: ClassPublic) -> Answer[ClassPrivate]:
        """x_k = T_j = sum_i r_ij t(x_i), and sum_i log p(x_i)."""
        X, weights = self.fit.records(site, public), self.fit.shares_at(private, public)
        sums, loglik = np.zeros((len(weights), public.layout.width)), 0.0
        for s in blocks(len(X), public.layout.width):
            r, part = responsibilities(public, weights, X[s])
            loglik += part
            sums += r.T @ public.layout.read(X[s])[0]
        mass = np.maximum(sums[:, 0], 1e-12)
        return ClassPrivate(mass / mass.sum()), Contribution({"sums": sums, "loglik": np.array([loglik])})

    def combine(self, step: Step, public: ClassPublic, total: Total) -> ClassPublic:
        """w_j = T_j0 / n and theta_jc = T_jc / T_j0 (per kind of column), from T = sum_k x_k."""
        p, sums = self.fit.params, total.arrays["sums"]
        weights, profiles = public.layout.maximised(sums, smoothing=p.smoothing, reg_covar=p.reg_covar)
        bound = float(total.arrays["loglik"][0]) / max(float(sums[:, 0].sum()), 1e-300)
        gain = None if public.bound is None else bound - public.bound
        converged = gain is not None and p.tol > 0 and abs(gain) < p.tol
        visible = None if public.binned else bound  # the first likelihood is that of the bins
        state = replace(
            public,
            weights=weights,
            profiles=profiles,
            bound=visible,
            last_round=(visible, gain),
            converged=converged,
            binned=False,
        )
        if converged or public.round >= p.rounds:
            return self.fit.onward(state)
        return replace(state, round=public.round + 1)


class ClassScore(Phase[ClassPublic, ClassPrivate]):
    """The log-likelihood of the final classes."""

    fit: LatentClass

    def step(self, public: ClassPublic) -> Step:
        return Step(public.round, "score", {"loglik": (1,)}, bound=_reach(public), counts=False)

    def contribute(self, step: Step, site: Site, private: ClassPrivate, public: ClassPublic) -> Answer[ClassPrivate]:
        """x_k = sum_i log p(x_i)."""
        X, weights = self.fit.records(site, public), self.fit.shares_at(private, public)
        parts = (responsibilities(public, weights, X[s])[1] for s in blocks(len(X), public.layout.width))
        return private, Contribution({"loglik": np.array([float(sum(parts))])})

    def combine(self, step: Step, public: ClassPublic, total: Total) -> ClassPublic:
        """loglik = sum_k x_k."""
        return replace(public, stage="end", loglik=float(total.arrays["loglik"][0]))


def _reach(public: ClassPublic) -> float:
    """Bound a site's sums: squares of measurements in their units, summed over all patients; generous."""
    return max(public.moments.n, 1.0) * 1e6


def responsibilities(public: ClassPublic, weights: Array, X: Array) -> tuple[Array, float]:
    """(n, k) r_ij of the patients, and the sum of their log-likelihoods."""
    if public.binned:
        logs = np.log(np.maximum(public.profiles, 1e-12))
        joint = binned(public.layout, X) @ logs.T + np.log(np.maximum(weights, 1e-300))
    else:
        F, base = public.layout.read(X)
        joint = F @ public.layout.natural(weights, public.profiles).T + base[:, None]
    top = logsumexp(joint, axis=1, keepdims=True)
    return np.exp(joint - top), float(top.sum())
