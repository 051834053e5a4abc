"""Several ranks of one method in one run: what each predicts and how much of it comes back; a suggestion, never a choice."""

from __future__ import annotations

from collections.abc import Sequence

from polyclinic.util.table import Table

COLUMNS = ("rank", "nats", "low", "high", "to_best", "se", "replicable", "suggested")


def ranks_table(completion: Table, ranks: Sequence[int], replicable: Sequence[int | None]) -> Table:
    """One row a rank, smallest first.

    Of the ranks within one paired error of the best by hidden codes, the suggested one has the most replicated phenotypes, and
    is the smallest of equals. If codes are not predicted (the best interval reaches 0), only replication decides. If no
    phenotype replicated at any rank, none is suggested.

    Parameters
    ----------
    completion
        Of :meth:`polyclinic.analysis.completion.Completion.table`, in the order of ``ranks``.
    ranks
        Rank of each candidate.
    replicable
        How many phenotypes of each come back and hold together; None where it was not tested.

    >>> t = Table(["nats", "low", "high", "to_best", "se"], [[0.30, 0.2, 0.4, -0.01, 0.02], [0.31, 0.2, 0.4, 0.0, 0.0]])
    >>> ranks_table(t, [5, 10], [4, 4])["suggested"]
    [True, False]
    """
    rows = list(completion)
    good = [i for i, r in enumerate(rows) if r["to_best"] >= -r["se"]]
    best = max(range(len(rows)), key=lambda i: rows[i]["nats"])
    counts = [replicable[i] or 0 for i in range(len(rows))]
    tested = all(n is not None for n in replicable)
    if rows[best]["low"] <= 0 or (tested and not any(counts)):  # then only replication can speak for a rank
        good = [i for i in range(len(rows)) if counts[i] > 0]
    suggested = max(good, key=lambda i: (counts[i], -ranks[i])) if good else None
    cells = [
        [ranks[i], *(r[k] for k in ("nats", "low", "high", "to_best", "se")), replicable[i], i == suggested]
        for i, r in enumerate(rows)
    ]
    return Table(list(COLUMNS), [cells[i] for i in sorted(range(len(ranks)), key=lambda i: ranks[i])])


def suggestion(table: Table) -> str:
    """In words.

    >>> suggestion(Table(list(COLUMNS), [[5, 0.0, -0.1, 0.1, 0.0, 0.0, 0, False]]))
    'No rank is supported: no phenotype comes back and holds together.'
    """
    row = next((r for r in table if r["suggested"]), None)
    if row is None:
        return "No rank is supported: no phenotype comes back and holds together."
    replicated = "" if row["replicable"] is None else f", {row['replicable']} of {row['rank']} phenotypes come back"
    return f"Rank {row['rank']} is suggested by hidden codes and by replication ({row['nats']:.3f} nats an event{replicated}). Nothing was changed by it."
