"""Whether a site takes part in a study: roster against pins, policy, budget, then data; refused before anything runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyclinic import __version__
from polyclinic.config import Study
from polyclinic.errors import PolicyRefusal, PolyclinicError, ProtocolMismatch
from polyclinic.node.admission.retention import drop_data, seconds
from polyclinic.node.enrolment.folders import SiteFolder, append_event, private, read_json, write_json
from polyclinic.node.signed_study import StudyOrder, read_order
from polyclinic.node.site.context import SiteContext
from polyclinic.node.site.formal_party import empty_site
from polyclinic.privacy.accounting.budget import Privacy
from polyclinic.privacy.accounting.mechanisms import Noise
from polyclinic.privacy.gate.budget_holder import BudgetHolder
from polyclinic.privacy.gate.gate import ReleaseGate, Waits
from polyclinic.privacy.gate.owner_rules import (
    LedgerRule,
    exact_floor,
    ledger_of,
    noise_of,
    outbox_of,
    policy_between,
    policy_of,
)
from polyclinic.privacy.gate.review import rare_here
from polyclinic.privacy.guarantee import noisy
from polyclinic.protocol.aggregators import by_name, kind_of
from polyclinic.protocol.interfaces import Method
from polyclinic.protocol.minimum_patients import MinimumPatients
from polyclinic.records.databases.engine import DataAway
from polyclinic.records.ingest import ingest
from polyclinic.records.sites.people import People
from polyclinic.records.sites.site import Site
from polyclinic.studies import registry
from polyclinic.studies.analyses import acts_of, refused
from polyclinic.tensors import device
from polyclinic.tensors.axis import Axis

T = TypeVar("T")
NUMBERS: Final = 2**22  # of one release, and of the model; [keys] max_numbers lowers or raises it
OUTCOMES: Final = ("mortality", "readmission", "label")  # any other column may be of one patient
AGAIN: Final = 3.0  # seconds before a database that does not answer is asked again
ROUNDS: Final = 100_000  # of one study; [keys] max_rounds lowers it


def doubts(order: StudyOrder, folder: SiteFolder) -> tuple[list[str], list[str]]:
    """What stands against a study: faults that refuse it, and questions that only the owner can answer."""
    faults, questions = _key_doubts(order, folder)
    if order.polyclinic.split(".")[:2] != __version__.split(".")[:2]:
        faults.insert(0, f"the study was made with Polyclinic {order.polyclinic}, this site has {__version__}")
    alignment = folder.node.keys.get("alignment")
    if order.alignment is not None and alignment == "public":
        faults.append(f"it has no public lists of codes (alignment = {order.alignment!r}); this site asks for them")
    elif order.alignment == "union" and alignment != "union":
        faults.append('it asks for this site\'s list of codes in the clear; `[keys] alignment = "union"` allows that')
    if order.formal:
        faults += _overlap_faults(order, folder.node.source.elsewhere or 0)
    decision = consent(order, folder)
    if order.digest in ledger_of(folder.node).tally.closed:
        faults.append("this study is over here: its ledger has closed it")
    if decision is False:
        faults.append("the owner rejected this study")
    elif decision is None and folder.node.keys.get("studies", "ask") != "policy":
        questions.append("the owner has not accepted this study: `polyclinic site review`")
    if any(o.id == order.id and o.digest != order.digest for o in asked(folder)):
        faults.append(f"another order was asked of this site under the name {order.id!r}; a name stands for one order")
    return faults, questions


def _overlap_faults(order: StudyOrder, elsewhere: int) -> list[str]:
    """Whether the owner states that patients are at more sites than the study accounts for."""
    most = (order.study.get("privacy") or {}).get("max_sites_per_patient") or 1
    told = f"it covers patients of at most {most} site(s); [source] elsewhere = {elsewhere} states more here"
    return [told] if elsewhere >= most else []


def _key_doubts(order: StudyOrder, folder: SiteFolder) -> tuple[list[str], list[str]]:
    """Compare the roster with this site's key and with the keys that the owner has pinned."""
    faults, questions = [], []
    if folder.node.name not in order.sites:
        faults.append(f"{folder.node.name!r} is not on the roster")
    elif order.keys[folder.node.name] != folder.identity().public.hex():
        faults.append("the roster has another key for this site")
    pins = read_json(folder.pins) if folder.pins.exists() else {}
    for name in order.sites:
        if name == folder.node.name:
            continue
        if name not in pins:
            questions.append(f"site {name!r} is not known here: compare its key, then `polyclinic site pin`")
        elif pins[name] != order.keys[name]:
            faults.append(f"site {name!r} has another key than the one that was compared and pinned")
    return faults, questions


