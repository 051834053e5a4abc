"""Fits that are to be compared have room to spare where the structure is weak, and only there."""

from __future__ import annotations

import polyclinic as pc
from polyclinic.analysis.replication.replicate_fits import ReplicateFits
from polyclinic.protocol.loop import run


def test_halves_keep_more_columns_where_the_cells_saw_little() -> None:
    """Twelve phenotypes, four asked for, and four hospitals' codes mostly at random: the first sweep gains much."""
    sites = pc.datasets.planted_counts(
        2400, 40, 50, phenotypes=12, codes=(5, 6), sites=3, seed=0, background=0.6, events=8
    )
    rungs = ReplicateFits(pc.SumALS(rank=4), "key")
    everybody, *halves = rungs.chosen(run(rungs, sites).public)
    assert everybody.factors[0].shape[1] == 4
    for half in halves:
        weak = half.gain is not None and half.gain > 0.05
        assert half.factors[0].shape[1] == (8 if weak else 4)
    assert any(half.gain > 0.05 for half in halves)
