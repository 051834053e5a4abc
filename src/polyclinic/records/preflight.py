"""A checkup of a hospital's node before any study: every precondition, all faults at once, nothing sent."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol

from polyclinic.config import FeatureRule, Node, Study
from polyclinic.config.evaluate import PeopleRule
from polyclinic.errors import ConfigError, DataError, MissingExtra, PolyclinicError
from polyclinic.records.databases.engine import Connection, session
from polyclinic.records.events import EventTable, read_events
from polyclinic.records.events.cooccurrence import choose_codes, count_together, repeats
from polyclinic.records.events.labels import read_labels
from polyclinic.records.events.matrix import read_matrix
from polyclinic.records.sites.covariates import make_persons, read_people
from polyclinic.records.sites.remarks import alike, remarks
from polyclinic.records.sites.site import Site
from polyclinic.records.source_units import units_of
from polyclinic.tensors.skew import skew

SMALL: Final = 11  # patients of a unit, where no owner wrote a policy; as in a simulation
SHIFTED: Final = ("mimic3", "mimic4")  # sources that move their dates into the future
COARSER: Final = 30  # patients a code below which coarser codes are advised (a guess)


@dataclass
class Checkup:
    """What a checkup found: good news, remarks, and faults (any of which would stop a study)."""

    findings: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    exit_code: int = 0
    advice: list[str] = field(default_factory=list)  # what to do about the faults, where their errors say it

    @property
    def ok(self) -> bool:
        """Whether a study could start."""
        return not self.faults

    def blame(self, e: PolyclinicError) -> None:
        """Note every fault of an error."""
        extra_hint = f" ({e.hint})" if isinstance(e, MissingExtra) else ""  # the extra, not only the package
        self.faults += [f"{e.what}: {f}" for f in e.faults] or [e.what + extra_hint]
        self.advice += [e.hint] if e.hint and not extra_hint else []
        self.exit_code = max(self.exit_code, e.exit_code)


@dataclass(frozen=True)
class Limits:
    """When a checkup fails: the owner's fewest patients, and shares of rows, of a mode's rows, of one patient."""

    min_patients: int | None = None  # None: the owner wrote none
    max_dropped: float = 0.5
    max_unmapped: float = 0.5
    max_one_patient: float = 0.2

    @classmethod
    def of(cls, policy: OwnersLimits) -> Limits:
        """The owner's own; a number of patients only where the owner wrote one."""
        least = policy.min_patients if "min_patients" in policy.model_fields_set else None
        return cls(least)


class OwnersLimits(Protocol):
    """What a checkup asks of an owner's policy."""

    @property
    def min_patients(self) -> int: ...
    @property
    def model_fields_set(self) -> set[str]: ...


def check(node: Node | str | Path, study: Study | str | Path | None = None) -> Checkup:
    """Check a hospital's node file and database. All faults are reported at once, and nothing is sent.

    The command ``polyclinic check`` does the same.

    Parameters
    ----------
    node
        The hospital's node, or the path of its node file.
    study
        A study or the path of its file: codes, tensor and outcome of that study are checked, too.

    Returns
    -------
    Checkup
        ``ok``, ``findings``, ``remarks``, ``faults`` and ``advice``.

    Examples
    --------
    >>> import tempfile, polyclinic as pc
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp())
    >>> rows = [f"{p},{p},2020-01-01,drug,{'ab'[k]}" for p in range(30) for k in range(2)]
    >>> _ = (folder / "events.csv").write_text("\\n".join(["patient_id,visit_id,time,kind,code", *rows]))
    >>> node = pc.Node.parse({"site": {"name": "north", "folder": str(folder / "site")},
    ...                       "source": {"kind": "files", "events": str(folder / "events.csv")}})
    >>> found = pc.check(node)
    >>> found.ok, found.findings[1]
    (True, 'read events: 60 rows, 60 used')
    """
    read = node if isinstance(node, Node) else Node.read(Path(node))
    study_file = study if study is None or isinstance(study, Study) else Study.read(Path(study))
    return check_node(read, study_file)


