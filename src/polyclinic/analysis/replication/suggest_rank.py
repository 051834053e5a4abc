"""How many phenotypes? As many as come back and hold together, at a rank that predicts hidden codes; or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyclinic.analysis.evaluate import AnalysisPlan
from polyclinic.analysis.pipeline import StudyPipeline
from polyclinic.analysis.replication.negative_control import permuted
from polyclinic.analysis.replication.replicate_fits import KEY
from polyclinic.errors import ConfigError
from polyclinic.methods.estimators.phenotypes import SumALS
from polyclinic.protocol.loop import run
from polyclinic.records.sites.from_data import Data, as_sites


@dataclass(frozen=True)
class RankTrial:
    """One rank tried.

    Parameters
    ----------
    rank
        Phenotypes asked for.
    replicable
        Those that come back in another half of the patients and hold together in patients nobody looked at.
    nats, low, high
        What hidden codes gain over their popularity, an event, with its interval: 0 is nothing.
    """

    rank: int
    replicable: int
    nats: float
    low: float
    high: float


@dataclass(frozen=True)
class RankSuggestion:
    """What was found.

    Parameters
    ----------
    rank
        The suggested one; None: no rank is supported.
    reason
        Why, in words.
    trials
        Everything that was tried.
    proposed
        The largest rank at which two halves agree over hashed cells (``rank="auto"``): a proposal for a fit, no count of
        phenotypes. None: none, or too few patients.
    control
        The same on codes permuted inside every hospital, where asked for: what chance suggests.
    """

    rank: int | None
    reason: str
    trials: tuple[RankTrial, ...]
    proposed: int | None = None
    control: RankSuggestion | None = None


def suggest_rank(
    data: Data,
    ranks: Sequence[int] = (2, 4, 6, 8, 10, 12, 15, 20),
    *,
    n_starts: int = 1,
    rounds: int = 60,
    seed: int = 0,
    aggregation: str | None = None,
    key: str = KEY,
    control: bool = False,
) -> RankSuggestion:
    """Suggest the number of phenotypes by sums alone, in one hospital or between several, or say that none is supported.

    Every rank is fitted on everybody and on two halves of the patients (SumALS), all in one run. Of the ranks that predict hidden
    codes as well as the best one does (within one paired error), the one with the most replicable phenotypes is suggested, the
    smallest of equals. Where no phenotype of any rank is replicable no rank is supported, however alike starts or halves are:
    on codes without any relation they agree, too.

    Parameters
    ----------
    data
        Sites, one site, or a tensor.
    ranks
        Ranks to try.
    n_starts
        Starts of every fit.
    rounds
        Sweeps of a fit at most.
    aggregation
        How hospitals add (``"masked"``: nobody sees a hospital's part); None: ``"plain"``.
    key
        Of the halves.
    control
        Ask permuted codes, too (twice the work).

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.planted_counts(patients=1500, procedures=30, diagnoses=40, phenotypes=3, codes=(4, 5), sites=3, seed=0)
    >>> suggest_rank(sites, (2, 3, 5)).rank
    3
    """
    candidates = sorted(set(ranks))
    if not candidates or candidates[0] < 1:
        raise ConfigError(f"need ranks of at least 1, got {list(ranks)}", hint="e.g. (5, 10, 15, 20)")
    transport = aggregation or "plain"
    method = SumALS(rank=candidates[0], n_starts=n_starts, rounds=rounds, seed=seed, aggregation=transport)
    plan = AnalysisPlan(("completion",), key=key, seed=seed, aggregation=transport, ranks=tuple(candidates))
    pipeline, sites = StudyPipeline(method, plan, 1), as_sites(data)
    outcome = run(pipeline, sites)
    pipeline.publish(outcome)
    permuted_run = None
    if control:
        permuted_run = suggest_rank(
            permuted(sites, seed),
            ranks,
            n_starts=n_starts,
            rounds=rounds,
            seed=seed,
            aggregation=aggregation,
            key=key,
        )
    proposed = pipeline.started(outcome.public).proposed or None
    table = pipeline.findings_.ranks
    assert table is not None
    trials = tuple(RankTrial(r["rank"], r["replicable"], r["nats"], r["low"], r["high"]) for r in table)
    best = next((t for t, r in zip(trials, table) if r["suggested"]), None)
    if best is None:
        reason = "no rank is supported: at none does a phenotype come back and hold together"
        return RankSuggestion(None, reason, trials, proposed, permuted_run)
    caveat = "" if best.low > 0 else "; hidden codes are not predicted at any rank"
    reason = f"{best.replicable} phenotypes come back in halves and hold together in unseen patients{caveat}"
    return RankSuggestion(best.rank, reason, trials, proposed, permuted_run)
