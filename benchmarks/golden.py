"""Golden fits: hashes of the exact bits of every method's result, to be the same before and after a change of the code.

    python benchmarks/golden.py record FILE [WORD ...]     run the cases and write {case: [hash, more ...]}
    python benchmarks/golden.py compare FILE [WORD ...]    run them again, exit status 1 if one differs

Words select the cases whose name starts with one of them. With words, ``record`` keeps the other cases of the file.
A case that raises is recorded as the type and the message of its error.

A hash holds results only: no times, no paths, no random names. OpenBLAS is told to use its kernels for Haswell, which
every x86-64 processor with AVX2 has, so that processors of different makers give the same bits of matrix products. Bits
still depend on the versions of numpy, scipy and numba: record and compare with one environment.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import secrets
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_CORETYPE", "Haswell")  # before numpy is imported

import numpy as np
from threadpoolctl import threadpool_limits

import polyclinic as pc

Result = list[Any]
Case = Callable[[], Result]
Make = Callable[[], Any]

NOISE = 20_240_229  # the seed of all privacy noise here


# ---- the only two places that know what is inside the library


def fix_the_noise() -> None:
    """Seed all privacy noise.

    The library seeds its noise generators by ``secrets.randbits``, and uses that function for nothing else. It is
    replaced before the library imports its parts. Every site has the same noise then, so that the bits do not depend
    on the order in which generators are made. If the library takes its seeds elsewhere, adapt this function.
    """
    secrets.randbits = lambda k: NOISE


def other_alignments() -> tuple[Any, Any]:
    """Two ways to align codes: by public lists, and by the ring."""
    from polyclinic.alignment import align_by_ring, align_to

    return align_to, align_by_ring


# ---- what is hashed


def bits(model: Any) -> Result:
    """A fit of phenotypes: factors, weights, memberships, history, and what was sent up."""
    h = hashlib.sha256()
    for factor in model.factors_:
        h.update(np.ascontiguousarray(factor).tobytes())
    h.update(model.weights_.tobytes())
    for site in sorted(model.memberships_):
        h.update(np.ascontiguousarray(model.memberships_[site]).tobytes())
    kept = [{k: v for k, v in r.items() if k not in ("seconds", "bytes_down")} for r in model.history_]
    h.update(json.dumps(kept, sort_keys=True, default=str).encode())
    sent = model.traffic_
    h.update(json.dumps([sent.bytes_up, sent.payload_bytes_up, sent.rounds]).encode())
    start = vars(model).get("start_")
    return [h.hexdigest()[:20], sent.rounds, sent.bytes_up, None if start is None else [start.kind, start.reason]]


def digest(value: object) -> str:
    """A hash of numbers, texts and arrays, in lists and mappings of any depth."""
    h = hashlib.sha256()
    for part in parts(value):
        h.update(len(part).to_bytes(8, "big") + part)
    return h.hexdigest()[:20]


def parts(value: object) -> Iterator[bytes]:
    """The bytes of a value, piece by piece. Anything that has no plain bytes is an error."""
    match value:
        case np.ndarray() if value.dtype.kind == "O":
            yield from parts(value.tolist())
        case np.ndarray():
            yield f"{value.dtype.str}{value.shape}".encode()
            yield np.ascontiguousarray(value).tobytes()
        case np.generic():
            yield from parts(value.item())
        case None | bool() | int() | float() | str():
            yield f"{type(value).__name__}:{value!r}".encode()
        case Mapping():
            yield f"map:{len(value)}".encode()
            for key in sorted(value, key=str):
                yield str(key).encode()
                yield from parts(value[key])
        case list() | tuple():
            yield f"list:{len(value)}".encode()
            for one in value:
                yield from parts(one)
        case _:
            raise TypeError(f"{type(value).__name__} cannot be hashed")


def timeless(value: Any) -> Any:
    """The same nested value without times, traffic and cards."""
    if isinstance(value, Mapping):
        dropped = re.compile(r"seconds.*|.*bytes_.*|traffic|privacy|missing")
        return {k: timeless(v) for k, v in value.items() if not dropped.fullmatch(str(k))}
    if isinstance(value, list | tuple):
        return [timeless(v) for v in value]
    return value


def named(model: Any, *names: str) -> Result:
    """Some attributes of a fitted model with its history, and the epsilon of its card."""
    found = {n: getattr(model, n) for n in names}
    card = vars(model).get("privacy_")
    return [digest([found, timeless(model.history_)]), None if card is None else card.epsilon]


# ---- data, made when a case asks for them


@cache
def icu(patients: int, seed: int = 0) -> Any:
    """Made-up intensive care units."""
    return pc.datasets.icu_network(patients=patients, seed=seed)


def big() -> Any:
    """Enough patients for the Gram start."""
    return icu(1800)


def small() -> Any:
    """Too few patients for the Gram start."""
    return icu(300)


def few() -> Any:
    """A network whose start is vague."""
    return icu(1200, 5)


def large() -> Any:
    """Enough patients to find the rank."""
    return icu(3000)


def three() -> Any:
    """Three sites only."""
    return icu(1500, 3)[:3]


def one() -> Any:
    """One site only."""
    return small()[:1]


@cache
def planted(patients: int = 600, seed: int = 0) -> Any:
    """Three sites with three planted phenotypes."""
    return pc.datasets.planted_counts(patients, 20, 30, phenotypes=3, codes=(4, 5), sites=3, seed=seed)


@cache
def four_modes() -> Any:
    """Patients and three modes of codes."""
    return pc.datasets.planted_four_mode(400, (12, 15, 8), phenotypes=3, codes=(3, 4, 2), sites=3, seed=0)


@cache
def present() -> Any:
    """The planted sites with ones in place of counts."""
    made = []
    for s in planted():
        t = s.tensor
        made.append(pc.Site(s.name, pc.SparseTensor(t.coords, np.ones(len(t.values)), t.shape)))
    return made


@cache
def courses() -> Any:
    """Patients with visits in order."""
    return pc.datasets.planted_courses(patients=60, sites=3, codes=15, phenotypes=2, seed=0)


@cache
def clouds(patients: int = 300, missing: bool = False) -> list[pc.Site]:
    """Three sites with two measurements of patients in three groups."""
    rng = np.random.default_rng(0)
    group = rng.choice(3, patients, p=[0.3, 0.3, 0.4])
    x = np.array([[-3.0, -2.0], [3.0, -2.0], [0.0, 3.6]])[group] + rng.normal(size=(patients, 2))
    if missing:
        x[rng.random(patients) < 0.2, 1] = np.nan
    return [pc.Site(f"s{i}", features=p) for i, p in enumerate(np.array_split(x, 3))]


@cache
def frames(missing: bool = False) -> dict[str, dict[str, Any]]:
    """Three sites with a category, a count and a measurement of every patient."""
    rng = np.random.default_rng(0)
    ill = rng.random(600) < 0.4
    crp = rng.normal(np.where(ill, 40.0, 5.0), 4.0)
    if missing:
        crp[rng.random(600) < 0.2] = np.nan
    smoker = np.where(rng.random(600) < np.where(ill, 0.9, 0.1), "yes", "no")
    columns = {"smoker": smoker, "visits": rng.poisson(np.where(ill, 8, 2)), "crp": crp}
    return {n: {k: v[i::3] for k, v in columns.items()} for i, n in enumerate(("north", "south", "west"))}


@cache
def labelled() -> tuple[Any, Any]:
    """Features and classes of patients. The first two features tell the classes."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 90)
    x = rng.normal(size=(90, 5))
    x[:, 0] += 2 * y
    x[:, 1] += x[:, 0]
    return x, y


