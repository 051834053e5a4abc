"""
Together, alone, or pooled
==========================

Error over all cells per round for three federated methods, beside the pooled fit (dashed), on six generated units.
"""

import matplotlib.pyplot as plt

import polyclinic as pc

sites = pc.datasets.icu_network(patients=600, seed=0)
pooled = pc.CPALS(rank=10, seed=0).fit(sites).quality(sites)["rmse_full"]

figure, axis = plt.subplots(figsize=(7, 3.5), layout="constrained")
for model, colour in (
    (pc.TRIP(rank=10, rounds=40, seed=0), "#0072B2"),
    (pc.LocalTF(rank=10, rounds=40, seed=0), "#D55E00"),
    (pc.DPFact(rank=10, rounds=40, seed=0), "#009E73"),
):
    model.fit(sites)
    rounds = [h["round"] for h in model.history_ if h.get("rmse_full") is not None]
    errors = [h["rmse_full"] for h in model.history_ if h.get("rmse_full") is not None]
    axis.plot(rounds, errors, color=colour, label=type(model).__name__)
    print(type(model).__name__, "ends at", round(model.quality(sites)["rmse_full"] / pooled, 4), "of the pooled error")
axis.axhline(pooled, color="black", linestyle="--", label="pooled (CPALS, one start)")
axis.set_xlabel("round")
axis.set_ylabel("RMSE over all cells")
axis.legend()
plt.show()
