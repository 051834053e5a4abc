"""
What a phenotype is made of
===========================

Six intensive care units learn phenotypes by masked sums; the heaviest codes of three of them.
"""

import matplotlib.pyplot as plt

import polyclinic as pc

sites = pc.datasets.icu_network(patients=600, seed=0)
model = pc.TRIP(rank=10, rounds=30, aggregation="masked", seed=0).fit(sites)

figure, axes = plt.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
for r, axis in enumerate(axes):
    rows = [row for row in model.phenotypes_.where(phenotype=r) if row["mode"] == "diagnosis"][:6]
    axis.barh([row["name"][:34] for row in rows][::-1], [row["share"] for row in rows][::-1], color="#0072B2")
    axis.set_title(f"phenotype {r}")
    axis.set_xlabel("share of the diagnosis side")
    axis.tick_params(axis="y", labelsize=8)
plt.show()
