"""What the Gram start and packed sums reach and cost, line by line: `python benchmarks/fewsums.py laws|records|halves|small [--seeds 3101 3111]`.

laws: the acceptance table of the start on generated networks, masked, bytes as one site sends them. records: open data (DE-SynPUF,
diabetes-130, MIMIC demo, DE-SynPUF dealt to 100 sites, units made anew), rank 10, masked. halves: agreement of two halves of the
patients. small: 100 and 1,000 sites. Every line ends with value, goal and verdict.
"""

import argparse
import re
import runpy
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import polyclinic as pc
from polyclinic.config import Study
from polyclinic.protocol.loop import Simulation
from polyclinic.protocol.patient_halves import halves_of
from polyclinic.protocol.wire.integer_width import width
from polyclinic.records.ingest import read_sites
from polyclinic.records.sites.site import Site, pooled
from polyclinic.tensors import cp
from polyclinic.tensors.kernels import mttkrp as kernels
from polyclinic.tensors.matching import cosines, factor_match_score
from polyclinic.tensors.sparse import SparseTensor
from polyclinic.tensors.weighting import weighted
from polyclinic_papers.trip_settings import rare_network

FOUND = 0.8  # product of the modes' cosines


@dataclass(frozen=True)
class Line:
    """One figure beside its goal."""

    name: str
    value: float
    goal: float
    most: bool = True  # the goal is the most that is allowed; else the least

    @property
    def holds(self) -> bool:
        return self.value <= self.goal if self.most else self.value >= self.goal

    def __str__(self) -> str:
        sign, verdict = "<=" if self.most else ">=", "holds" if self.holds else "DOES NOT HOLD"
        return f"{self.name}: {self.value:.4g} ({sign} {self.goal:g}) {verdict}"


def pooled_fit(sites, rank: int, starts: int) -> float:
    return max(pc.CPALS(rank=rank, seed=s).fit(sites).score(sites) for s in range(starts))


def fit_of(sites, public) -> float:
    error = norm = 0.0
    for site in sites:
        t = weighted(site.counts(), public.saturation)
        everyone = [cp.solve_memberships(t, public.factors), *public.factors]
        error += cp.squared_error(t.norm_squared(), everyone[0], cp.gram(everyone, 0), kernels.mttkrp(t, everyone, 0))
        norm += t.norm_squared()
    return 1 - float(np.sqrt(error / norm))


@dataclass(frozen=True)
class Mark:
    """After a sum: payload and everything as sent, kB a site, and the fit."""

    name: str
    payload: float
    sent: float
    fit: float


def course(method, sites) -> tuple[Simulation, list[Mark]]:
    """A run, sum by sum; fits from the first model over codes on."""
    fold, words, marks = Simulation(method, sites), 0.0, []
    while (step := fold.step()) is not None:
        fold.advance()
        words += width(step, len(sites)) * step.size / 1e3
        sent = fold.traffic.bytes_up / len(sites) / 1e3
        ready = fold.public.stage in ("sweep", "score", "end") and step.name != "score"
        marks.append(Mark(step.name, words, sent, fit_of(sites, fold.public) if ready else 0.0))
    return fold, marks