def consent(order: StudyOrder, folder: SiteFolder) -> bool | None:
    """The owner's word about exactly this order, a line of the book; None if there is none. A word about another counts for nothing."""
    tally = ledger_of(folder.node).tally
    return True if order.digest in tally.accepted else False if order.digest in tally.withdrawn else None


def asked(folder: SiteFolder) -> list[StudyOrder]:
    """Every order that reached this site from its coordinator, in the order of their folders."""
    key = bytes.fromhex(folder.read_invite()["coordinator"])
    found = []
    for place in sorted(folder.studies.glob("*/order.json")) if folder.studies.exists() else ():
        try:
            found.append(read_order(read_json(place)["order"], key))
        except PolyclinicError:  # of another coordinator, or of an earlier version: it is shown, never followed
            continue
    return found


def admit(
    order: StudyOrder,
    folder: SiteFolder,
    waiting: Callable[[list[str]], None],
    away: Callable[[], None] = lambda: None,
) -> SiteContext:
    """Check, wait for the owner where only the owner can decide, read the data, agree; or refuse with every reason.

    ``away`` is called when the database of an exact study does not answer. In a formal study nobody hears of that.
    """
    home = private(folder.study(order.digest))
    write_json(home / "order.json", {"order": order.encode()})
    _wait_for_owner(order, folder, waiting)
    agreed = time.monotonic()
    study = order.parsed(private(home / "files"))
    method, gate = _gate(order, folder, study)
    identity = folder.identity()
    ledger_of(folder.node).tie(identity.public, identity.sign)
    privacy: Privacy | None = method.params.privacy

    resumed = (home / "state.ckpt").exists()

    def agree(patients: int) -> None:
        gate.admit(
            study.name,
            method.name,
            privacy,
            order.sites,
            patients,
            aggregation=order.aggregation,
            resume=resumed and gate.run in gate.ledger.tally.releases,
            margin=kind_of(order.aggregation).margin,
        )

    agree(2**31)  # before the data are read: everything but the number of patients
    device.use_device(folder.node.site.device)
    counts = _counts(order, folder)
    if order.formal:
        site = _read_formal(order, folder, study, method)
    else:
        site = _once_there(
            partial(_read_exact, order, folder, study, method, gate), order, folder, order.deadline, away
        )
        agree(site.patients)
        begun = any(c[0] == order.digest for c in gate.ledger.tally.counted)  # perhaps without a site that was away
        if order.secure and not begun:  # before anything leaves; again for each list that comes
            counts(order.sites, False)
    if (
        site.tensor is not None and not order.formal
    ):  # an owner reads it beside exact sums; no record may stop a formal study
        gate.here = rare_here(site.tensor, policy_of(folder.node).min_cell)
    floor = {"least": policy_of(folder.node).min_sites} if order.aggregation == "masked" else {}
    adder = by_name(order.aggregation, identities={identity.name: identity}, **floor)
    return SiteContext(
        method,
        site,
        adder,
        gate,
        _setting(order, method, site),
        policy_of(folder.node).min_sites,
        int(folder.node.keys.get("max_numbers", NUMBERS)),
        folder.node.keys.get("witnesses") == "all",
        counts,
        partial(_left_out, order, folder) if order.formal else None,
        folder.node.source.elsewhere,
        agreed,
    )


def _left_out(order: StudyOrder, folder: SiteFolder, what: str) -> None:
    append_event(folder.events, event="left out", study=order.id, what=what)


def _read_formal(order: StudyOrder, folder: SiteFolder, study: Study, method: Method) -> Site:
    """Read the records of a formal study. No word about them leaves, and no rule counts them.

    ``[policy] min_patients`` does not act either: with "zeros below k patients" one patient would move a sum by k.
    """
    nobody = empty_site(order, folder.node.name, method.needs)
    try:
        home = private(folder.study(order.digest) / "data")
        read = partial(ingest, folder.node, study, home, events=False, skip_faulty=True)
        ingested = _once_there(read, order, folder, order.reading / 2)
        for reason, number in ingested.skipped.items():
            _left_out(order, folder, f"{reason}: {number}")
        site = ingested.site
        if _setting(order, method, site) == _setting(order, method, nobody):
            return site
        _left_out(order, folder, "everybody: the codes or columns here are not those of the study order")
    except Exception as e:  # nobody of the cohort, records that cannot be read, no memory: all the same to others
        _left_out(order, folder, f"everybody: {type(e).__name__}: {e}")
    return nobody


