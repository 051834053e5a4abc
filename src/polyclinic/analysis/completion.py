"""completion: does the model predict codes that the patient has not shown? Codes are hidden, not cells.

A patient's cells are a cross product, so a hidden cell shares its codes with seen ones, and any model "predicts" it. Here
every (patient, mode, code) draws a bit: seen are the cells whose codes all have 0, hidden those whose codes all have 1, and
probabilities are renormalised over codes that the patient has not shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from polyclinic.analysis.base import PATIENTS, Analysis, AnalysisParams, NoMemory
from polyclinic.analysis.designs import presence_by_mode
from polyclinic.analysis.projection import Projector
from polyclinic.analysis.statistics.intervals import Z
from polyclinic.privacy.facts import MethodFacts, StepMeaning
from polyclinic.protocol.interfaces import Contribution, Schema, Step, Total
from polyclinic.protocol.patient_halves import names_of
from polyclinic.records.sites.site import Site
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.util.table import Table

Array = NDArray[np.float64]
PRIOR: Final = 3.0  # events of the marginals that every patient is thought to have beside the seen ones
# limit: what one hidden event may add to a sum
FARTHEST: Final = 20.0  # nats, of one hidden event


class CompletionParams(AnalysisParams):
    """Parameters of completion."""

    candidates: tuple[object, ...] = Field(
        (), description="Per candidate its models: (everybody,) or (half 0, half 1)."
    )
    words: tuple[str, ...] = Field((), description="What the candidates are called.")


@dataclass(frozen=True)
class CompletionPublic:
    """Sums over patients of the gains of Q candidates and of the hidden events."""

    stage: Literal["marginals", "gains", "end"]
    marginals: tuple[Array, ...]  # per mode (2, I_n): smoothed shares of codes in each half
    sums: Array  # (Q + 2,): gains, hidden events, patients with hidden events
    products: Array  # (Q + 1, Q + 1)


class Completion(Analysis):
    """Nats gained over the other half's marginals, per hidden event."""

    name = "completion"
    facts = MethodFacts(
        steps={
            "marginals": StepMeaning("events of each code, by half", "a code that one patient has"),
            "gains": StepMeaning("how well hidden codes are predicted, summed over patients", "little of one patient"),
        }
    )
    exact = 1e-6
    Params = CompletionParams
    Public = CompletionPublic
    params: CompletionParams

    def __init__(self, **params: object) -> None:
        super().__init__(**params)
        candidates: Sequence[Any] = self.params.candidates or ((self.placer,),)
        self.candidates = [tuple(Projector.of(m) for m in group) for group in candidates]
        self.words = self.params.words or tuple(f"rank {g[0].rank}" for g in self.candidates)

    # ---- coordinator

    def init_public(self, setting: Schema, rng: np.random.Generator) -> CompletionPublic:
        """Marginals flat: 1 / codes of the mode."""
        q = len(self.candidates)
        flat = tuple(np.full((2, len(f)), 1.0 / len(f)) for f in self.placer.factors)
        return CompletionPublic("marginals", flat, np.zeros(q + 2), np.zeros((q + 1, q + 1)))

    def next_step(self, public: CompletionPublic) -> Step | None:
        """First events by code and half, then gains in nats and their products."""
        if public.stage == "marginals":
            shapes: dict[str, tuple[int, ...]] = {f"mode{m}": x.shape for m, x in enumerate(public.marginals, start=1)}
            return Step(1, "marginals", shapes, bound=2.0**10 * PATIENTS, counts=False)
        if public.stage == "gains":
            shapes = {"sums": public.sums.shape, "products": public.products.shape}
            return Step(2, "gains", shapes, bound=2.0**10 * PATIENTS, counts=False)
        return None

    def update_public(self, step: Step, public: CompletionPublic, total: Total) -> CompletionPublic:
        """m_c = (n_c + 1/2) / sum_c (n_c + 1/2), then sums S = sum_p g_p and products P = sum_p g_p g_p'."""
        if step.name == "marginals":
            counts = [np.rint(total.arrays[f"mode{m}"]) + 0.5 for m in range(1, len(public.marginals) + 1)]
            return replace(public, stage="gains", marginals=tuple(c / c.sum(1, keepdims=True) for c in counts))
        return replace(public, stage="end", sums=total.arrays["sums"], products=total.arrays["products"])

    # ---- hospital

    def contribute(
        self, step: Step, site: Site, private: NoMemory, public: CompletionPublic, rng: np.random.Generator
    ) -> tuple[NoMemory, Contribution]:
        """n_c = events of every code by half; then g_p = log(model / marginal) of p's hidden events, and g_p g_p'."""
        t, half = site.counts(), self.half(site)
        patient = np.repeat(t.rows, np.diff(t.indptr))
        if step.name == "marginals":
            arrays: dict[str, Array] = {}
            for m, (c, size) in enumerate(zip(t.codes, t.shape[1:]), start=1):
                # Events, as they are scored: shares of PATIENTS are flatter, and any model would gain on them for nothing.
                flat = half[patient] * size + c
                marginals = np.bincount(flat, weights=_events(t.values), minlength=2 * size)
                arrays[f"mode{m}"] = marginals.astype(np.float64).reshape(2, size)
            return private, Contribution(arrays)
        gains, events = self._gains(site, public, patient, half)
        rows = np.column_stack([gains, events])
        present = float((events > 0).sum())
        return private, Contribution({"sums": np.append(rows.sum(0), present), "products": rows.T @ rows})

    def _gains(
        self, site: Site, public: CompletionPublic, who: NDArray[np.int64], half: NDArray[np.int64]
    ) -> tuple[Array, Array]:
        """(patients, Q) nats gained over the marginals, (patients,) hidden events."""
        t = site.counts()
        bits = code_bits(site, who)
        unmasked, masked = np.asarray(~bits.any(0)), np.asarray(bits.all(0))
        visible_tensor = _restricted(t, who, unmasked)
        codes = [c[masked].astype(np.int64) for c in t.codes]
        patient, value = who[masked], _events(t.values[masked])
        n = t.patients
        events: Array = np.bincount(patient, weights=value, minlength=n).astype(np.float64)
        size = np.bincount(who[unmasked], minlength=n).astype(np.float64)
        visible = presence_by_mode(visible_tensor)
        out = np.zeros((n, len(self.candidates)))
        visible_site = replace(site, tensor=visible_tensor, labels=None, features=None, people=None)
        for h in (0, 1):
            marginal = [x[1 - h] for x in public.marginals]
            base = _log_share(codes, patient, [m[:, None] for m in marginal], np.ones((n, 1)), visible)
            for q, group in enumerate(self.candidates):
                placer = group[min(1 - h, len(group) - 1)]  # the model that did not see this half, where there is one
                factors = [np.abs(f) / np.maximum(np.abs(f).sum(0), 1e-300) for f in placer.factors]
                stacked = [np.column_stack([f, m]) for f, m in zip(factors, marginal)]
                share = placer.shares(visible_site)
                weight = size[:, None] * share
                mixture = np.column_stack([weight, PRIOR + size - weight.sum(1)])
                mixture = mixture / mixture.sum(1, keepdims=True)
                gain = np.clip(_log_share(codes, patient, stacked, mixture, visible) - base, -FARTHEST, FARTHEST)
                in_half = half[patient] == h
                out[:, q] += np.bincount(patient[in_half], weights=(gain * value)[in_half], minlength=n)
        return out, events

    # ---- results

    def table(self, public: CompletionPublic) -> Table:
        """Candidate, nats per hidden event with its interval, paired difference to the best with its standard error."""
        q = len(self.candidates)
        events = max(float(public.sums[q]), 1e-12)
        gain = public.sums[:q] / events
        n = max(float(public.sums[q + 1]), 1.0)

        def spread(weights: Array) -> float:
            """Standard error of a ratio: residual g'w - (mean) e over patients."""
            w = np.append(weights, -float(weights @ gain))
            return float(np.sqrt(max(float(w @ public.products @ w), 0.0) * n / max(n - 1, 1.0)) / events)

        eye = np.eye(q)
        best = int(np.argmax(gain)) if q else 0
        rows = []
        for k in range(q):
            sd = spread(eye[k])
            interval = [float(gain[k]), float(gain[k]) - Z * sd, float(gain[k]) + Z * sd]
            rows.append(
                [
                    self.words[k],
                    *interval,
                    float(gain[k] - gain[best]),
                    spread(eye[k] - eye[best]),
                    round(events),
                    int(n),
                ]
            )
        return Table(["model", "nats", "low", "high", "to_best", "se", "events", "patients"], rows)