def icu(seed: int) -> Iterator[Line]:
    sites = pc.datasets.icu_network(patients=3000, seed=seed)
    rank = sites.truth.rank + 2
    best, (fold, marks) = (
        pooled_fit(sites, rank, 3),
        course(pc.SumALS(rank=rank, seed=seed, aggregation="masked"), sites),
    )
    for share, kb in ((0.975, 8.0), (0.99, 16.0)):
        there = [m.payload for m in marks if m.fit >= share * best]
        yield Line(f"ICU, payload kB to {share} of pooled", min(there, default=np.inf), kb)
    up, down = (b / len(sites) / 1e3 for b in (fold.traffic.bytes_up, fold.traffic.bytes_down))
    yield Line("ICU, SumALS masked, all kB as sent up", up, 25.0)
    yield Line("ICU, SumALS, down over up", down / up, 2.0)
    yield Line("ICU, SumALS, of pooled where it stops", marks[-1].fit / best, 0.99, most=False)
    yield Line(
        "ICU, kB of keys in the run (first sum over a later one)",
        marks[0].sent - (marks[-1].sent - marks[-2].sent) + (marks[-1].payload - marks[-2].payload),
        3.0,
    )
    plain = Simulation(pc.SumALS(rank=rank, seed=seed), sites[::-1]).run()
    same = all(np.array_equal(a, b) for a, b in zip(plain.public.factors, fold.public.factors))
    yield Line("ICU, masked = plain with sites in reverse, bit for bit", float(same), 1.0, most=False)
    yield Line("ICU, own seconds of cells and lift over two sweeps'", _own_time(sites, rank, seed), 1.0)
    trip, _ = course(pc.TRIP(rank=rank, seed=seed, aggregation="masked"), sites)
    up, down = (b / len(sites) / 1e3 for b in (trip.traffic.bytes_up, trip.traffic.bytes_down))
    yield Line("ICU, TRIP masked, all kB as sent up", up, 150.0)
    yield Line("ICU, TRIP, down over up", down / up, 2.0)
    yield Line("ICU, TRIP, of pooled where it stops", fit_of(sites, trip.public) / best, 0.98, most=False)


def _own_time(sites, rank: int, seed: int) -> float:
    """Processor seconds of one hospital's parts of the start's two sums, over those of its four parts of two unpacked sweeps."""
    spent: dict[str, float] = {}
    for packed in (True, False):
        method = pc.SumALS(rank=rank, seed=seed, packed=packed)
        honest = method.contribute

        def timed(step, *rest, honest=honest, packed=packed):
            began = time.process_time()
            out = honest(step, *rest)
            key = f"{packed} {step.round} {step.name}"
            spent[key] = spent.get(key, 0.0) + time.process_time() - began
            return out

        method.contribute = timed
        Simulation(method, sites).run()
    start = spent["True 0 cells"] + spent["True 0 lift"]
    return start / sum(v for k, v in spent.items() if k.startswith(("False 1 mode", "False 2 mode")))


def hidden(seed: int) -> Iterator[Line]:
    rare, two = rare_network(2400, seed)
    union = pooled(two)
    deal = np.random.default_rng(seed).permutation(union.patients) % 3
    three = [replace(union.take(np.flatnonzero(deal == k)), name=f"h{k}") for k in range(3)]
    for sites, how in ((two, "plain"), (three, "masked")):
        best = pooled_fit(sites, 5, 5)
        for method in (pc.SumALS, pc.TRIP):
            m = method(rank=5, seed=seed, aggregation=how).fit(sites)
            name = f"discovery, rank 5 of 7, {len(sites)} hospitals {how}, {method.__name__}"
            yield Line(f"{name}, likeness", float(cosines(m.factors_, rare).max()), FOUND, most=False)
            yield Line(f"{name}, of pooled", m.score(sites) / best, 0.98, most=False)


def rare_everywhere(seed: int) -> tuple[list[np.ndarray], list[Site]]:
    """25 hospitals of 80: seven planted phenotypes, and an eighth that three patients of each have."""
    made = pc.datasets.planted_counts(2000, 60, 80, phenotypes=7, codes=(6, 8), sites=25, seed=seed, background=0.1)
    rng, out, own = np.random.default_rng(seed), [], []
    chosen = [rng.permutation(n)[:k] for n, k in ((60, 6), (80, 8))]
    for site in made:
        t = site.counts()
        who = np.repeat(rng.permutation(t.patients)[:3], 30)
        coords = np.column_stack([who, *(rng.choice(c, len(who)) for c in chosen)])
        before = np.column_stack([np.repeat(t.rows, np.diff(t.indptr)), *t.codes])
        values = np.concatenate([t.values, np.ones(len(who))])
        out.append(Site(site.name, SparseTensor(np.concatenate([before, coords]), values, t.shape)))
    for n, c in zip((60, 80), chosen):
        column = np.zeros((n, 1))
        column[c] = 1 / np.sqrt(len(c))
        own.append(column)
    return own, out


