"""The synthetic tensor of the DPFact paper: 5,000 x 300 x 800, one cell in 100,000 filled, five equal sites."""

from __future__ import annotations

import numpy as np

from polyclinic.datasets.planted import planted_counts
from polyclinic.errors import ConfigError
from polyclinic.records.sites.site import Site, Sites, pooled
from polyclinic.tensors.sparse import SparseTensor
from polyclinic_papers.split import split

__all__ = ["dpfact_synthetic"]


def dpfact_synthetic(
    seed: int = 0,
    *,
    shape: tuple[int, int, int] = (5000, 300, 800),
    density: float = 1e-5,
    sites: int = 5,
    phenotypes: int = 10,
) -> Sites:
    """Make a tensor of the size and sparsity that the DPFact paper reports (section 5.1), in equal sites.

    The paper gives size, density and partition but no law for the counts, so phenotypes are planted here as in
    :func:`~polyclinic.datasets.planted.planted_counts` and the filled cells thinned at random to the exact density:
    12,000 nonzeros, 2.4 a patient. Figures on it compare methods with each other, not with the paper.

    Examples
    --------
    >>> net = dpfact_synthetic()
    >>> len(net), net[0].tensor.shape, sum(s.tensor.nnz for s in net)
    (5, (1000, 300, 800), 12000)
    """
    wanted = round(density * shape[0] * shape[1] * shape[2])
    if wanted < 1 or not 0 < density < 0.01:
        raise ConfigError(f"dpfact_synthetic: density {density} of {shape} asks for {wanted} cells")
    # The mean is exp(SPREAD^2 / 2) times the median; 1.2 leaves a surplus to thin from.
    whole = planted_counts(
        shape[0], shape[1], shape[2], phenotypes, 0.15, seed, events=1.2 * wanted / shape[0], codes=(20, 30)
    )
    tensor = pooled(whole).counts()
    if tensor.nnz < wanted:
        raise ConfigError(
            f"dpfact_synthetic: density {density} is too high for {phenotypes} phenotypes", hint="plant more of them"
        )
    keep = np.sort(np.random.default_rng([seed, 1]).choice(tensor.nnz, wanted, replace=False))
    thinned = SparseTensor(tensor.coords[keep], tensor.values[keep], tensor.shape, tensor.axes)
    return split(Sites([Site(whole[0].name, thinned, labels=whole[0].labels)], whole.truth), sites, seed=seed)
