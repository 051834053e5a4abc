"""Bins of relative time: a public axis, in order, of one width or of edges; DPEM finds planted onsets on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import polyclinic as pc
from polyclinic.config.cohort import TimeRule
from polyclinic.errors import ConfigError


def test_a_width_is_twelve_bins_or_as_many_as_fill_the_look_back() -> None:
    assert TimeRule(bins="30d").bins == (*range(0, 331, 30), 359)
    assert TimeRule(bins="30d", before=60, after=90).bins == (-60, -30, 0, 30, 60, 90)
    days = TimeRule(bins="1d", after=7)
    assert days.bins == (*range(8), 7) and days.labels == tuple(f"{d} to {d} days" for d in range(8))
    assert days.window == (0, 7)
    asked = {"study": {"name": "s"}, "tensor": {"modes": ["drug", "time"]}, "time": {"bins": "month"}}
    with pytest.raises(ConfigError, match="'month' is no width in days such as '30d'"):
        pc.Study.parse(asked)


def test_the_axis_is_public_and_in_order(tmp_path: Path) -> None:
    rows = "patient_id,visit_id,time,kind,code\n" + "".join(
        f"p{k},v{k}-{d},2020-01-{1 + d:02d},drug,x{d % 2}\n" for k in range(12) for d in (0, 2, 10, 11, 12)
    )
    (tmp_path / "e.csv").write_text(rows)
    node = pc.Node.parse({"site": {"name": "x"}, "source": {"kind": "files", "events": "e.csv"}}, folder=tmp_path)
    asked = {
        "study": {"name": "s"},
        "tensor": {"modes": ["drug", "time"], "window": "day"},
        "time": {"bins": "1d"},
    }
    t = pc.ingest(node, pc.Study.parse(asked), tmp_path / "out").site.counts()
    axis = t.axes[2]
    assert axis.vocabulary == "public"
    assert axis.labels == tuple(f"{d} to {d} days" for d in range(12))  # all of one width, the last one too
    assert sorted(set(t.coords[:, 2].tolist())) == [0, 2, 10, 11]


def planted(patients: int, seed: int) -> tuple[list[pc.Site], tuple[np.ndarray, np.ndarray]]:
    """Six phenotypes of twelve diagnoses each that set in at different bins."""
    rng, J, T, R = np.random.default_rng([seed, 7]), 120, 12, 6
    V = np.full((J, R), 0.05 / J)
    for r in range(R):
        V[rng.choice(J, 12, replace=False), r] += rng.dirichlet(np.full(12, 2.0))
    at = np.arange(T)
    C = np.stack([np.where(at < o, 0.02, np.exp(-(at - o) / 2.5)) for o in rng.permutation(T - 1)[:R]], 1)
    V, C = V / V.sum(0), C / C.sum(0)
    a = rng.dirichlet(np.full(R, 0.15), patients)
    who = np.repeat(np.arange(patients), rng.poisson(30 * np.exp(rng.normal(0, 0.6, patients))) + 1)
    z = (rng.random(len(who))[:, None] > np.cumsum(a[who], 1)).sum(1).clip(0, R - 1)
    j, t = ((rng.random(len(who))[:, None] > np.cumsum(P, 0).T[z]).sum(1).clip(0, len(P) - 1) for P in (V, C))
    axes = [pc.Axis("diagnosis", tuple(map(str, range(J))), vocabulary="public")]
    axes.append(pc.Axis("time", tuple(f"bin {k}" for k in range(T)), vocabulary="public"))
    sites = []
    for k, mine in enumerate(np.array_split(np.arange(patients), 4)):
        s = (who >= mine[0]) & (who <= mine[-1])
        people = pc.Axis("patient", tuple(f"{k}-{i}" for i in range(len(mine))))
        coords = np.column_stack([who[s] - mine[0], j[s], t[s]])
        sites.append(
            pc.Site(f"s{k}", pc.SparseTensor(coords, np.ones(len(coords)), (len(mine), J, T), [people, *axes]))
        )
    return sites, (V, C)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [40, 41, 42])
def test_dpem_finds_planted_onsets(seed: int) -> None:
    sites, truth = planted(20_000, seed)
    m = pc.DPEM(rank=8, privacy=pc.Privacy(2, 1e-6), aggregation="masked", seed=seed).fit(sites)
    score = pc.metrics.factor_match_score(truth, m.factors_)
    print(seed, score, m.privacy_.epsilon)
    assert m.privacy_.guarantee == "formal" and score >= 0.9