def check_node(node: Node, study: Study | None = None, *, limits: Limits | None = None) -> Checkup:
    """Run every precondition that can be run, and go on after a fault wherever the next check does not need it.

    Parameters
    ----------
    study
        With it: unmapped share, vocabulary hash, size of the tensor, patients below the minimum.
    limits
        The owner's (``[policy]``).
    """
    limits = limits or Limits()
    node = study.divided(node) if study is not None else node
    out = Checkup()
    _folder(node, out)
    if study is not None and study.study.quorum is not None:
        out.remarks.append(
            f"quorum = {study.study.quorum}: between hospitals a sum needs more than half of those that take part, and a lower "
            "quorum is raised to that; secure sums need more"
        )
    if (
        node.source.url
        and "@" in node.source.url
        and ":" in node.source.url.partition("://")[2].partition("@")[0].strip(":")
    ):
        out.remarks.append("the node file holds a password: keep it in the environment, password = 'env:NAME'")
    try:
        with session(node.home) as (con, scratch):
            if node.source.kind == "matrix":
                matrix = read_matrix(con, node, (study and study.features) or FeatureRule())
                out.findings.append(f"matrix of {matrix.values.shape[0]:,} patients x {matrix.values.shape[1]} columns")
                _enough(len(matrix.patients), limits.min_patients, out)
                return out
            table, source = read_events(con, node, scratch / "events.parquet", study)
            absent = (
                [name for name in source.rows if name.partition(".")[0] not in source.inputs] if source.inputs else []
            )
            out.remarks += [f"no table {name}: events of it are not in this source" for name in absent]
            out.figures["absent"] = absent
            _events(con, table, limits, out)
            _overlap(con, table, study, out)
            _odd(con, node, table, out)
            try:
                labels = read_labels(con, source, study.labels if study else None, node.source.label)
                out.findings.append(f"outcome {labels.words()}" if labels else "no outcome in this source")
                if study is not None and study.labels is not None and labels is not None:
                    labels.need_two_levels()
            except (DataError, ConfigError) as e:
                out.blame(e)
            if study is not None and study.tensor is not None:
                _study(con, table, study, limits, out)
                if study.people is not None:
                    make_persons(con, source, table.scan())
                    _people(con, node, study.people, table, out)
            else:
                _enough(out.figures["patients"], limits.min_patients, out)
    except PolyclinicError as e:
        out.blame(e)
    except OSError as e:
        out.faults.append(f"{node.home}: {e.strerror or e}")
        out.exit_code = max(out.exit_code, 3)
    return out


def _folder(node: Node, out: Checkup) -> None:
    ancestor = next(p for p in (node.home, *node.home.parents) if p.exists())
    if os.access(ancestor, os.W_OK):
        out.findings.append(f"site folder {node.home}: writable")
    else:
        out.faults.append(f"site folder {node.home}: not writable")
        out.exit_code = max(out.exit_code, 2)


def _too_much(share: float, limit: float, line: str, out: Checkup) -> None:
    """A share above the limit is a fault; a tenth and more is worth a remark."""
    if share > limit:
        out.faults.append(f"{line}, more than {limit:.0%}")
        out.exit_code = max(out.exit_code, DataError.exit_code)
    elif share >= 0.1:
        out.remarks.append(line)


def _events(con: Connection, table: EventTable, limits: Limits, out: Checkup) -> None:
    for step in table.steps:
        reasons = "".join(f", {n:,} {reason}" for reason, n in step.dropped.items())
        out.findings.append(f"{step.name}: {step.rows_in:,} rows, {step.rows_out:,} used{reasons}")
        if step.rows_in and step.name.startswith("read "):
            # A cell of a wide table that is empty, or says that nothing happened, is no row that was lost.
            dropped = {k: n for k, n in step.dropped.items() if k not in ("empty cell", "cell says it did not happen")}
            share = sum(dropped.values()) / step.rows_in
            worst = max(dropped.items(), key=lambda x: x[1], default=("", 0))
            line = f"{step.name}: {share:.0%} of its {step.rows_in:,} rows cannot be used, mostly: {worst[0]} ({worst[1]:,})"
            _too_much(share, limits.max_dropped, line, out)
    most = con.execute(
        f"SELECT coalesce(max(n), 0), coalesce(sum(n), 0) FROM (SELECT count(*) AS n FROM {table.scan()} GROUP BY patient_id)"
    ).fetchone() or (0, 0)
    if most[1] >= 100:
        share = float(most[0]) / float(most[1])
        line = f"one patient has {share:.0%} of all {most[1]:,} events"
        _too_much(share, limits.max_one_patient, line, out)
    for before, after in pairwise(table.attrition):
        out.findings.append(f"{after.step}: {after.patients:,} of {before.patients:,} patients left")
    rows = con.execute(
        "SELECT kind, count(*), count(DISTINCT patient_id), count(DISTINCT code), min(time), max(time) "
        f"FROM {table.scan()} GROUP BY 1 ORDER BY 1"
    ).fetchall()
    for kind, n, patients, codes, first, last in rows:
        span = f"{first:%Y-%m-%d} to {last:%Y-%m-%d}" if first is not None else "no times"
        out.findings.append(f"kind {kind}: {n:,} events, {patients:,} patients, {codes:,} codes, {span}")
    out.remarks += [f"{n:,} {what}" for what, n in table.notes.items() if n]
    counted = con.execute(f"SELECT count(DISTINCT patient_id) FROM {table.scan()}").fetchone()
    out.figures |= {
        "rows": table.rows,
        "patients": int(counted[0]) if counted else 0,
        "kinds": {r[0]: r[1] for r in rows},
    }