def many(seed: int) -> Iterator[Line]:
    rare, sites = rare_everywhere(seed)
    fold, words, found = Simulation(pc.SumALS(rank=8, seed=seed, aggregation="masked"), sites), 0.0, np.inf
    while (step := fold.step()) is not None:
        fold.advance()
        words += width(step, len(sites)) * step.size / 1e3
        like = (
            float(cosines(fold.public.factors, rare).max()) if fold.public.stage in ("sweep", "score", "end") else 0.0
        )
        found = min(found, words) if like >= FOUND else found
    yield Line("25 sites of 80, hidden phenotype at rank 8, likeness", like, FOUND, most=False)
    yield Line("25 sites of 80, payload kB until it is found", found, 8.0)
    yield Line("25 sites of 80, payload kB where it ends", words, 10.0)


def four(seed: int) -> Iterator[Line]:
    sites = pc.datasets.planted_four_mode(patients=3000, phenotypes=8, seed=seed)
    best, (_, marks) = pooled_fit(sites, 8, 5), course(pc.SumALS(rank=8, seed=seed, aggregation="masked"), sites)
    after = next(m.fit for m in marks if m.name.startswith("mode3"))
    yield Line("four modes, of pooled after one sweep", after / best, 0.98, most=False)


def auto(seed: int) -> Iterator[Line]:
    planted = pc.datasets.planted_counts(3000, 60, 80, phenotypes=9, codes=(6, 8), sites=4, seed=seed)
    laws: dict[str, tuple[list[Site], int]] = {
        "discovery": (list(rare_network(2400, seed)[1]), 7),
        "planted": (list(planted), 9),
        "ICU": (list(pc.datasets.icu_network(patients=3000, seed=seed)), 12),
        "four modes": (list(pc.datasets.planted_four_mode(patients=3000, phenotypes=8, seed=seed)), 8),
    }
    for name, (sites, truth) in laws.items():
        try:
            off = abs(pc.SumALS(rank="auto", rounds=1, seed=seed).fit(sites).factors_[0].shape[1] - truth)
        except pc.DataError:
            off = 99
        yield Line(f"rank='auto', {name}, away from the truth", off, 1.0)


def dealt(sites, parts: int, seed: int) -> list[Site]:
    """The same patients at many small hospitals."""
    union = pooled(sites)
    deal = np.random.default_rng(seed).permutation(union.patients) % parts
    return [replace(union.take(np.flatnonzero(deal == k)), name=f"h{k:04d}") for k in range(parts)]


def loads() -> dict[str, Callable[[int], list[Site]]]:
    return {
        "DE-SynPUF": lambda seed: list(pc.datasets.load_synpuf()),
        "diabetes-130": lambda seed: list(pc.datasets.load_diabetes130()),
        "MIMIC demo": lambda seed: list(pc.datasets.load_mimic3_demo()),
        "DE-SynPUF at 100 sites": lambda seed: dealt(pc.datasets.load_synpuf(), 100, seed),
        "unseen units": lambda seed: unseen(seed, tiny=False),
        "unseen tiny units": lambda seed: unseen(seed, tiny=True),
    }


def unseen(seed: int, *, tiny: bool) -> list[Site]:
    """Intensive-care tables made anew from the seed (unseen.py), read as a study reads them; units not merged."""
    made = runpy.run_path(str(Path(__file__).with_name("unseen.py")), run_name="unseen")
    with tempfile.TemporaryDirectory() as folder:
        made["write"](Path(folder), seed, tiny=tiny)
        return list(pc.align(read_sites(Study.read(Path(folder) / "eicu" / "study.toml"))))


