"""
What each kind of sum costs
===========================

The same fit over plain, masked, cycle and subspace sums: the same model, different bytes on the wire.
"""

import matplotlib.pyplot as plt
import numpy as np

import polyclinic as pc

sites = pc.datasets.icu_network(patients=300, seed=0)
bytes_up, models = {}, {}
for how in ("plain", "masked", "cycle", "subspace"):
    model = pc.SumALS(rank=4, rounds=2, aggregation=how, seed=0).fit(sites)
    bytes_up[how], models[how] = model.traffic_.bytes_up, model

# %%
# Secure sums add whole numbers: they agree with each other to the bit, and with the plain sum to the rounding of the grid.

for how in ("masked", "cycle", "subspace"):
    gap = max(float(np.abs(a - b).max()) for a, b in zip(models[how].factors_, models["plain"].factors_))
    print(f"{how:9} differs from plain by {gap:.1e}")

# %%
# The price is in bytes: consensus between neighbours repeats every number until all agree.

figure, axis = plt.subplots(figsize=(7, 3), layout="constrained")
axis.barh(list(bytes_up)[::-1], [b / 1e6 for b in bytes_up.values()][::-1], color="#0072B2")
axis.set_xscale("log")
axis.set_xlabel("MB sent by six sites (logarithmic)")
for n, value in enumerate(list(bytes_up.values())[::-1]):
    axis.text(value / 1e6, n, f" {value / 1e6:.1f}", va="center")
axis.margins(x=0.15)
plt.show()