def _once_there(
    read: Callable[[], T],
    order: StudyOrder,
    folder: SiteFolder,
    seconds: float,
    away: Callable[[], None] = lambda: None,
) -> T:
    """Read the records. Try again for so many seconds where the database does not answer."""
    end, noted = time.monotonic() + seconds, False
    while True:
        try:
            return read()
        except DataAway as e:
            if time.monotonic() + AGAIN > end:
                raise
            if not noted:
                append_event(folder.events, event="data away", study=order.id, what=e.what, reasons=list(e.faults))
                away()
            noted = True
            time.sleep(AGAIN)


def _read_exact(order: StudyOrder, folder: SiteFolder, study: Study, method: Method, gate: ReleaseGate) -> Site:
    """Read the records of an exact study, under the owner's rules for exact sums and small numbers."""
    node, home = folder.node, folder.study(order.digest)
    people = study.people  # evaluated by default: an order need not say so
    what = f"site {node.name!r} does not take part in study {order.id!r}: its sums are exact"
    if not node.site.rehearsal:
        if faults := policy_of(node).way_faults(order.aggregation, people):
            raise PolicyRefusal(what, faults=faults, hint="ask the owner, or ask for [privacy]")
        gate.asks_exactly()
    site = ingest(node, study, private(home / "data"), events=False).site
    _check_size(order, folder, home, site)
    _feeding(order, method, policy_of(node).min_feeders)
    site = replace(site, counted=policy_of(node).by_hospital)
    if node.site.rehearsal:
        return site
    least = policy_of(node).min_cell
    if site.labels is not None and study.labels is not None and study.labels.outcome not in OUTCOMES:
        site = replace(site, labels=_common_values(np.asarray(site.labels, np.float64), least))
    return _without_rare_values(site, least, () if people is None else people.age)


def _without_rare_values(site: Site, least: int, cuts: tuple[float, ...] = ()) -> Site:
    """Read values that fewer than ``least`` patients here have as unknown, and ages of bands with fewer.

    Who orders an exact study names the columns and the values whose patients are counted, and could name one patient's own.
    """
    if site.people is None:
        return site
    columns = {n: _common_values(v, least, cuts if n == "age" else ()) for n, v in site.people.columns.items()}
    return replace(site, people=People(columns, site.people.time, site.people.event))


def _common_values(values: NDArray[Any], least: int, cuts: tuple[float, ...] = ()) -> NDArray[Any]:
    unknown = np.isnan(values) if values.dtype.kind == "f" else values == ""
    kinds = values
    if cuts and values.dtype.kind == "f":  # bands; what is outside of them is shown as unknown
        kinds = np.searchsorted(cuts, values, side="right") - 1.0 * (values == cuts[-1])
        unknown = unknown | (kinds == 0) | (kinds == len(cuts))
    _, kind, patients = np.unique(kinds[~unknown], return_inverse=True, return_counts=True)
    rare = patients < least
    for k in np.argsort(patients, kind="stable"):  # the unknown are counted as well: they must not be few by this rule
        if not rare.any() or unknown.sum() + patients[rare].sum() >= least:
            break
        rare[k] = True
    out = values.copy()
    out[np.flatnonzero(~unknown)[rare[kind]]] = np.nan if values.dtype.kind == "f" else ""
    return out


def _wait_for_owner(order: StudyOrder, folder: SiteFolder, waiting: Callable[[list[str]], None]) -> None:
    """Return once nothing stands against the study. Refuse it on a fault, or if the owner does not decide in time."""
    end = time.monotonic() + order.deadline
    before: list[str] = []
    while True:
        faults, questions = doubts(order, folder)
        if faults:
            raise PolicyRefusal(f"site {folder.node.name!r} does not take part in study {order.id!r}", faults=faults)
        if not questions:
            return
        if questions != before:
            before = questions
            append_event(folder.events, event="waiting", study=order.id, reasons=questions)
            waiting(questions)
        if time.monotonic() > end:
            raise PolicyRefusal(f"site {folder.node.name!r}: the owner did not decide in time", faults=questions)
        time.sleep(0.5)