def _overlap(con: Connection, table: EventTable, study: Study | None, out: Checkup) -> None:
    """Patients of several sites: a fault where the study asks for a guarantee that does not account for them."""
    people, most = con.execute(
        "SELECT count(*), coalesce(max(n), 0) FROM (SELECT patient_id, count(DISTINCT site) AS n "
        f"FROM {table.scan()} WHERE site IS NOT NULL GROUP BY 1) WHERE n > 1"
    ).fetchone() or (0, 0)
    asked = study.privacy if study and study.sites and study.sites.split else None
    covered = asked.max_sites_per_patient or 1 if asked and asked.level == "patient" else most
    if most > covered:
        out.faults.append(
            f"{people:,} patients occur at up to {most} of the source's sites, and [privacy] accounts for {covered}: "
            f"max_sites_per_patient = {most} adds the noise for it"
        )
        out.exit_code = max(out.exit_code, DataError.exit_code)
    elif people:
        out.remarks.append(f"{people:,} patients occur at several of the source's sites")


def _odd(con: Connection, node: Node, table: EventTable, out: Checkup) -> None:
    """What is possible and yet most often a slip: events of the future, and one site under two spellings.

    MIMIC moves its dates to the years 2100 to 2210 on purpose, so there nothing is said of them.
    """
    today = date.today()
    future = con.execute(
        f"SELECT count(*), count(DISTINCT patient_id), max(time) FROM {table.scan()} WHERE CAST(time AS DATE) > ?",
        [today],
    ).fetchone()
    if future and future[0] and node.source.kind not in SHIFTED:
        out.remarks.append(
            f"{future[0]:,} events of {future[1]:,} patients are dated after today ({today}), the last {future[2]:%Y-%m-%d}: "
            "they are counted like all others"
        )
    names = con.execute(f"SELECT DISTINCT site FROM {table.scan()} WHERE site IS NOT NULL ORDER BY 1").fetchall()
    out.remarks += alike([str(n) for (n,) in names])


def _coarser(mode: str, codes: Sequence[str]) -> str:
    """What makes codes of this kind coarser: no catalogue of diagnoses groups paths, or the names of drugs.

    >>> _coarser("diagnosis", ["renal|failure", "renal|stone"]), _coarser("diagnosis", ["4280"]), _coarser("drug", ["aspirin"])
    ("'path:2' (or 'path:1')", "'ccs', 'rubric' or a file code,group", 'a file drug_name,ingredient')
    """
    if 2 * sum("|" in c for c in codes) > len(codes):
        return "'path:2' (or 'path:1')"
    if mode == "drug":
        return "a file drug_name,ingredient"
    targets = {"diagnosis": "'ccs', 'rubric' or ", "procedure": "'rubric' or "}
    return targets.get(mode, "") + "a file code,group"


