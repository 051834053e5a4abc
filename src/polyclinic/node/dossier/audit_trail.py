"""The audit trail: what the ledger says about this study, decisions one by one, releases by kind; and the model's card."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from polyclinic.node.dossier.sources import Book, Sources
from polyclinic.node.dossier.value import DossierLine, DossierPart, Rows
from polyclinic.privacy.accounting.charge import Charge
from polyclinic.privacy.ledger.entries import (
    Accept,
    Approve,
    CloseLine,
    Counted,
    Entry,
    Erase,
    Gap,
    Key,
    Note,
    Refuse,
    Reject,
    Reserve,
    Rules,
    Withdraw,
)

NOTHING: Final = "The ledger has no line about this study yet."


def trail(s: Sources) -> DossierPart:
    """Chapter of the ledger."""
    if not s.books:
        where = "The ledgers stay at the hospitals. The dossier that a hospital makes (--node) holds its lines."
        return DossierPart(
            "trail",
            "Audit trail",
            (
                DossierLine("books", "Ledgers", (where,)),
                DossierLine("whole", "Whether they are whole", ("Said by each hospital's own dossier.",)),
                DossierLine(
                    "spent", "Spent", ("Said by each hospital's own dossier; the card of the run names the largest.",)
                ),
                DossierLine("decisions", "Decisions", _coordinator(s)),
            ),
        )
    tables = []
    told, spent, decided = [], [], []
    for b in s.books:
        lines = b.lines(s.name)
        told.append(f"{b.site}: {b.ledger.head.count} lines, {len(lines)} about this study and the ledger itself.")
        spent.append(f"{b.site}: {_spent(s, b)}")
        made = [e for e in lines if e.charge is None]
        decided += [f"{b.site}, line {e.number}, {e.time}: {said(e)}." for e in made if e.kind in DECISIONS]
        tables.append(_table(b, made))
        tables.append(_releases(b, lines))
    faults = [f"{b.site}: {f}" for b in s.books for f in b.faults]
    return DossierPart(
        "trail",
        "Audit trail",
        (
            DossierLine("books", "Ledgers", tuple(told)),
            DossierLine(
                "whole",
                "Whether they are whole",
                tuple(faults) or (f"Every line of {len(s.books)} ledger(s) was checked when this was made: verified.",),
            ),
            DossierLine("spent", "Spent", tuple(spent)),
            DossierLine("decisions", "Decisions", tuple(decided) or _none(s)),
        ),
        tuple(t for t in tables if t.rows),
    )


DECISIONS: Final = ("accept", "refuse", "withdraw", "approve", "reject", "reserve", "close", "erase", "gap")


def _none(s: Sources) -> tuple[str, ...]:
    if s.run is not None and s.order is None:
        return ("A simulation in one process: no owner was asked.",)
    return (NOTHING,)


def _coordinator(s: Sources) -> tuple[str, ...]:
    if s.order is None:
        return ("The study is not signed yet: no site was asked.",)
    asked = f"The coordinator signed the order {s.order.digest[:16]}... and asked {', '.join(s.order.sites)}."
    refused = s.json("status.json").get("refused") or {}
    without = f"Declined: {', '.join(sorted(refused))}." if refused else "No hospital is recorded as having declined."
    return (asked, without) if s.run is not None and s.json("status.json") else (asked,)


def _spent(s: Sources, b: Book) -> str:
    charges = [e.charge for e in b.lines(s.name) if e.charge is not None]
    if not charges:
        return "nothing."
    delta = s.asked.delta if s.asked is not None else (s.policy.delta if s.policy is not None else 1e-6)
    unproven = [c for c in charges if not c.paid or not c.formal or c.adjacency != "patient"]
    if unproven:
        return f"{len(unproven)} of {len(charges)} releases without a proven patient-level bound: no epsilon holds for all."
    from polyclinic.privacy.accounting import accountant

    eps = accountant.epsilon([c.event for c in charges], delta)
    whole = b.ledger.epsilon(delta, bounded=True)
    return (
        f"patient-level epsilon {eps:.4g} at delta {delta:g}, formal, by {len(charges)} releases of this study; all studies of this "
        f"ledger that have a bound: {whole:.4g}."
    )


def _table(b: Book, entries: Iterable[Entry]) -> Rows:
    rows = tuple((str(e.number), e.time, e.kind, said(e), e.hash[:16]) for e in entries)
    return Rows(
        f"lines_{b.site}", f"Lines of {b.site} but for releases", ("line", "time", "kind", "what", "hash"), rows
    )


def _releases(b: Book, entries: Iterable[Entry]) -> Rows:
    """Releases of one kind in one row: a study of a thousand rounds is one page, and every line is in the ledger."""
    groups: dict[tuple[str, ...], list[tuple[int, Charge]]] = {}
    for e in entries:
        c = e.charge
        if c is not None:
            shapes = ", ".join(f"{k} {'x'.join(map(str, v))}" for k, v in c.shapes.items())
            noise = f"{c.noise}, sd {c.sd:.4g}" if c.paid and c.sd else c.noise or "none"
            groups.setdefault((c.step, shapes, noise, c.recipient, c.by.name), []).append((e.number, c))
    rows = []
    for (step, shapes, noise, who, by), found in groups.items():
        first, last = found[0], found[-1]
        span = f"{first[0]} to {last[0]}" if len(found) > 1 else str(first[0])
        rows.append((span, str(len(found)), step, shapes, noise, f"{who}, by {by}", (last[1].bytes or "")[:16]))
    columns = ("lines", "releases", "step", "arrays", "noise", "seen by", "digest of the last")
    return Rows(f"releases_{b.site}", f"Releases of {b.site}", columns, tuple(rows))


def said(e: Entry) -> str:
    """Return what a line of the ledger says."""
    match e.body:
        case Accept(order, by, shown):
            return f"{by} accepted order {order[:16]}" + (f", having been shown {shown[:16]}" if shown else "")
        case Refuse(order, by, reasons):
            return f"{by} refused order {order[:16]}" + (f": {'; '.join(reasons)}" if reasons else "")
        case Withdraw(order, by, why):
            return f"{by} withdrew the agreement to {order[:16]}" + (f": {why}" if why else "")
        case Approve(_, step, _, by, note):
            return f"{by} approved step {step!r}" + (f" ({note[:40]})" if note else "")
        case Reject(_, step, _, by):
            return f"{by} rejected step {step!r}"
        case Reserve(order, study, cohort):
            return f"reserved for study {study!r}, cohort {cohort!r}, order {order[:16]}"
        case Counted(order, _, sites):
            return f"exact sums of order {order[:16]} are taken over {', '.join(sites)}"
        case CloseLine(order, reason, sums):
            return f"closed order {order[:16]}: {reason}" + (f", {sums} sums" if sums else "")
        case Erase(what, files, by):
            return f"{by} erased {what}: {files} files"
        case Gap(count, _, by, why):
            return f"lines are missing of a ledger of {count} lines. {by} answers for it: {why}"
        case Rules(digest):
            return f"the owner's policy with digest {digest[:16]}"
        case Key(identity):
            return f"the ledger belongs to the identity {identity[:16]}"
        case Note(text):
            return text
        case _:
            return "the ledger begins" if e.kind == "began" else f"a line of kind {e.kind}"


def model(s: Sources) -> DossierPart:
    """The model card, for whoever finds the model later."""
    use = (
        "Research on groups of patients. It is not a diagnosis, and was not tested as one.",
        "No patient, no membership and no identifier is in the model file.",
    )
    if s.run is None or s.card is None:
        told = "There is no model here: " + (
            "the study has not run." if s.card is None else "it lies at the coordinator; name its run folder to add it."
        )
        return DossierPart(
            "model",
            "Model card",
            (
                DossierLine("what", "What it is", (told,)),
                DossierLine("use", "Intended use", use),
                DossierLine(
                    "privacy", "Privacy", (s.card.headline,) if s.card is not None else ("Not known before the run.",)
                ),
                DossierLine("figures", "Figures", ("None yet.",)),
                DossierLine("limits", "Limits", LIMITS),
            ),
        )
    m, versions = s.json("metrics.json"), s.json("study.json").get("versions") or {}
    figures = tuple(
        f"{k.replace('_', ' ')}: {v:.4g}." if isinstance(v, float) else f"{k.replace('_', ' ')}: {v}."
        for k, v in m.items()
        if isinstance(v, int | float)
        and not isinstance(v, bool)
        and k not in ("epsilon", "delta")  # never without adjacency and kind: the line above has them
    )
    files = [p.name for p in sorted(s.run.path.glob("model.*"))]
    made = (
        f"Learned by {s.card.method} over {len(s.sites)} hospitals ({', '.join(s.sites)}).",
        f"File: {', '.join(files) or 'none'}; written by polyclinic {versions.get('polyclinic', '?')}.",
    )
    return DossierPart(
        "model",
        "Model card",
        (
            DossierLine("what", "What it is", made),
            DossierLine("use", "Intended use", use),
            DossierLine("privacy", "Privacy", tuple(f"{k}: {v}." for k, v in s.card.rows())),
            DossierLine("figures", "Figures", figures or ("The run wrote none.",)),
            DossierLine("limits", "Limits", LIMITS),
        ),
    )


LIMITS: Final = (
    "A rare phenotype is the first thing that noise hides, and a small hospital the first to be outvoted.",
    "The software knows no groups of patients: fairness between them is for the study's protocol to judge.",
    "Figures of a run between hospitals that need patients' records are not computed unless the study asks for [evaluate].",
)
