"""The private EM experiments as tables with claims: the paper's two figures, and the inversion that it overlooks."""

from __future__ import annotations

from typing import Any

import numpy as np

from polyclinic_papers import private_em
from polyclinic_papers.claims import judge
from polyclinic_papers.experiment import Lab, Result
from polyclinic_papers.interval import interval, mean_sd

__all__ = ["figure2", "figure3", "inversion"]


def figure2(lab: Lab) -> Result:
    """Figure 2: log-likelihood of subspace and cycle EM on the Parkinson data, persons dealt to nodes anew for each seed."""
    found = [
        lab.part(f"{s}", lambda s=s: private_em.figure_2(nodes=lab["nodes"], iterations=lab["iterations"], seed=s))
        for s in lab.seeds
    ]
    ways = list(found[0]["curves"])
    size = [abs(f["curves"][ways[0]][-1]) for f in found]
    apart = interval([f["difference"] / n for f, n in zip(found, size)])
    rise = interval([(f["curves"]["subspace"][-1] - f["curves"]["subspace"][0]) / n for f, n in zip(found, size)])
    still = {"the start, never moved": {"apart": 0.0, "rise": 0.0}}
    mine, printed = (np.mean([f["curves"]["subspace"][-1] for f in found]), np.mean([f["literal"][-1] for f in found]))
    claims = judge("em.figure2", still, apart=apart, rise=rise)
    return Result(
        ["sum", "first log-likelihood", "last", "largest fall", "largest difference of a parameter to plain sums"],
        [
            [
                way,
                mean_sd([f["curves"][way][0] for f in found]),
                mean_sd([f["curves"][way][-1] for f in found]),
                min(f["falls"][way] for f in found),
                max(f["parameters"][way] for f in found),
            ]
            for way in ways
        ],
        claims,
        found[0]["curves"],
        "EM iteration",
        "log-likelihood",
        "The figure shows the first seed. Two principal components and three groups (E4.13: the paper does not say).",
        main={
            "figure": "Figure 2: log-likelihood, subspace less cycle",
            "paper says": "curves coincide",
            "ours": f"{apart.mean:.2g} of the log-likelihood, which ends at {mine:.2f}",
            "literal": f"ends at {printed:.2f}",
            "verdict": f"default: {claims[0].verdict}. Literal: the same sums, another M-step (E4.9)",
        },
    )


def figure3(lab: Lab) -> Result:
    """Figure 3: what corrupt nodes 2 and 4 learn of honest nodes 1, 3, 5."""
    found = [
        lab.part(f"{s}", lambda s=s: private_em.figure_3(runs=lab["runs"], iterations=lab["iterations"], seed=s))
        for s in lab.seeds
    ]

    def of(f: dict[str, Any], way: str, node: str) -> float:
        return float(np.mean(f["nmi"][way][node]))

    nodes = {way: list(found[0]["nmi"][way]) for way in found[0]["nmi"]}
    rows = [
        [
            way,
            node,
            mean_sd([of(f, way, node) for f in found]),
            mean_sd([float(np.mean(f["bits"][way][node])) for f in found]),
            found[0]["exact_equal_weights"][way][node],
        ]
        for way, those in nodes.items()
        for node in those
    ]
    rows += [
        [f"{way}, eavesdropper", n, None, None, b]
        for way, bits in found[0]["eavesdropper"].items()
        for n, b in bits.items()
    ]

    def figures(key: str) -> dict[str, Any]:
        def gap(left: str, right: str) -> Any:
            pairs = [[(f[key][left][n], f[key][right][n]) for n in "135"] for f in found]
            return interval([min(float(np.mean(a) - np.mean(b)) for a, b in pair) for pair in pairs])

        return {
            "above": gap("federated", "cycle"),
            "least": gap("cycle", "subspace"),
            "seen": gap("federated", "subspace"),
        }

    return Result(
        [
            "sum",
            "honest node",
            "normalised mutual information",
            "bits, estimated",
            "bits of one sum, exact (equal weights)",
        ],
        rows,
        judge("em.figure3", {"permuted records": figures("permuted")}, **figures("nmi")),
        {way: [float(np.mean([of(f, way, n) for f in found])) for n in nodes[way]] for way in nodes},
        "honest node",
        "normalised mutual information",
        "E4.12: I(X; X) of a continuous record is infinite, so the normalisation is a matter of the estimator. The exact bits are not. "
        "The eavesdropper reads all lines in the clear and corrupts no node. In Polyclinic the lines are encrypted.",
        at=[f"node {n}" for n in nodes["subspace"]],
    )


def inversion(lab: Lab) -> Result:
    """What the paper overlooks (E4.8): exact sums of a mixture give the records back, without any node's help."""
    found = [
        lab.part(f"{s}", lambda s=s: private_em.inversion(seed=s, crowd=lab["crowd"], starts=lab["starts"]))
        for s in lab.seeds
    ]
    exact = interval([f["exact"]["error"] / f["exact"]["spread"] for f in found])
    paid = interval([f["paid"]["error"] / f["paid"]["spread"] for f in found])
    return Result(
        ["sums", "error of the records found / spread of the data", "runs in which they were found"],
        [
            ["exact (subspace, cycle or masked alike)", str(exact), sum(f["exact"]["succeeded"] for f in found)],
            [
                "with noise (patient-level epsilon 4 at delta 1e-6, formal)",
                str(paid),
                sum(f["paid"]["succeeded"] for f in found),
            ],
        ],
        judge(
            "em.inversion",
            {"a random guess": {"exact": interval([f["paid"]["guess"] / f["paid"]["spread"] for f in found])}},
            exact=exact,
        ),
        {
            "exact sums": [f["exact"]["error"] / f["exact"]["spread"] for f in found],
            "with noise": [f["paid"]["error"] / f["paid"]["spread"] for f in found],
        },
        "seed",
        "error / spread",
        at=[str(s) for s in lab.seeds],
        log="y",
    )
