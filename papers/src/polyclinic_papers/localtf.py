"""Experiments of the LocalTF thesis, quality: RMSE and AUC with and without l2,1, convergence, four modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from polyclinic.datasets import planted_four_mode
from polyclinic.methods.central.als import CPALS
from polyclinic.methods.estimators.phenotypes import TRIP, DPFact, LocalTF, SumALS
from polyclinic.tensors.matching import factor_match_score
from polyclinic_papers.claims import judge
from polyclinic_papers.cohorts import TITLES, cohort
from polyclinic_papers.dpfact import UNITS, literal
from polyclinic_papers.experiment import Lab, Result
from polyclinic_papers.interval import Interval, Several, interval, mean_sd
from polyclinic_papers.prediction import outcome_auc, random_factors_auc
from polyclinic_papers.prediction import split as by_patient
from polyclinic_papers.reach import trace

__all__ = ["PRINTED", "convergence", "four_mode", "rmse"]

# Section 4.5: RMSE (mean, variance) and AUC.
PAPER: Final = {
    "CP-ALS": (1.29164, 6.46e-7, 0.63658),
    "DPFact": (0.7734, 2.44e-5, 0.62668),
    "LocalTF": (0.7442, 5.32e-6, 0.63144),
    "DPFact w/o l2,1": (1.21252, 2.54e-5, 0.54736),
    "LocalTF w/o l2,1": (1.13328, 5.99e-5, 0.5612),
}
SOFT: Final = "LocalTF, literal but threshold eta mu"  # ERRATA E0.3
PRINTED: Final[dict[str, Any]] = {"variant": "paper", "zeros": "missing", "learning_rate": 0.01, "local_passes": 3}


def rmse(lab: Lab) -> Result:
    """Sections 4.5.1 and 4.5.3: RMSE (mean and variance) and AUC (80/20) over five starts, with and without l2,1."""
    names = [*PAPER, *(f"{n}, literal" for n in PAPER if n != "CP-ALS"), SOFT, "frozen random factors"]
    found = {n: [lab.part(f"{n} {s}", lambda n=n, s=s: _both(lab, n, s)) for s in lab.seeds] for n in names}
    rows = []
    for n in names:
        says = PAPER.get(n.removesuffix(", literal"))
        rows.append(
            [
                n,
                *(("-", "-") if says is None else (f"{says[0]:g} ({says[1]:.2g})", says[2])),
                *(_mean_variance([f[k] for f in found[n]]) for k in ("few", "observed", "full")),
                mean_sd([f["auc"] for f in found[n]]),
            ]
        )

    def gap(left: str, right: str, key: str) -> Interval:
        return interval([a[key] - b[key] for a, b in zip(found[left], found[right])])

    few, many = lab["few"], lab["rounds"]
    plain = "LocalTF w/o l2,1, literal"

    def moved(name: str) -> Interval:
        """By how much the RMSE after few rounds is above that after many."""
        return interval([f["few"] / f["observed"] - 1 for f in found[name]])

    return Result(
        [
            "model",
            "thesis: RMSE (variance)",
            "thesis: AUC",
            f"RMSE over nonzeros after {few} rounds (variance)",
            f"after {many} (variance)",
            f"RMSE over all cells after {many} (variance)",
            "AUC (80/20)",
        ],
        rows,
        judge(
            "localtf.rmse",
            few=few,
            many=many,
            lowest=Several(gap("LocalTF, literal", r, "observed") for r in ("DPFact, literal", "CP-ALS")),
            plain=Several(gap(plain, r, "observed") for r in ("DPFact w/o l2,1, literal", "CP-ALS")),
            cells=Several(gap("LocalTF", r, "full") for r in ("DPFact", "CP-ALS")),
            away=interval([a["full"] / b["full"] - 1 for a, b in zip(found["LocalTF"], found["CP-ALS"])]),
            early=gap("LocalTF, literal", plain, "few"),
            late=gap("LocalTF, literal", plain, "observed"),
            moving=moved(plain),
            still=moved("LocalTF"),
            soft_early=gap(SOFT, plain, "few"),
            soft_late=gap(SOFT, plain, "observed"),
            soft_auc=gap(SOFT, plain, "auc"),
            mended=gap("LocalTF", "LocalTF w/o l2,1", "full"),
            ratio=_variances([f["observed"] for f in found["LocalTF"]], [f["observed"] for f in found["CP-ALS"]]),
            use=gap("LocalTF", "LocalTF w/o l2,1", "auc"),
            printed=gap("LocalTF, literal", plain, "auc"),
            wide=float(np.std([f["auc"] for f in found["LocalTF, literal"]], ddof=1)) if len(lab.seeds) > 1 else 0.0,
            pooled_best=gap("CP-ALS", "LocalTF", "auc"),
        ),
        {
            label: [float(np.mean([f[key] or 0.0 for f in found[n]])) for n in names]
            for key, label in (("observed", "RMSE over nonzeros"), ("auc", "AUC"))
        },
        "model",
        "RMSE over nonzeros; AUC",
        note=f"One network ({TITLES['icu']}), five starts, factors learnt on 80 % of the patients and judged there (RMSE) and on the others (AUC). "
        "Literal: zeros missing, eta 0.01, b 3, threshold mu as printed; every site's own factors as trained.",
        at=names,
    )


def _mean_variance(values: Sequence[float | None]) -> str:
    known = [v for v in values if v is not None]
    variance = f"{np.var(known, ddof=1):.2g}" if len(known) > 1 else "-"
    return f"{np.mean(known):.4f} ({variance})" if known else "-"


def _variances(left: Sequence[float], right: Sequence[float]) -> Interval:
    """Ratio of variances with its 95 % interval (F)."""
    from scipy.stats import f

    if len(left) < 2:
        return Interval(float("nan"), float("nan"), float("nan"), len(left))
    ratio = float(np.var(left, ddof=1) / max(float(np.var(right, ddof=1)), 1e-300))
    edge = float(f.ppf(0.975, len(left) - 1, len(right) - 1))
    return Interval(ratio, ratio / edge, ratio * edge, len(left))


def _both(lab: Lab, name: str, seed: int) -> dict[str, Any]:
    network = cohort("icu", 0, lab["patients"])
    train, _ = by_patient(network, 0.8, 0)
    if name == "frozen random factors":
        return {"few": None, "observed": None, "full": None, "auc": random_factors_auc(network, lab["rank"], 0.8, 0)}
    common = {"rank": lab["rank"], "seed": seed, "rounds": lab["rounds"], "tol": 0.0}
    off = "w/o" in name
    if name == SOFT:
        model: Any = LocalTF(weighting="none", **common, **{**PRINTED, "variant": "corrected", "sparsity": UNITS})
    elif name == "CP-ALS":
        model = SumALS(weighting="none", start="random", **common, warmup=20)
    elif name.endswith("literal"):
        printed = literal("icu") if name.startswith("DPFact") else {**PRINTED, "sparsity": UNITS}
        printed = {**printed, "sparsity": 0.0} if off else printed
        model = (DPFact if name.startswith("DPFact") else LocalTF)(weighting="none", **common, **printed)
    else:
        model = (DPFact if name.startswith("DPFact") else LocalTF)(
            weighting="none", **common, sparsity=0.0 if off else 1.0
        )
    found = trace(model, train)
    return {
        "few": found.observed[lab["few"] - 1],
        "observed": found.observed[-1],
        "full": found.full[-1],
        "auc": outcome_auc(found.model, network, 0.8, 0, fit=False).auc,
    }


def convergence(lab: Lab) -> Result:
    """Figure 4.1: RMSE over rounds of CP-ALS, DPFact and LocalTF, none with l2,1; as printed and corrected."""
    made: dict[str, Any] = {
        "CP-ALS": lambda **k: SumALS(weighting="none", start="random", warmup=20, **k),
        "CP-ALS, plain sweeps": lambda **k: SumALS(weighting="none", start="random", warmup=0, **k),
        "DPFact": lambda **k: DPFact(weighting="none", sparsity=0.0, **k),
        "LocalTF": lambda **k: LocalTF(weighting="none", **k),
        "LocalTF, b = 3": lambda **k: LocalTF(weighting="none", local_passes=3, **k),
        "DPFact, literal": lambda **k: DPFact(weighting="none", **literal("icu", sparsity=0.0), **k),
        "LocalTF, literal": lambda **k: LocalTF(weighting="none", **PRINTED, **k),
    }
    rows, curves, settled = [], {}, {}
    for name, make in made.items():
        found = [
            lab.part(
                f"{name} {s}",
                lambda make=make, s=s: trace(
                    make(rank=lab["rank"], rounds=lab["rounds"], seed=s, tol=0.0), cohort("icu", s, lab["patients"])
                ).values(),
            )
            for s in lab.seeds
        ]
        settled[name] = [_settled(f["observed"]) for f in found]
        curves[name] = np.mean([f["observed"] for f in found], axis=0).tolist()
        rows.append(
            [
                name,
                mean_sd([float(x) for x in settled[name]]),
                *(mean_sd([f[k][-1] for f in found]) for k in ("observed", "full")),
            ]
        )

    def gap(left: str, right: str) -> Interval:
        return interval([float(a - b) for a, b in zip(settled[left], settled[right])])

    return Result(
        [
            "method",
            "rounds until it stays within 1 % of its end",
            "last RMSE over nonzeros",
            "last RMSE over all cells",
        ],
        rows,
        judge(
            "localtf.convergence",
            plain=gap("CP-ALS, plain sweeps", "LocalTF"),
            warm=gap("CP-ALS", "LocalTF"),
            first=gap("LocalTF", "DPFact"),
            several=gap("LocalTF, b = 3", "DPFact"),
            printed=gap("LocalTF, literal", "DPFact, literal"),
        ),
        curves,
        "round",
        "RMSE over nonzeros",
        note=f"{TITLES['icu']}, rank {lab['rank']}, no l2,1.",
    )


def _settled(values: Sequence[float]) -> int:
    away = np.flatnonzero(np.abs(np.array(values) / values[-1] - 1) > 0.01)
    return int(away[-1]) + 2 if len(away) else 1


def four_mode(lab: Lab) -> Result:
    """The thesis' future work: a tensor of four modes."""
    methods: dict[str, Any] = {
        "LocalTF": LocalTF,
        "DPFact": DPFact,
        "TRIP": lambda **k: TRIP(start="random", tol=0.0, **k),
        "CP-ALS": CPALS,
    }
    found = {
        n: [lab.part(f"{n} {s}", lambda cls=cls, s=s: _four(cls, lab["patients"], s)) for s in lab.seeds]
        for n, cls in methods.items()
    }
    like = interval([f["fms"] for f in found["LocalTF"]])
    lag = interval([a["fit"] - b["fit"] for a, b in zip(found["LocalTF"], found["CP-ALS"])])
    return Result(
        ["method", "FMS to truth", "fit"],
        [[n, mean_sd([f["fms"] for f in parts]), mean_sd([f["fit"] for f in parts])] for n, parts in found.items()],
        judge("localtf.four_mode", like=like, lag=lag),
        {
            "FMS to truth": [float(np.mean([f["fms"] for f in parts])) for parts in found.values()],
            "fit": [float(np.mean([f["fit"] for f in parts])) for parts in found.values()],
        },
        "method",
        "FMS to truth; fit",
        at=list(found),
        spread={
            label: [float(np.std([f[k] for f in parts], ddof=1)) if len(parts) > 1 else 0.0 for parts in found.values()]
            for k, label in (("fms", "FMS to truth"), ("fit", "fit"))
        },
    )


def _four(cls: Any, patients: int, seed: int) -> dict[str, float]:
    network = planted_four_mode(patients=patients, seed=seed)
    m = cls(rank=network.truth.rank + 2, seed=seed, weighting="none").fit(network)
    return {"fms": factor_match_score(network.truth.factors, m.factors_), "fit": m.quality(network)["fit"]}