def _check_size(order: StudyOrder, folder: SiteFolder, home: Path, site: Site) -> None:
    """Refuse a study with too few patients for exact sums, or with more files than the owner allows."""
    least = exact_floor(folder.node)
    if site.patients < least:
        raise PolicyRefusal(
            f"site {folder.node.name!r} does not take part in study {order.id!r}: its sums are exact",
            faults=[f"fewer than {least} patients here: who chooses a cohort could choose a patient"],
            hint="[policy] min_patients says how few may be in an exact study",
        )
    limit = folder.node.keys.get("max_disk_mb")
    if limit is not None and (used := sum(f.stat().st_size for f in home.rglob("*") if f.is_file()) / 1e6) > limit:
        drop_data(home)
        raise PolicyRefusal(f"study {order.id!r} takes {used:.1f} MB of disk", faults=[f"this site allows {limit} MB"])


def _feeding(order: StudyOrder, method: Method, least: int) -> None:
    """Codes of this site alone stay out of exact sums where the owner minds; which they are, the support sum tells."""
    if isinstance(method, MinimumPatients):
        method.feeders = least
    elif least > 1 and method.needs == "tensor":
        raise PolicyRefusal(
            f"study {order.id!r} takes exact sums of codes without counting their patients first",
            faults=[f"[policy] min_feeders = {least}: this site could not find the codes that it has alone"],
            hint="[tensor] minimum_patients = 2 or more counts them",
        )


def _counts(order: StudyOrder, folder: SiteFolder) -> Callable[[tuple[str, ...], bool], None]:
    """Return whether these sites may be in an exact secure sum, after those that this site's ledger has."""
    rule = LedgerRule.model_validate(folder.node.ledger)
    payer = BudgetHolder(policy_of(folder.node), ledger_of(folder.node), rule.cohort)
    what = f"site {folder.node.name!r} does not take part in study {order.id!r}: its sums are exact"
    willing = tuple(read_json(folder.willing)) if folder.willing.exists() else ()
    return lambda sites, write: payer.counts(order.digest, sites, willing, what, write=write)


def _gate(order: StudyOrder, folder: SiteFolder, study: Study) -> tuple[Method, ReleaseGate]:
    method: Method = registry.ordered(study)
    limit = int(folder.node.keys.get("max_rounds", ROUNDS))
    if (method.params.rounds or 0) > limit:
        raise PolicyRefusal(
            f"study {order.id!r} asks for {method.params.rounds} rounds", faults=[f"this site allows {limit}"]
        )
    policy = policy_between(folder.node)
    refused({folder.node.name: policy}, acts_of(study))
    rule = LedgerRule.model_validate(folder.node.ledger)
    noise: Noise | None = None
    if noisy(method.params.privacy):
        noise = noise_of(folder.node)
    home = folder.study(order.digest)
    return method, ReleaseGate(
        folder.node.name,
        policy=policy,
        ledger=ledger_of(folder.node),
        noise=noise,
        study=study.name,
        store=home / "releases",
        outbox=outbox_of(folder.node),
        cohort=rule.cohort,
        waits=Waits(order.deadline, seconds(folder.node.site.resume_for)),
        run=order.digest,
    )


def _setting(order: StudyOrder, method: Method, site: Site) -> dict[str, Any]:
    if method.needs == "features":
        # a digest, not the names: the coordinator need only see that all sites speak of the same columns in the same order
        names = None if site.columns is None else Axis("feature", site.columns).digest()
        return {"shape": [int(site.matrix().shape[1])], "axes": [], "digests": [], "alignment": names}
    axes = site.counts().axes[1:]
    data = [a.name for a in axes if a.vocabulary == "data"]
    if data and order.alignment is None:
        raise ProtocolMismatch(
            f"site {site.name!r}: the codes of {', '.join(data)} were chosen from the data, not public"
        )
    if data:  # until the sites have agreed on codes nothing of them leaves, not even how many they are
        return {"shape": [], "axes": [], "digests": [], "alignment": None}
    return setting_tree(site, axes)


def setting_tree(site: Site, axes: Sequence[Axis]) -> dict[str, object]:
    """What is public about a site with a tensor, as it travels: of a public list only that it is one, and its digest.

    Whoever needs labels and names of a public list reads them in the order: what a site says of its codes could tell
    which of them occur there.
    """
    return {
        "shape": [int(n) for n in site.counts().shape[1:]],
        "axes": [(Axis(a.name, vocabulary="public") if a.vocabulary == "public" else a).to_json() for a in axes],
        "digests": [a.digest() for a in axes],
    }
