"""The study protocol in plain words: question, cohort, data, method, recipients, retention, privacy."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from polyclinic.errors import MissingExtra
from polyclinic.node.dossier.sources import Sources
from polyclinic.node.dossier.value import DossierLine, DossierPart
from polyclinic.node.signed_study import COORDINATOR
from polyclinic.privacy.card.card import ADJACENCY
from polyclinic.privacy.gate.review import list_ahead
from polyclinic.records.events.atlas import described

WINDOW: Final = {
    "visit": "in one visit",
    "day": "on one day",
    "patient": "anywhere in one patient's records",
}


def protocol(s: Sources) -> DossierPart:
    """The first chapter."""
    told = s.study["study"]
    return DossierPart(
        "protocol",
        "Study protocol",
        (
            DossierLine("question", "Question", (str(told.get("description", "")),)),
            DossierLine("cohort", "Cohort", cohort(s)),
            DossierLine("data", "Categories of data", categories(s)),
            DossierLine("method", "Method", _method(s)),
            DossierLine("leaves", "What leaves a hospital", _leaves(s)),
            DossierLine("recipients", "Recipients, and what each of them sees", recipients(s)),
            DossierLine("retention", "How long what is kept", retention(s)),
            DossierLine("privacy", "Privacy", privacy(s)),
            DossierLine("rules", "The owner's rules", _rules(s)),
        ),
    )


def cohort(s: Sources) -> tuple[str, ...]:
    """Whose records take part."""
    rule, time = dict(s.study.get("cohort") or {}), dict(s.study.get("time") or {})
    made = []
    if rule.get("definition") is not None:
        made.append(f"Members of cohort definition {rule['definition']} of the hospital's own OMOP COHORT table.")
    if rule.get("sql"):
        made.append(
            f"Patients found by the query {rule['sql']!r} (SHA-256 {rule['sha256']}); it lies at the hospital, and runs only "
            "if the owner's file has this digest and the owner's policy names it."
        )
    made += _atlas(s, rule["atlas"]) if rule.get("atlas") else []
    for kind, codes in dict(rule.get("first") or {}).items():
        made.append(f"Patients with a {kind} of {', '.join(map(str, codes))}; the first such visit is the index date.")
    if rule.get("age"):
        made.append(f"Aged {rule['age'][0]} to {rule['age'][1]} years at the index date.")
    if rule.get("washout"):
        made.append(f"At least {rule['washout']} days of observation before the index date.")
    if time.get("start") or time.get("end"):
        made.append(f"Events from {time.get('start', 'the first')} to {time.get('end', 'the last')}.")
    if time.get("before") is not None or time.get("after") is not None:
        made.append(
            f"Events from {time.get('before', 'any number of')} days before to {time.get('after', 'any number of')} days after "
            "the index date."
        )
    if s.study.get("visits"):
        made.append(f"Visits of these kinds only: {', '.join(map(str, s.study['visits']['types']))}.")
    if not rule:
        made.insert(
            0, "Every patient of each hospital's source who has an event of the kinds below; no cohort is defined."
        )
    if s.node is not None:
        out = s.node.exclude
        made.append(
            "Patients on the hospital's own list of objections are left out at every reading."
            if out is not None
            else "This hospital's node file names no list of objections ([exclude] patients)."
        )
    return tuple(made)


def _atlas(s: Sources, name: str) -> list[str]:
    """The plain language of an ATLAS definition, as its own library writes it."""
    text = s.order.files[name] if s.order is not None else Path(s.files or "", name).read_text(encoding="utf-8")
    head = f"Patients who meet this ATLAS cohort definition (SHA-256 {sha256(text.encode()).hexdigest()}):"
    try:
        return [head, *(line.strip() for line in described(text).splitlines() if line.strip())]
    except MissingExtra as e:
        return [head, f"Its plain language cannot be shown: {e.what}. {e.hint}."]


def categories(s: Sources) -> tuple[str, ...]:
    """Which data of a patient are read."""
    made = ["Health data, a special category (Art. 9 GDPR)."]
    tensor, features = dict(s.study.get("tensor") or {}), dict(s.study.get("features") or {})
    if tensor:
        window = str(tensor.get("window", "visit"))
        together = WINDOW.get(window, f"within {window}")
        made.append(
            f"Coded events of these kinds: {', '.join(tensor['modes'])}; read together where they occur {together}."
        )
        public = [m for m in tensor["modes"] if m in dict(tensor.get("vocabulary") or {})]
        if public:
            made.append(
                f"Codes of {', '.join(public)} come from a public list that the study carries, not from records."
            )
        other = [m for m in tensor["modes"] if m not in public]
        if other:
            how = tensor.get("alignment")
            text = {
                "ring": "the sites agree on them by a protocol in which no site shows a code",
                "union": "the sites show each other their lists of codes",
            }.get(str(how), "they are chosen from the records")
            made.append(
                f"Codes of {', '.join(other)}: {text}. That a rare code occurs is itself a fact about patients."
            )
        for kind, rule in dict(s.study.get("codes") or {}).items():
            made.append(f"Codes of {kind} are grouped: {rule.get('to', 'normal')}.")
    if features:
        made.append(f"Columns of measurements: {', '.join(features.get('columns') or ('every number column',))}.")
        if features.get("label"):
            made.append(f"The class of a patient: column {features['label']!r}.")
    people, labels = dict(s.study.get("people") or {}), dict(s.study.get("labels") or {})
    if labels:
        made.append(f"An outcome of each patient: {labels['outcome']}.")
    if people:
        asked = [k for k in ("age", "sex", "survival") if people.get(k)] + list(people.get("columns") or ())
        made.append(f"About each patient besides: {', '.join(map(str, asked)) or 'nothing'}.")
    if s.study.get("data"):
        made.append(f"The records are generated ({s.study['data']['dataset']}): no real patient is behind them.")
    made.append(
        "Identifiers and dates are read at the hospital to put events together; neither is part of what leaves."
    )
    return tuple(made)


def _method(s: Sources) -> tuple[str, ...]:
    chosen = {k: v for k, v in dict(s.study["method"]).items() if k not in ("name", "aggregation")}
    settings = ", ".join(f"{k} {v}" for k, v in sorted(chosen.items())) or "defaults"
    made = [f"{s.study['method']['name']} ({settings}), seed {s.study['study'].get('seed', 0)}."]
    if s.facts.paper:
        made.append(f"Source: {s.facts.paper}.")
    sums = {
        "total": "Contributions of the hospitals are added so that each party sees only the sum",
        "each": "Contributions of the hospitals are added by a party that sees each of them",
    }[s.adder.reveals]
    made.append(f"{sums} (aggregation: {s.adder.name}).")
    if s.order is not None:
        made.append(
            f"Every sum needs at least {s.order.least} of {len(s.sites)} hospitals, and waits {s.order.deadline:g} s for one."
        )
    return tuple(made)


def _leaves(s: Sources) -> tuple[str, ...]:
    steps = list_ahead(s.facts, s.adder)
    made = [lines[0][:1].upper() + lines[0][1:] + "." for lines in steps.values()]
    if not made:
        made = ["The method's author says nothing about its steps; each release has to be read as it comes."]
    return (
        "Arrays of numbers that are sums over the hospital's patients, of shapes announced before. No record and no identifier.",
        *made,
    )


def recipients(s: Sources) -> tuple[str, ...]:
    """Who receives what."""
    made = []
    if s.sites and s.order is not None:
        made.append("Hospitals: " + ", ".join(f"{n} (key {s.order.keys[n][:16]}...)" for n in s.sites) + ".")
    elif s.sites:
        made.append(f"Hospitals: {', '.join(s.sites)}.")
    if not made:
        made.append("The hospitals are not named yet: the coordinator's signed order will list them with their keys.")
    if s.order is not None:
        made.append(f"The coordinator, key {s.order.keys[COORDINATOR][:16]}....")
    values = "with noise" if s.asked is not None else "exact"
    made += [f"Seen by {who}: {what.format(values=values)}." for who, what in s.adder.saw.items()]
    made.append(
        "A hospital that declines sends the coordinator one word (declined, or what is technically wrong). Its reasons stay in its "
        "own log."
    )
    return tuple(made)


def retention(s: Sources) -> tuple[str, ...]:
    """What is kept, where, how long."""
    made = []
    if s.node is not None:
        site = s.node.site
        made += [
            (
                f"At the hospital {site.name}: events, tensor and labels of a study are removed when it ends; of one that stopped "
                f"after {_span(site.resume_for)}."
            ),
            f"Patients' memberships, which never leave, are removed after {_span(site.retention)}.",
        ]
    else:
        made.append(
            "At each hospital: events, tensor and labels are removed when the study ends; memberships after [site] retention "
            "(90 days where a hospital sets nothing else)."
        )
    return (
        *made,
        "The ledger of releases and decisions has no retention limit: it must show the privacy budget that was spent.",
        "The coordinator keeps the public model and aggregate statistics, without patient-level data, until the run folder is deleted.",
        "What was released cannot be taken back.",
    )


def _span(value: str) -> str:
    if value in ("none", "keep"):
        return {"none": "no time at all", "keep": "no fixed time: they are kept until erased by hand"}[value]
    return f"{value[:-1]} {'days' if value.endswith('d') else 'hours'}"


def privacy(s: Sources) -> tuple[str, ...]:
    """Adjacency, delta and kind; never an epsilon without them."""
    made = []
    asked = s.asked
    if asked is None:
        made.append(
            "The study asks for no differential privacy: nothing bounds what the released sums reveal about a patient."
        )
    else:
        made.append(
            f"Asked for: {asked.level}-level differential privacy, epsilon {asked.epsilon:g} at delta {asked.delta:g}, over the "
            f"whole study ({ADJACENCY[asked.level]}); one patient is assumed to be at no more than "
            f"{asked.max_sites_per_patient} hospital{'s' if asked.max_sites_per_patient > 1 else ''}."
        )
    if s.card is None:
        formal = s.facts.formal and asked is not None and asked.level == "patient"
        kind = (
            "The kind of guarantee can be formal: a theorem covers this method, if every list of codes is public or covered by the budget."
            if formal
            else "The kind of guarantee will not be formal: no theorem covers this method with this setting."
        )
        return (*made, kind, "The card of the run, made from the ledgers' lines, states the guarantee.")
    made.append(f"Guarantee by the lines of the ledger: {s.card.headline}.")
    made += [f"But: {r}." for r in s.card.reasons]
    made += [f"Assumed: {a}." for a in s.card.assumptions]
    return tuple(made)


def _rules(s: Sources) -> tuple[str, ...]:
    if s.policy is None:
        return (
            "Each hospital decides by a policy of its own, which never leaves it; its own dossier shows it (--node).",
        )
    p = s.policy
    told: Mapping[str, object] = {
        "methods that may run": ", ".join(p.methods) if p.methods is not None else "all",
        "largest patient-level epsilon of one study": p.max_epsilon_per_study or "no limit",
        "largest patient-level epsilon of all studies": p.max_epsilon_total or "no limit",
        "delta of both": f"{p.delta:g}",
        "fewest patients": p.min_patients,
        "fewest hospitals": p.min_sites,
        "smallest count that is shown": p.min_cell,
        "releases that wait for a person": p.review,
        "releases without a proven bound": "allowed" if p.allows_unproven else "refused",
        "a contribution shown by itself": "allowed" if "gather" in p.sums else "refused",
    }
    return tuple(f"{k[:1].upper()}{k[1:]}: {v}." for k, v in told.items())