@cache
def hospitals() -> list[pc.Site]:
    """The labelled patients at three sites."""
    x, y = labelled()
    return [pc.Site(f"h{k}", features=x[k::3], labels=y[k::3]) for k in range(3)]


@cache
def judged() -> tuple[Any, Any]:
    """Pairs of patients, and whether they are alike."""
    pairs = np.random.default_rng(1).integers(0, 90, (200, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    y = labelled()[1]
    return pairs, np.where(y[pairs[:, 0]] == y[pairs[:, 1]], 1, -1)


@cache
def known(patients: int = 600) -> list[pc.Site]:
    """Units whose patients have an outcome, partly unknown, an age, a sex and a time to an event."""
    made = []
    for k, s in enumerate(icu(patients, 3)):
        rng = np.random.default_rng(k)
        y = np.asarray(s.labels, float)
        y[rng.random(len(y)) < 0.1] = np.nan
        people = pc.People(
            {"age": rng.normal(62, 12, s.patients), "sex": rng.choice(["F", "M"], s.patients)},
            time=rng.exponential(300, s.patients),
            event=rng.random(s.patients) < 0.5,
        )
        made.append(replace(s, labels=y, people=people))
    return made


@cache
def model_of(patients: int = 600) -> Any:
    """The phenotypes that are evaluated."""
    return pc.SumALS(rank=4, rounds=6).fit(known(patients))


# ---- kinds of cases


def fit(make: Make, data: Make) -> Case:
    """A fit of phenotypes."""
    return lambda: bits(make().fit(data()))


def dpem(data: Make = planted, **params: Any) -> Case:
    """A fit of DPEM, with the codes that it shows, its background, and its epsilon."""

    def case() -> Result:
        m = pc.DPEM(**{"rank": 4, "rounds": 4, **params}).fit(data())
        shown = digest([m.shown_, m.background_, m.too_little_data_])
        return [*bits(m), shown, m.privacy_.epsilon]

    return case


def prior(patients: int, seed: int) -> Case:
    """A private fit of DPEM that starts from public phenotypes of other patients."""

    def case() -> Result:
        other = pc.DPEM(rank=3, rounds=4, seed=1).fit(planted(patients, seed))
        asked = pc.Privacy(2.0, 1e-5)
        return dpem(rank=4, rounds=3, privacy=asked, aggregation="masked", prior=other, prior_is_public=True)()

    return case


def mixture(data: Make = clouds, **params: Any) -> Case:
    """A Gaussian mixture of three groups."""
    names = ("weights_", "means_", "covariances_", "memberships_", "converged_", "n_iter_", "log_likelihood_", "bic_")
    return lambda: named(pc.GaussianMixture(**{"n_components": 3, "seed": 0, **params}).fit(data()), *names)


def classes(data: Make = frames, **params: Any) -> Case:
    """Latent classes."""
    names = ("weights_", "profiles_", "shares_", "memberships_", "converged_", "n_iter_", "log_likelihood_", "bic_")
    return lambda: named(pc.LatentClass(**{"n_components": 2, "seed": 0, **params}).fit(data()), *names)


def paid_classes(**params: Any) -> Case:
    """Latent classes with a formal guarantee."""
    public: dict[str, Any] = {
        "kinds": {"smoker": ["no", "yes"], "visits": "count", "crp": "continuous"},
        "bounds": {"visits": (0, 20), "crp": (-10, 60)},
    }
    return classes(privacy=pc.Privacy(8.0), **public, **params)


def metric(learn: Callable[[Any], Any], **params: Any) -> Case:
    """A learned similarity, and the similarities of some patients under it."""

    def case() -> Result:
        m = learn(pc.UnPSL(**params))
        found = named(m, "components_", "mean_", "scale_", "bias_", "n_iter_", "objective_")
        return [*found, digest([m.similarity(labelled()[0][:9]), vars(m).get("embedding_")])]

    return case


def between(**options: Any) -> Callable[[Any], Any]:
    """Learn a similarity between hospitals."""
    return lambda m: m.fit_sites(hospitals(), **options)


def central(m: Any) -> Any:
    """Learn a similarity under one roof."""
    return m.fit(*labelled())


def chosen_metric() -> Result:
    """A similarity whose parameters are chosen by cross-validation."""
    m = pc.UnPSLCV(l1s=[0.01, 0.1], l2s=[0.01], cv=3, repeats=1, iterations=3).fit(*labelled())
    return named(m, "components_", "best_score_", "best_params_", "members_", "cv_results_")


def parafac2(**params: Any) -> Case:
    """Phenotypes with courses."""

    def case() -> Result:
        m = pc.PARAFAC2(**{"rank": 2, "rounds": 5, "seed": 0, **params}).fit(courses())
        return [*bits(m), digest([m.courses_, m.visits_])]

    return case


def moments(make: Make, *names: str) -> Case:
    """Standardising or principal components, and the new features of every site."""

    def case() -> Result:
        m = make().fit(clouds())
        return [*named(m, *names), digest([s.matrix() for s in m.transform(clouds())])]

    return case


def findings(of: Make, sites: Make, *sections: str, **options: Any) -> Case:
    """What ``pc.evaluate`` finds, in some sections or in all."""

    def case() -> Result:
        found = pc.evaluate(of(), sites(), what=sections or "all", **options)
        return [digest(timeless(found.to_json())), found.patients, found.privacy_.epsilon]

    return case


def replication(make: Make, data: Make, **options: Any) -> Case:
    """Which phenotypes come back in halves: the table, the model, and the factors of the halves."""

    def case() -> Result:
        found = pc.replicate(make(), data(), **options)
        whole = [found.model.factors_, found.model.weights_]
        halves = [list(h.factors) for h in found.halves]
        elsewhere = None if found.elsewhere is None else rows(found.elsewhere)
        return [digest([rows(found.table), whole, halves, elsewhere]), found.count, found.model.privacy_.epsilon]

    return case


def replicated() -> Any:
    """Phenotypes that were fitted on halves, too."""
    return pc.replicate(pc.SumALS(rank=4, rounds=6), known())


def rows(table: Any) -> list[dict[str, Any]]:
    """A table as plain rows."""
    return [dict(r) for r in table]


def rank(**options: Any) -> Case:
    """The number of phenotypes that is suggested."""

    def case() -> Result:
        found = pc.suggest_rank(planted(900), **options)
        return [digest([found.rank, found.confirmed, found.control]), found.rank]

    return case


def simulation(text: str) -> Case:
    """A study file, run into a temporary folder: its figures, its model, and its findings."""

    def case() -> Result:
        with tempfile.TemporaryDirectory() as folder:
            study = Path(folder) / "study.toml"
            study.write_text(text, encoding="utf-8")
            run = pc.run_study(study, Path(folder) / "run", threads=1)
            told = run.path / "findings.json"
            found = json.loads(told.read_text(encoding="utf-8")) if told.exists() else None
        return [digest(timeless(run.metrics)), digest(run.model.arrays()), digest(timeless(found))]

    return case


SUMALS_STUDY = """
[study]
name = "golden"
seed = 1
[data]
dataset = "icu_network"
patients = 300
[method]
name = "sumals"
rank = 3
rounds = 3
aggregation = "plain"
"""

DPEM_STUDY = """
[study]
name = "golden private"
seed = 1
[data]
dataset = "planted_counts"
patients = 600
procedures = 20
diagnoses = 30
phenotypes = 3
codes = [4, 5]
sites = 3
[method]
name = "dpem"
rank = 4
rounds = 3
aggregation = "masked"
[privacy]
epsilon = 8.0
delta = 1e-5
"""


@cache
def own_words() -> Any:
    """Units of which each has a vocabulary of its own."""
    return pc.datasets.icu_network(patients=150, seed=0, own_vocabulary=True)


def aligned(sites: Sequence[Any]) -> Result:
    """Sites on common codes: labels and cells."""
    made = [[s.name, [list(a.labels) for a in s.tensor.axes[1:]], s.tensor.coords, s.tensor.values] for s in sites]
    return [digest(made), *map(int, sites[0].tensor.shape[1:])]


def by_dictionary() -> Result:
    """Codes aligned to public dictionaries."""
    align_to, _ = other_alignments()
    first: Any = pc.align(own_words())[0]
    axes = first.tensor.axes[1:]
    return aligned(align_to(own_words(), {a.name: pc.Axis(a.name, a.labels[::-1], vocabulary="public") for a in axes}))


def by_ring() -> Result:
    """Codes aligned by the ring. Its places are random, so cells are told by the names that all sites have for a place."""
    sites = other_alignments()[1](own_words())
    shape = sites[0].tensor.shape[1:]
    names = [
        ["/".join(sorted({s.tensor.axes[n].names[i] for s in sites})) for i in range(k)] for n, k in enumerate(shape, 1)
    ]
    made = []
    for s in sites:
        told = zip(s.tensor.coords.tolist(), s.tensor.values.tolist())
        made.append([s.name, sorted([c[0], names[0][c[1]], names[1][c[2]], v] for c, v in told)])
    return [digest([made, [sorted(n) for n in names]]), *map(int, shape)]


def from_table() -> Result:
    """Sites read from a long table, with an outcome and covariates."""
    rng = np.random.default_rng(0)
    who = rng.integers(0, 40, 400)
    table = {
        "pid": who,
        "unit": np.array(["a", "b"])[who % 2],
        "drug": [f"d{k}" for k in rng.integers(0, 6, 400)],
        "dx": [f"x{k}" for k in rng.integers(0, 8, 400)],
        "died": (who % 5 == 0).astype(int),
        "age": 40 + who,
    }
    made: Any = pc.from_frame(
        table, patient="pid", modes=["drug", "dx"], site="unit", outcome="died", covariates=["age"]
    )
    more = [[s.labels, s.people.columns["age"]] for s in made]
    return [*aligned(made), digest(more)]


def saved() -> Result:
    """A model written to a file and read again, which places patients and is compared with itself."""
    fitted = pc.TRIP(rank=3, rounds=4, seed=0).fit(planted())
    with tempfile.TemporaryDirectory() as folder:
        model: Any = pc.load(fitted.save(Path(folder) / "a.phenotypes"))
    where = [model.transform(s) for s in planted(300, 2)]
    top = rows(model.top(3))
    return [
        digest([model.arrays(), where, model.quality(planted(300, 2))]),
        digest(top),
        pc.compare(fitted, model).same,
    ]


def compared() -> Result:
    """Two fits side by side."""
    a, b = (pc.CPALS(rank=3, rounds=10, seed=s).fit(planted()) for s in (0, 1))
    found = pc.compare(a, b)
    return [digest(rows(found.pairs)), found.match]


def foretold() -> Result:
    """The error of private findings, before anything is spent."""
    return [digest(rows(pc.forecast(10, pc.Privacy(1.0), planning_size=33_653)))]


def audited() -> Result:
    """An attack on private sums by made-up patients."""
    found = pc.audit(pc.DPEM(rank=3, rounds=3, privacy=pc.Privacy(4.0)), canaries=100, patients=200)
    return [digest([found.mu, found.epsilon]), found.verdict]


# ---- the cases


def trip_cases() -> dict[str, Case]:
    """TRIP."""
    return {
        "trip wide16": fit(lambda: pc.TRIP(rank=20, rounds=16, seed=0), small),
        "trip vague": fit(lambda: pc.TRIP(rank=8, rounds=16, seed=3), few),
        "trip gram packed": fit(lambda: pc.TRIP(rank=8, rounds=12, seed=0), big),
        "trip gram packed masked": fit(lambda: pc.TRIP(rank=6, rounds=6, seed=1, aggregation="masked"), big),
        "trip gram exact": fit(lambda: pc.TRIP(rank=8, rounds=8, seed=0, packed=False), big),
        "trip distinct": fit(lambda: pc.TRIP(rank=5, rounds=8, seed=0, distinct=0.1), big),
        "trip wide": fit(lambda: pc.TRIP(rank=20, rounds=14, seed=0), small),
        "trip random warm": fit(lambda: pc.TRIP(rank=4, rounds=14, seed=0, start="random"), small),
        "trip random cold": fit(lambda: pc.TRIP(rank=4, rounds=8, seed=0, start="random", warmup=0), small),
        "trip paper": fit(lambda: pc.TRIP(rank=4, rounds=8, seed=0, variant="paper"), small),
        "trip paper distinct": fit(lambda: pc.TRIP(rank=4, rounds=5, seed=0, variant="paper", distinct=0.05), small),
        "trip signed": fit(lambda: pc.TRIP(rank=4, rounds=5, seed=0, nonnegative=False), small),
        "trip auto": fit(lambda: pc.TRIP(rank="auto", rounds=5, seed=0), large),
        "trip starts": fit(lambda: pc.TRIP(rank=3, rounds=5, seed=0, n_starts=2, start="random"), small),
        "trip subspace": fit(lambda: pc.TRIP(rank=3, rounds=4, seed=0, aggregation="subspace"), three),
        "trip median": fit(lambda: pc.TRIP(rank=3, rounds=4, seed=0, aggregation="median"), three),
        "trip unweighted": fit(lambda: pc.TRIP(rank=4, rounds=5, seed=0, weighting="none"), big),
        "trip four modes": fit(lambda: pc.TRIP(rank=3, rounds=5, seed=0), four_modes),
    }


def sumals_cases() -> dict[str, Case]:
    """SumALS."""
    return {
        "sumals wide16": fit(lambda: pc.SumALS(rank=20, rounds=16, seed=0), small),
        "sumals weak": fit(lambda: pc.SumALS(rank=8, rounds=20, seed=3), few),
        "sumals gram packed": fit(lambda: pc.SumALS(rank=8, rounds=12, seed=0), big),
        "sumals gram exact": fit(lambda: pc.SumALS(rank=8, rounds=8, seed=0, packed=False), big),
        "sumals wide": fit(lambda: pc.SumALS(rank=20, rounds=14, seed=0), small),
        "sumals random": fit(lambda: pc.SumALS(rank=4, rounds=14, seed=0, start="random"), small),
        "sumals signed": fit(lambda: pc.SumALS(rank=4, rounds=5, seed=0, nonnegative=False), small),
        "sumals masked": fit(lambda: pc.SumALS(rank=6, rounds=6, seed=1, aggregation="masked"), big),
        "sumals auto": fit(lambda: pc.SumALS(rank="auto", rounds=5, seed=0), large),
        "sumals four modes": fit(lambda: pc.SumALS(rank=3, rounds=5, seed=0), four_modes),
    }


def topics_cases() -> dict[str, Case]:
    """Topics."""
    return {
        "topics": fit(lambda: pc.Topics(rank=5, rounds=6, seed=0), big),
        "topics auto": fit(lambda: pc.Topics(seed=0), large),
        "topics starts": fit(lambda: pc.Topics(rank=4, rounds=4, seed=0, n_starts=3), big),
        "topics masked": fit(lambda: pc.Topics(rank=4, rounds=4, seed=1, aggregation="masked"), big),
        "topics four modes": fit(lambda: pc.Topics(rank=3, rounds=4, seed=0), four_modes),
    }


def local_cases() -> dict[str, Case]:
    """Methods with local passes: LocalTF, distributed SGD, DPFact, and hospitals alone."""
    entry: dict[str, Any] = {
        "saturation": 13,
        "privacy": pc.Privacy(epsilon=5.0, delta=1e-4, level="entry"),
    }  # no clip, no noise
    noisy: dict[str, Any] = {"saturation": 13, "privacy": pc.Privacy(epsilon=5.0, delta=1e-4, level="entry", clip=1.0)}
    return {
        "localtf": fit(lambda: pc.LocalTF(rank=6, rounds=10, seed=0), big),
        "localtf passes": fit(lambda: pc.LocalTF(rank=4, rounds=5, seed=0, local_passes=3, sparsity=0.1), small),
        "localtf missing": fit(lambda: pc.LocalTF(rank=4, rounds=5, seed=0, zeros="missing"), small),
        "localtf uniform": fit(lambda: pc.LocalTF(rank=4, rounds=5, seed=0, weights="uniform"), small),
        "localtf nonzeros": fit(
            lambda: pc.LocalTF(rank=4, rounds=5, seed=0, weights="nonzeros", aggregation="masked"), small
        ),
        "localtf paper": fit(lambda: pc.LocalTF(rank=4, rounds=5, seed=0, variant="paper"), small),
        "localtf entry": fit(lambda: pc.LocalTF(rank=4, rounds=3, seed=0, zeros="missing", **entry), small),
        "localtf one": fit(lambda: pc.LocalTF(rank=4, rounds=5, seed=0), one),
        "sgd": fit(lambda: pc.DistributedSGD(rank=4, rounds=5, seed=0), small),
        "dpfact": fit(lambda: pc.DPFact(rank=4, rounds=5, seed=0), small),
        "dpfact missing": fit(lambda: pc.DPFact(rank=4, rounds=5, seed=0, zeros="missing", local_passes=2), small),
        "dpfact entry": fit(lambda: pc.DPFact(rank=4, rounds=3, seed=0, zeros="missing", **entry), small),
        "localtf entry noise": fit(lambda: pc.LocalTF(rank=4, rounds=3, seed=0, zeros="missing", **noisy), small),
        "dpfact entry noise": fit(lambda: pc.DPFact(rank=4, rounds=3, seed=0, zeros="missing", **noisy), small),
        "local model": fit(lambda: pc.LocalModel(rank=3, rounds=5, seed=0), small),
    }


def central_cases() -> dict[str, Case]:
    """Baselines under one roof, and phenotypes with courses."""
    return {
        "cpals": fit(lambda: pc.CPALS(rank=3, rounds=10, seed=0), planted),
        "cpals distinct": fit(lambda: pc.CPALS(rank=3, rounds=6, seed=0, distinct=0.1), planted),
        "cpals missing": fit(lambda: pc.CPALS(rank=3, rounds=4, seed=0, zeros="missing"), planted),
        "cpals signed": fit(lambda: pc.CPALS(rank=3, rounds=6, seed=0, nonnegative=False), planted),
        "cpals starts": fit(lambda: pc.CPALS(rank=3, rounds=4, seed=0, n_starts=2), planted),
        "cpals unweighted": fit(lambda: pc.CPALS(rank=3, rounds=6, seed=0, weighting="none"), planted),
        "cpals float32": fit(lambda: pc.CPALS(rank=3, rounds=6, seed=0, precision="float32"), planted),
        "cpals four modes": fit(lambda: pc.CPALS(rank=3, rounds=6, seed=0), four_modes),
        "cpsgd": fit(lambda: pc.CPSGD(rank=3, rounds=6, seed=0), planted),
        "cpsgd missing": fit(lambda: pc.CPSGD(rank=3, rounds=4, seed=0, zeros="missing"), planted),
        "cpsgd sparse": fit(lambda: pc.CPSGD(rank=3, rounds=4, seed=0, sparsity=0.1), planted),
        "parafac2": parafac2(),
        "parafac2 masked": parafac2(rounds=3, aggregation="masked"),
        "parafac2 uncoupled": parafac2(rounds=3, coupling=0.1, smooth=0.0),
    }


def dpem_cases() -> dict[str, Case]:
    """DPEM, exact and private."""
    return {
        "dpem exact": dpem(),
        "dpem exact masked": dpem(aggregation="masked"),
        "dpem epsilon 1": dpem(privacy=pc.Privacy(1.0, 1e-5)),
        "dpem epsilon 8": dpem(privacy=pc.Privacy(8.0, 1e-5)),
        "dpem epsilon 1 masked": dpem(privacy=pc.Privacy(1.0, 1e-5), aggregation="masked"),
        "dpem epsilon 8 masked": dpem(privacy=pc.Privacy(8.0, 1e-5), aggregation="masked"),
        "dpem planned": dpem(rank=None, rounds=None, privacy=pc.Privacy(4.0, 1e-5), planning_size=600),
        "dpem too little": dpem(rank=None, rounds=None, privacy=pc.Privacy(0.5, 1e-5), planning_size=5),
        "dpem two sites a patient": dpem(privacy=pc.Privacy(8.0, 1e-5, max_sites_per_patient=2)),
        "dpem regroup": dpem(rank=8, rounds=12, privacy=pc.Privacy(8.0, 1e-5), regroup=True, anneal=True),
        "dpem no regroup": dpem(rank=8, rounds=12, privacy=pc.Privacy(8.0, 1e-5), regroup=False, anneal=False),
        "dpem no background": dpem(privacy=pc.Privacy(8.0, 1e-5), background=False, prune=False),
        "dpem prior like": prior(300, 0),
        "dpem prior unlike": prior(300, 7),
        "dpem four modes": dpem(four_modes, privacy=pc.Privacy(8.0, 1e-5), aggregation="masked"),
        "dpem four modes exact": dpem(four_modes),
    }


def mixture_cases() -> dict[str, Case]:
    """Gaussian mixtures and latent classes."""
    paid: dict[str, Any] = {"privacy": pc.Privacy(8.0), "radius": 10.0}

    def many() -> list[pc.Site]:
        return clouds(1500)

    def holes() -> list[pc.Site]:
        return clouds(missing=True)

    return {
        "mixture": mixture(),
        "mixture masked": mixture(aggregation="masked"),
        "mixture tied": mixture(covariance_type="tied"),
        "mixture diag": mixture(covariance_type="diag"),
        "mixture spherical": mixture(covariance_type="spherical"),
        "mixture missing": mixture(holes, rounds=10),
        "mixture box": mixture(start="box"),
        "mixture starts": mixture(n_starts=2),
        "mixture paper": mixture(variant="paper", rounds=10),
        "mixture given": mixture(means_init=[[-2.0, -2.0], [2.0, -2.0], [0.0, 2.0]]),
        "mixture private": mixture(many, **paid),
        "mixture private masked": mixture(many, aggregation="masked", **paid),
        "mixture private diag": mixture(many, covariance_type="diag", **paid),
        "classes": classes(),
        "classes masked": classes(aggregation="masked"),
        "classes site shares": classes(shares="site"),
        "classes missing": classes(lambda: frames(missing=True), smoothing=0.1),
        "classes private": paid_classes(),
        "classes private masked": paid_classes(aggregation="masked"),
    }


def similarity_cases() -> dict[str, Case]:
    """UnPSL, standardising, principal components."""
    paid: dict[str, Any] = {
        "rounds": 2,
        "privacy": pc.Privacy(50.0),
        "patients": 200,
        "radius": 8.0,
        "classes": ("0", "1"),
    }
    ball: dict[str, Any] = {"privacy": pc.Privacy(2.0), "radius": 10.0}
    scaled = ("mean_", "var_", "scale_", "n_samples_seen_")
    turned = ("mean_", "scale_", "components_", "explained_variance_", "explained_variance_ratio_")
    return {
        "unpsl": metric(central),
        "unpsl long": metric(central, iterations=30, l1=0.05),
        "unpsl distance": metric(central, compare="distance"),
        "unpsl near": metric(central, reach="near"),
        "unpsl paper": metric(central, variant="paper"),
        "unpsl balanced": metric(central, weighting="balanced", standardize="scale", rank=2),
        "unpsl groups": metric(lambda m: m.fit(*labelled(), groups=np.arange(90) % 3)),
        "unpsl pairs": metric(lambda m: m.fit_pairs(labelled()[0], *judged())),
        "unpsl chosen": chosen_metric,
        "unpsl sites": metric(between(rounds=4)),
        "unpsl sites masked": metric(between(rounds=4, aggregation="masked")),
        "unpsl private": metric(between(**paid), rank=1),
        "unpsl private masked": metric(between(aggregation="masked", **paid), rank=1),
        "standardizer": moments(pc_make("Standardizer"), *scaled),
        "standardizer masked": moments(pc_make("Standardizer", aggregation="masked"), *scaled),
        "standardizer private": moments(pc_make("Standardizer", **ball), *scaled),
        "pca": moments(pc_make("FederatedPCA"), *turned),
        "pca standardized": moments(pc_make("FederatedPCA", standardize=True, aggregation="masked"), *turned),
        "pca private": moments(pc_make("FederatedPCA", **ball), *turned),
        "pca private masked": moments(pc_make("FederatedPCA", aggregation="masked", **ball), *turned),
    }


def pc_make(name: str, **params: Any) -> Make:
    """How to make one public estimator."""
    return lambda: getattr(pc, name)(**params)


def findings_cases() -> dict[str, Case]:
    """What follows a fit."""
    paid: dict[str, Any] = {"privacy": pc.Privacy(4.0), "aggregation": "masked"}
    asked: dict[str, Any] = {
        "rank": 3,
        "rounds": 3,
        "privacy": pc.Privacy(8.0, 1e-5),
        "aggregation": "masked",
        "planning_size": 900,
    }

    def many() -> list[pc.Site]:
        return known(3000)

    def model_of_many() -> Any:
        return model_of(3000)

    def patients() -> Any:
        return planted(900)

    return {
        "evaluate": findings(model_of, known),
        "evaluate masked": findings(model_of, known, aggregation="masked"),
        "evaluate prevalence": findings(model_of, known, "carriers"),
        "evaluate table one": findings(model_of, known, "people"),
        "evaluate outcome": findings(model_of, known, "outcome"),
        "evaluate outcome unadjusted": findings(model_of, known, "outcome", adjust=[]),
        "evaluate survival": findings(model_of, known, "survival"),
        "evaluate completion": findings(model_of, known, "completion"),
        "evaluate cross-fitted": findings(replicated, known),
        "evaluate private": findings(model_of_many, many, **paid),
        "evaluate private plain": findings(model_of_many, many, privacy=pc.Privacy(4.0)),
        "evaluate private outcome": findings(model_of_many, many, "carriers", "outcome", **paid),
        "evaluate private survival": findings(model_of_many, many, "survival", planning_size=3000, **paid),
        "replicate": replication(lambda: pc.SumALS(rank=3, rounds=8), patients),
        "replicate masked": replication(lambda: pc.SumALS(rank=3, rounds=8, aggregation="masked"), patients),
        "replicate split": replication(lambda: pc.SumALS(rank=5, rounds=8), patients),
        "replicate folds": replication(lambda: pc.SumALS(rank=3, rounds=6), patients, repeats=2),
        "replicate trip": replication(lambda: pc.TRIP(rank=3, rounds=6), patients, merge=False),
        "replicate elsewhere": replication(lambda: pc.SumALS(rank=3, rounds=5), patients, leave_out=True),
        "replicate private": replication(lambda: pc.DPEM(**asked), patients),
        "rank": rank(),
        "rank masked": rank(aggregation="masked"),
        "forecast": foretold,
        "audit": audited,
    }


def file_cases() -> dict[str, Case]:
    """Studies, files, codes."""
    return {
        "simulate sumals": simulation(SUMALS_STUDY),
        "simulate dpem private": simulation(DPEM_STUDY),
        "align union": lambda: aligned(pc.align(own_words())),
        "align dictionary": by_dictionary,
        "align ring": by_ring,
        "frame": from_table,
        "file": saved,
        "compare": compared,
    }


def all_cases() -> dict[str, Case]:
    """Every case by its name."""
    groups = (
        trip_cases,
        sumals_cases,
        topics_cases,
        local_cases,
        central_cases,
        dpem_cases,
        mixture_cases,
        similarity_cases,
    )
    return {name: case for group in (*groups, findings_cases, file_cases) for name, case in group().items()}


# ---- record and compare


def result_of(case: Case) -> Result:
    """What a case gives, as JSON would have it. An error is a result, too."""
    try:
        found = case()
    except Exception as e:
        found = [type(e).__name__, str(e)[:160]]
    return list(json.loads(json.dumps(found)))


def record(file: Path, cases: Mapping[str, Case], keep: bool) -> int:
    """Run the cases and write the file."""
    found: dict[str, Result] = json.loads(file.read_text(encoding="utf-8")) if keep and file.exists() else {}
    for name, case in cases.items():
        began = time.process_time()
        found[name] = result_of(case)
        print(f"{name:28} {time.process_time() - began:6.2f} s  {found[name]}", flush=True)
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in found.items()]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return 0


def compare(file: Path, cases: Mapping[str, Case], words: Sequence[str]) -> int:
    """Run the cases again. 1: one differs from the file, or is no longer there."""
    before: dict[str, Result] = json.loads(file.read_text(encoding="utf-8"))
    differ = 0
    for name, case in cases.items():
        now = result_of(case)
        if name not in before:
            print(f"new      {name}  {now}", flush=True)
        elif now == before[name]:
            print(f"same     {name}", flush=True)
        else:
            differ += 1
            print(f"CHANGED  {name}\n         before {before[name]}\n         now    {now}", flush=True)
    for name in selected(before, words).keys() - cases.keys():
        differ += 1
        print(f"CHANGED  {name}  is no case any more", flush=True)
    print(f"{len(cases)} cases, {differ} changed")
    return int(differ > 0)


def selected(cases: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """The cases whose name starts with one of the words, or all."""
    return {name: case for name, case in cases.items() if not words or name.startswith(tuple(words))}


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("words", nargs="*", help="only cases whose name starts with one of these")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    fix_the_noise()
    print(f"polyclinic of {pc.__file__}", flush=True)
    cases = selected(all_cases(), given.words)
    if not cases:
        print(f"no case starts with {', '.join(given.words)}")
        return 2
    began = time.process_time()
    with threadpool_limits(1):  # sums of several threads would depend on how many processors there are
        if given.what == "record":
            ended = record(given.file, cases, keep=bool(given.words))
        else:
            ended = compare(given.file, cases, given.words)
    print(f"{time.process_time() - began:.0f} s of processor time")
    return ended


if __name__ == "__main__":
    sys.exit(main())