def halves(seed: int, only: list[str]) -> Iterator[Line]:
    """How alike the fits of two halves of the patients are, each with its own seed: from the Gram, beside a random start."""
    for name, load in loads().items():
        if only and name not in only:
            continue
        sites, like = load(seed), {}
        for start in ("gram", "random"):
            fits = []
            for h in (0, 1):
                half = [s.take(np.flatnonzero(halves_of(s, f"fewsums {seed}") == h)) for s in sites]
                fits.append(pc.SumALS(rank=10, seed=2 * seed + h, start=start).fit(half).factors_)
            like[start] = factor_match_score(*fits)
        told = f"{name}, agreement of halves from the Gram, less a random start's ({like['gram']:.3f}, {like['random']:.3f})"
        yield Line(told, like["gram"] - like["random"], -0.03, most=False)


def small(seed: int) -> Iterator[Line]:
    """Many small hospitals: DE-SynPUF dealt to 100 and 1,000 sites, plain sums; weighted and as counted."""
    for weighting in ("saturating", "none"):
        whole = list(pc.datasets.load_synpuf())
        best = max(pc.CPALS(rank=10, seed=s, weighting=weighting).fit(whole).score(whole) for s in range(3))
        for parts in (100, 1000):
            sites = dealt(whole, parts, seed)
            for method, more in (
                (pc.SumALS, {}),
                (pc.TRIP, {}),
                (pc.TRIP, {"penalty": 1.0}),
                (pc.TRIP, {"penalty": 10.0}),
            ):
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    m = method(rank=10, seed=seed, weighting=weighting, **more).fit(sites)
                warned = any("SumALS" in str(w.message) for w in said)
                told = f"{parts} sites, {weighting}, {method.__name__} {more or ''} ({m.traffic_.rounds} rounds, warned {warned})"
                yield Line(f"{told}, of pooled", m.score(sites) / best, 0.96, most=False)


def records(seed: int, only: list[str], trip: bool) -> Iterator[Line]:
    for name, load in loads().items():
        if only and name not in only:
            continue
        sites = load(seed)
        best = BEST[name] = BEST.get(name) or pooled_fit(sites, 10, 5)
        for method, least, most in ((pc.SumALS, 0.96, 100.0), (pc.TRIP, 0.96, 150.0))[: 1 + trip]:
            began = time.process_time()
            m = method(rank=10, seed=seed, aggregation="masked").fit(sites)
            up, down = (b / len(sites) / 1e3 for b in (m.traffic_.bytes_up, m.traffic_.bytes_down))
            told = f"{name}, {method.__name__} ({m.start_.kind}, {m.traffic_.rounds} rounds, {time.process_time() - began:.0f} s)"
            yield Line(f"{told}, of pooled", m.score(sites) / best, least, most=False)
            yield Line(f"{told}, kB up", up, most)
            yield Line(f"{told}, down over up", down / up, 2.0)


BEST: dict[str, float] = {}
LAWS = {"icu": icu, "hidden": hidden, "many": many, "four": four, "auto": auto}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["laws", "records", "halves", "small", *LAWS])
    parser.add_argument("--seeds", type=int, nargs=2, default=(3101, 3111))
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--trip", action="store_true", help="records: TRIP, too")
    a = parser.parse_args()
    table: dict[str, list[Line]] = {}
    for seed in range(*a.seeds):
        others = {
            "records": lambda s: records(s, a.only, a.trip),
            "halves": lambda s: halves(s, a.only),
            "small": small,
        }
        chosen = [others[a.what]] if a.what in others else [law for n, law in LAWS.items() if a.what in ("laws", n)]
        made = (line for law in chosen for line in law(seed))
        for line in made:
            print(seed, line, flush=True)
            table.setdefault(re.sub(r" \(.*\)", "", line.name), []).append(line)
    print("\n| line | goal | lowest | highest | holds |\n|---|---|---|---|---|")
    for name, lines in table.items():
        values = [x.value for x in lines]
        goal = f"{'<=' if lines[0].most else '>='} {lines[0].goal:g}"
        print(
            f"| {name} | {goal} | {min(values):.4g} | {max(values):.4g} | {sum(x.holds for x in lines)} of {len(lines)} |"
        )


if __name__ == "__main__":
    main()
