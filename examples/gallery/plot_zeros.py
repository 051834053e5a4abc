"""
Zeros: observed or missing
==========================

The same counts, once with empty cells as zeros and once as unknown values: what is predicted where nothing happened.
"""

import matplotlib.pyplot as plt
import numpy as np

import polyclinic as pc

sites = pc.datasets.planted_counts(patients=600, procedures=60, diagnoses=80, phenotypes=5, seed=0)
rng = np.random.default_rng(0)
tensor = sites[0].counts()
cells = np.column_stack([rng.integers(d, size=20_000) for d in tensor.shape])  # nearly all of them empty

figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", sharey=True)
for axis, zeros in zip(axes, ("observed", "missing")):
    model = pc.CPSGD(rank=5, rounds=60, seed=0).set_params(zeros=zeros).fit(sites)
    a, b, c = model.transform(tensor), *model.factors_
    predicted = (a[cells[:, 0]] * b[cells[:, 1]] * c[cells[:, 2]]).sum(1)
    axis.hist(np.clip(predicted, -0.5, 2.5), bins=40, color="#0072B2")
    match = pc.metrics.factor_match_score(sites.truth.factors, model.factors_)
    axis.set_title(f'zeros="{zeros}": match with the truth {match:.2f}')
    axis.set_xlabel("predicted count of a random cell")
axes[0].set_ylabel("cells")
plt.show()