def _events(values: Array) -> Array:
    """How often an entry counts: its size, at most 1,024."""
    out: Array = np.minimum(np.abs(values), 2.0**10)
    return out


def code_bits(site: Site, who: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(modes, nonzeros) the bit of each (patient, mode, code): a hash of the patient's name, so that it stays with them."""
    t = site.counts()
    names = names_of(site)
    start = np.array(
        [int.from_bytes(hashlib.blake2b(x.encode(), digest_size=8).digest(), "little") for x in names], np.uint64
    )
    out = []
    for m, c in enumerate(t.codes):
        x = start[who] if len(names) else np.zeros(0, np.uint64)
        x = x ^ (c.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64((m + 1) * 0xC2B2AE3D27D4EB4F % 2**64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out.append(((x ^ (x >> np.uint64(31))) & np.uint64(1)).astype(bool))
    return np.array(out)


def _restricted(t: SparseTensor, who: NDArray[np.int64], keep: NDArray[np.bool_]) -> SparseTensor:
    """The tensor with some of its entries; patients stay."""
    coords = np.column_stack([who[keep], *(c[keep] for c in t.codes)])
    return SparseTensor(coords, t.values[keep], t.shape, t.axes)


def _log_share(
    codes: Sequence[NDArray[np.int64]],
    at: NDArray[np.int64],
    factors: Sequence[Array],
    mixture: Array,
    visible: Sequence[Any],
) -> Array:
    """log probability of hidden cells given that none of their codes was shown: sum_r a_r prod f_r(c) / sum_r a_r prod (1 - shown)."""
    numerator, denominator = mixture[at], mixture
    for f, c, v in zip(factors, codes, visible):
        numerator = numerator * f[c]
        denominator = denominator * np.maximum(1.0 - v @ f, 1e-12)
    out: Array = np.log(np.maximum(numerator.sum(1), 1e-300)) - np.log(np.maximum(denominator.sum(1), 1e-300))[at]
    return out
