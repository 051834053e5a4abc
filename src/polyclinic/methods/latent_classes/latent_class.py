"""Latent classes over hospitals: categories, counts and measurements side by side, values missing at random; both halves.

A round is one sum of ``(k, statistics)`` numbers: the expected sufficient statistics of every class (``models.mixtures.columns``).
The start comes from one sum of pairwise tables (``methods.latent_classes.pair_start``). With privacy columns have public kinds and limits, a
patient's statistics ``r (x) f(x)`` are divided by their largest possible length and truncated toward zero to whole
multiples of 2^-16, so that one patient moves a sum by at most 1; nothing else leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from scipy.special import logsumexp

from polyclinic.errors import ConfigError, DataError, PolicyRefusal
from polyclinic.methods.latent_classes.facts import FACTS
from polyclinic.methods.latent_classes.fitted import FittedClasses
from polyclinic.methods.latent_classes.pair_start import binned, bins_of, fit_pairs, from_bins, pair_table
from polyclinic.methods.latent_classes.private_units import in_own_units, in_public_units
from polyclinic.methods.latent_classes.state import ClassPrivate, ClassPublic, LatentClassParams
from polyclinic.methods.moments.moments import RADIUS, ROOM, SummedMoments
from polyclinic.models.mixtures.columns import Array, Column, Layout
from polyclinic.models.mixtures.gaussian import blocks
from polyclinic.privacy.accounting.accountant import calibrate
from polyclinic.protocol.interfaces import Arrays, Contribution, Schema, Step, Total, seeds
from polyclinic.protocol.parameter_types import LatentClassTyped
from polyclinic.records.sites.site import Site

__all__ = ["LatentClass"]

LEVELS: Final = 32  # levels of a category that is told by its values alone
FEW: Final = 10  # whole numbers with so few different values are categories
GRID: Final = 2.0**-16
MEMORY: Final = 0.7  # a noisy release counts for so much less with every later one
START_SHARE: Final = 0.2  # of the budget, for the pairwise tables


class LatentClass(LatentClassTyped, FittedClasses):
    """Classes of patients whose columns are categories, counts and measurements, some of them missing.

    Within a class columns are independent. Profiles are shared, and equal to those of the pooled records; every site
    learns its own shares of the classes (``shares_``), which do not leave it. Empty values (NaN) are missing at random.

    Parameters
    ----------
    kinds
        By default a frame's types say: texts, categories and truth values are categorical, whole numbers counts, the rest
        continuous. Sites of plain numbers: whole numbers of at least 0 with at most 10 values are categories, other
        whole numbers counts (told by sums). With ``privacy`` kinds, levels and ``bounds`` are public and must be given.

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
    facts = FACTS
    needs = "features"
    exact = 1e-6
    Params = LatentClassParams
    Public = ClassPublic
    Private = ClassPrivate
    params: LatentClassParams

    # ---- coordinator

    def init_public(self, setting: Schema, rng: np.random.Generator) -> ClassPublic:
        """w_j = 1 / k; the columns' kinds are found first, or told with privacy."""
        p, d = self.params, setting.shape[0]
        names = setting.columns or tuple(f"feature {j}" for j in range(d))
        unknown = sorted({*p.kinds, *p.bounds} - set(names))
        if unknown:
            raise ConfigError(
                "kinds or bounds of columns that no site has", faults=[repr(n) for n in unknown], hint=", ".join(names)
            )
        none, k = np.zeros((p.n_components, 0)), p.n_components
        public = ClassPublic(
            "moments", 0, names, SummedMoments.begin(d, RADIUS, crossed=False), Layout(()), np.ones(k) / k, none
        )
        if p.privacy is None:
            return public
        lacking = [n for n in names if n not in p.kinds]
        if lacking:
            raise ConfigError(
                "with privacy the kind of every column is public", faults=[f"kinds: {n} is not given" for n in lacking]
            )
        return self._ready(replace(public, layout=Layout(tuple(self._public_column(n) for n in names))))

    def _public_column(self, name: str) -> Column:
        kind = self.params.kinds[name]
        if isinstance(kind, list | tuple):
            return Column(name, "categorical", tuple(str(x) for x in kind))
        low, high = self.params.bounds[name]
        if kind == "count":
            return Column(name, "count", unit=max(high, 1.0), low=max(low, 0.0), high=high)
        return Column(name, "continuous", centre=(low + high) / 2, unit=(high - low) / 2, low=low, high=high)

    def next_step(self, public: ClassPublic) -> Step | None:
        """Moments, levels, the table of pairs, EM rounds, the likelihood."""
        p, k = self.params, self.params.n_components
        if public.stage == "end":
            return None
        if public.stage == "moments":
            return public.moments.step(p.max_patients)
        n = max(public.moments.n, 1.0)
        paid = p.privacy is not None
        if public.stage == "levels":
            shapes: dict[str, tuple[int, ...]] = {"levels": (len(public.names), LEVELS + 3)}
            return Step(0, "levels", shapes, bound=n * ROOM, grid=1.0, counts=False)
        if public.stage == "pairs":
            bins, d = sum(bins_of(c) for c in public.layout.columns), len(public.names)
            most = float(p.max_patients) if paid else n * ROOM
            step = Step(0, "pairs", {"pairs": (bins * (bins + 1) // 2,)}, bound=most, grid=1.0, counts=False)
            if not paid:
                return step
            return replace(step, sensitivity=float(np.sqrt(d * (d + 1) / 2)), multiplier=self._multiplier(public))
        if public.stage == "score":
            return Step(public.round, "score", {"loglik": (1,)}, bound=self._reach(public), counts=False)
        sums: dict[str, tuple[int, ...]] = {"sums": (k, public.layout.width)}
        if paid:
            return Step(
                public.round, "statistics", sums, bound=float(p.max_patients), sensitivity=1.0,
                multiplier=self._multiplier(public), grid=GRID,
            )  # fmt: skip
        return Step(public.round, "statistics", {**sums, "loglik": (1,)}, bound=self._reach(public), asides=("loglik",))

    @staticmethod
    def _reach(public: ClassPublic) -> float:
        """Bound of a site's sums: squares of measurements in their units, summed over all patients; generous."""
        return max(public.moments.n, 1.0) * 1e6

    def update_public(self, step: Step, public: ClassPublic, total: Total) -> ClassPublic:
        """w_j = n_j / n and theta_jc = sums_jc / n_j (per kind of column), from sums = sum_k sum_i r_ij t(x_i)."""
        p = self.params
        if public.stage == "moments":
            moments = public.moments.combine(total)
            if public.moments.stage == 0 and total.members > 1 and moments.n < p.min_patients:
                raise PolicyRefusal(
                    f"fewer than {p.min_patients} patients in all: exact sums over rounds would give their records away",
                    hint="add sites, lower min_patients knowingly, or ask for privacy=pc.Privacy(...)",
                )
            return replace(public, moments=moments, stage="levels" if moments.done else "moments")
        if public.stage == "levels":
            return self._ready(replace(public, layout=self._told(public, total.arrays["levels"])))
        if public.stage == "pairs":
            rng = seeds(p.seed, "start")
            weights, profiles = fit_pairs(public.layout, total.arrays["pairs"], p.n_components, rng, total.noise_sd)
            if p.privacy is not None:
                profiles = from_bins(public.layout, profiles)
                return replace(public, stage="em", round=1, weights=weights, profiles=profiles)
            return replace(public, stage="em", round=1, weights=weights, profiles=profiles, binned=True)
        if public.stage == "score":
            return replace(public, stage="end", loglik=float(total.arrays["loglik"][0]))
        return self._paid(public, total) if p.privacy is not None else self._em(public, total)

    def _ready(self, public: ClassPublic) -> ClassPublic:
        p = self.params
        if p.profiles_init is None:
            return replace(public, stage="pairs")
        profiles, weights = np.array(p.profiles_init, float), np.array(p.weights_init, float)
        if profiles.shape[1] != public.layout.profile:
            raise ConfigError(
                f"profiles_init has {profiles.shape[1]} numbers a class, these columns have {public.layout.profile}",
                faults=[f"{c.name}: {c.kind}, {c.parameters} numbers" for c in public.layout.columns],
            )
        return replace(public, stage="em", round=1, weights=weights, profiles=profiles)

    def _told(self, public: ClassPublic, found: Array) -> Layout:
        """Kinds of the columns, given or told by the sums over all sites: (d, known, broken or negative, above, levels)."""
        columns = []
        for j, name in enumerate(public.names):
            known, odd, above, *counts = found[j]
            kind = self.params.kinds.get(name)
            seen = np.flatnonzero(np.array(counts) > 0.5)
            if isinstance(kind, list | tuple):
                columns.append(Column(name, "categorical", tuple(str(x) for x in kind)))
                continue
            if kind is None:
                whole = odd < 0.5 and known > 0.5
                few = whole and above < 0.5 and len(seen) <= FEW
                kind = "categorical" if few else "count" if whole else "continuous"
            if kind == "categorical" and (odd > 0.5 or above > 0.5):
                raise DataError(
                    f"{name}: values that are no position 0 to {LEVELS - 1} of a level",
                    hint="give a frame with texts, or name the levels: kinds={'" + name + "': [...]}",
                )
            centre, unit = float(public.moments.mean[j]), float(public.moments.unit[j])
            if kind == "categorical":
                levels = max(int(seen.max(initial=0)) + 1, 2)
                columns.append(Column(name, "categorical", tuple(str(x) for x in range(levels))))
            elif kind == "count":
                columns.append(Column(name, "count", centre=centre, unit=max(centre, 1.0)))
            else:
                columns.append(Column(name, "continuous", centre=centre, unit=max(unit, 1e-12)))
        return Layout(tuple(columns))

    def _em(self, public: ClassPublic, total: Total) -> ClassPublic:
        p, sums = self.params, total.arrays["sums"]
        weights, profiles = public.layout.maximised(sums, smoothing=p.smoothing, reg_covar=p.reg_covar)
        bound = float(total.arrays["loglik"][0]) / max(float(sums[:, 0].sum()), 1e-300)
        gain = None if public.bound is None else bound - public.bound
        converged = gain is not None and p.tol > 0 and abs(gain) < p.tol
        ended = converged or public.round >= p.rounds
        return replace(
            public,
            stage="score" if ended else "em",
            round=public.round + (not ended),
            weights=weights,
            profiles=profiles,
            bound=None if public.binned else bound,  # the first likelihood is that of the bins
            told=(None if public.binned else bound, gain),
            converged=converged,
            binned=False,
        )

    # ---- the paid way

    @property
    def _paid_rounds(self) -> int:
        return min(self.params.rounds, self.params.paid_rounds)

    def _multiplier(self, public: ClassPublic) -> float:
        """Noise of the coming release: the start has its share, rounds share the rest, later ones more."""
        p = self.params
        assert p.privacy is not None
        share = 0.0 if p.profiles_init is not None else START_SHARE
        late = np.arange(1, self._paid_rounds + 1, dtype=float)
        part = share if public.stage == "pairs" else (1 - share) * late[public.round - 1] / late.sum()
        (multiplier,) = calibrate(p.privacy.epsilon, p.privacy.delta, shares=(float(part),))
        return multiplier

    def _paid(self, public: ClassPublic, total: Total) -> ClassPublic:
        p = self.params
        new = in_public_units(public.layout, public.profiles, total.arrays["sums"] * public.layout.longest)
        precision = 1.0 / max(total.noise_sd, 1e-12) ** 2
        if public.released is not None:  # classes move little once they are found, and earlier releases are paid for
            old = MEMORY * public.precision
            new = (old * public.released + precision * new) / (old + precision)
            precision += old
        # As many average patients as the noise is large: they hold a class that the noise would else invent.
        added = max(p.smoothing, public.layout.longest / float(np.sqrt(precision)))
        weights, profiles = public.layout.maximised(new, smoothing=added, reg_covar=p.reg_covar)
        ended = public.round >= self._paid_rounds
        return replace(
            public, stage="end" if ended else "em", round=public.round + (not ended), weights=weights, profiles=profiles,
            released=new, precision=precision,
        )  # fmt: skip

    def round_metrics(self, public: ClassPublic) -> Mapping[str, float | None]:
        bound, gain = public.told
        return {"objective": None if bound is None else -bound, "lower_bound": bound, "gain": gain}

    # ---- hospital k

    def init_site(self, site: Site, public: ClassPublic, rng: np.random.Generator) -> ClassPrivate:
        X = site.matrix()
        infinite = [
            n for j, n in enumerate(public.names) if np.isinf(X[:, j]).any() or (np.abs(X[:, j]) > RADIUS).any()
        ]
        faults = [f"{n}: values beyond {RADIUS:g}" for n in infinite]
        faults += [] if self.params.privacy is None else public.layout.faults(X)
        if faults:
            raise DataError(f"site {site.name!r}: the values do not fit the columns' kinds", faults=faults)
        return ClassPrivate(np.full(self.params.n_components, 1.0 / self.params.n_components))

    def contribute(
        self, step: Step, site: Site, private: ClassPrivate, public: ClassPublic, rng: np.random.Generator
    ) -> tuple[ClassPrivate, Contribution]:
        """sums_j = sum_i r_ij t(x_i), r_ij = w_j prod_c f(x_ic; theta_jc) / sum_l ...; t: one-hot levels, counts, (x, x^2)."""
        X = site.matrix()
        if public.stage == "moments":
            return private, public.moments.contribute(np.where(np.isnan(X), public.moments.mean, X))
        if public.stage == "levels":
            return private, Contribution({"levels": _levels(X)})
        if self.params.privacy is None and (faults := public.layout.faults(X)):
            raise DataError(f"site {site.name!r}: the values do not fit the columns' kinds", faults=faults)
        if public.stage == "pairs":
            return private, Contribution({"pairs": pair_table(public.layout, X)})
        sums, loglik = self._expected(X, public, private)
        if public.stage == "score":
            return private, Contribution({"loglik": np.array([loglik])})
        if self.params.privacy is not None:
            return private, Contribution({"sums": sums})
        mass = np.maximum(sums[:, 0], 1e-12)
        return ClassPrivate(mass / mass.sum()), Contribution({"sums": sums, "loglik": np.array([loglik])})

    def _expected(self, X: Array, public: ClassPublic, private: ClassPrivate) -> tuple[Array, float]:
        """The E-step: (k, width) sums over the patients, and their log-likelihood."""
        layout, paid = public.layout, self.params.privacy is not None
        weights = private.weights if self.params.shares == "site" and not public.binned else public.weights
        sums, loglik = np.zeros((len(weights), layout.width)), 0.0
        whole = np.zeros(sums.shape, np.int64)
        for s in blocks(len(X), layout.width * (len(weights) if paid else 1)):
            F, _ = layout.read(X[s])
            joint = self._log_joint(public, weights, X[s])
            top = logsumexp(joint, axis=1, keepdims=True)
            r = np.exp(joint - top)
            loglik += float(top.sum())
            if paid:  # every patient's row is cut to the grid toward zero: its length cannot grow
                rows = r[:, :, None] * in_own_units(layout, public.profiles, X[s], F) / (layout.longest * GRID)
                whole += np.trunc(rows).astype(np.int64).sum(0)
            else:
                sums += r.T @ F
        return (np.multiply(whole, GRID, dtype=np.float64) if paid else sums), loglik

    @staticmethod
    def _log_joint(public: ClassPublic, weights: Array, X: Array) -> Array:
        if not public.binned:
            theta = public.layout.natural(weights, public.profiles)
            F, base = public.layout.read(X)
            return np.asarray(F @ theta.T + base[:, None])
        logs = np.log(np.maximum(public.profiles, 1e-12))
        return np.asarray(binned(public.layout, X) @ logs.T + np.log(np.maximum(weights, 1e-300)))

    def finalize_site(self, site: Site, private: ClassPrivate, public: ClassPublic) -> Arrays:
        weights = private.weights if self.params.shares == "site" else public.weights
        joint = self._log_joint(public, weights, site.matrix())
        r = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
        return {"responsibilities": r, "shares": r.mean(0) if len(r) else np.zeros(len(weights))}

    def divergence_hint(self, site: Site, public: ClassPublic) -> str:
        return f"raise reg_covar (now {self.params.reg_covar:g}) or smoothing (now {self.params.smoothing:g})"


def _levels(X: Array) -> Array:
    """(d, LEVELS + 3) known values, broken or negative ones, whole ones above all levels, and patients at each level."""
    out = np.zeros((X.shape[1], LEVELS + 3))
    for j in range(X.shape[1]):
        x = X[:, j][~np.isnan(X[:, j])]
        whole = (x == np.rint(x)) & (x >= 0)
        inside = x[whole & (x < LEVELS)].astype(np.int64)
        out[j, :3] = len(x), int((~whole).sum()), int((whole & (x >= LEVELS)).sum())
        out[j, 3:] = np.bincount(inside, minlength=LEVELS)
    return out