def _study(con: Connection, table: EventTable, study: Study, limits: Limits, out: Checkup) -> None:
    rule = study.rule()
    vocabulary = choose_codes(con, table.scan(), study)
    for c, axis in zip(vocabulary.coverage, vocabulary.axes):
        out.findings.append(f"mode {c.mode}: {c.share:.1%} of {c.rows:,} rows unmapped")
        line = f"mode {c.mode}: {c.share:.0%} of its {c.rows:,} rows have no group"
        _too_much(c.share, limits.max_unmapped, line, out)
        out.findings.append(f"mode {c.mode}: {c.patients:g} patients a code (median)")
        if c.patients < COARSER and c.mode not in rule.vocabulary:
            out.remarks.append(
                f"mode {c.mode}: half of the codes have fewer than {COARSER} patients; coarser ones come back more often: "
                f"[codes.{c.mode}] to = {_coarser(c.mode, axis.labels or ())}"
            )
        if c.top_unmapped:
            top_codes = ", ".join(f"{code} ({n:,})" for code, n in c.top_unmapped)
            out.remarks.append(f"mode {c.mode}: most frequent unmapped codes: {top_codes}")
    repeat_share = repeats(con, rule)
    if study.sites is not None and study.sites.split and vocabulary.sites:
        try:
            found_units = units_of(con, study, vocabulary, limits.min_patients or SMALL)
        except DataError as e:
            out.blame(e)
        else:
            out.findings.append(f"{len(found_units.names)} units, {len(found_units.made.sites)} sites of a simulation")
            out.remarks += found_units.words()
            out.figures["small"] = list(found_units.small)
    tensor, _ = count_together(con, rule, vocabulary)
    out.remarks += remarks([Site(study.name, tensor)])
    skewness = skew(tensor, repeat_share)
    out.findings.append(skewness.words())
    out.figures["skew"] = skewness.to_json()
    weighting = study.method.parameters.get("weighting") if study.method is not None else None
    if weighting == "none" and skewness.advice():
        out.remarks.append(str(skewness.advice()))
    labelled = con.execute(
        "SELECT count(DISTINCT patient_id) FROM labels WHERE label IS NOT NULL AND patient_id IN (SELECT unnest(?))",
        [list(tensor.axes[0].labels or ())],
    ).fetchone()
    if labelled and 0 < labelled[0] < tensor.patients:
        unknown = tensor.patients - labelled[0]
        out.remarks.append(
            f"outcome: {unknown:,} of {tensor.patients:,} patients unknown: they are left out of the outcome model only"
        )
    if labelled and labelled[0] == 0 and study.labels is not None:
        out.remarks.append(
            f"outcome {study.labels.outcome}: known of none of {tensor.patients:,} patients: the report will have no outcome "
            "model; ask for another outcome, or see which columns this source lacks"
        )
    size = tensor.nbytes
    hashes = {a.name: a.digest()[:16] for a in tensor.axes[1:]}
    shape = " x ".join(f"{d:,}" for d in tensor.shape)
    out.findings.append(f"tensor {shape}, {tensor.nnz:,} nonzeros, {size / 1e6:,.1f} MB in memory")
    out.findings += [f"mode {mode}: vocabulary {digest}" for mode, digest in hashes.items()]
    out.figures |= {"shape": list(tensor.shape), "nnz": tensor.nnz, "bytes": size, "vocabulary": hashes}
    _enough(tensor.patients, limits.min_patients, out)


def _people(con: Connection, node: Node, rule: PeopleRule, table: EventTable, out: Checkup) -> None:
    """Whether the source has what ``[people]`` names, and age and sex of anybody."""
    patients = [str(p) for (p,) in con.execute(f"SELECT DISTINCT patient_id FROM {table.scan()}").fetchall()]
    try:
        read = read_people(con, rule, patients, node.source.columns, node.source.missing)
    except DataError as e:
        out.blame(e)
        return
    if read is not None:
        out.findings.append(f"people: {', '.join(rule.names)}")
        unknown = [n for n in ("age", "sex") if n in read.columns and not any(_is_known(v) for v in read.columns[n])]
        if unknown:
            hint = f"take {' and '.join(unknown)} out of [people], or give the source the column"
            out.blame(DataError("[people] is unknown here", faults=[f"{n}: of no patient" for n in unknown], hint=hint))


def _is_known(value: object) -> bool:
    return value not in ("", None) and value == value


def _enough(patients: int, least: int | None, out: Checkup) -> None:
    if least is None:
        out.findings.append(
            f"{patients:,} patients; [policy] min_patients is not written, so no number is too small here"
        )
    elif patients < least:
        out.faults.append(f"{patients} patients, fewer than the policy's minimum of {least}")
        out.exit_code = max(out.exit_code, 3)
    else:
        out.findings.append(f"{patients:,} patients, at least the policy's minimum of {least}")
