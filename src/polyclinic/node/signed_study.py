"""An order: a study as the coordinator signed it, with its roster. It names a method and parameters, never code or a path.

Files travel inside, named by their own SHA-256, and a site opens no others: where a study names a file, an order can name
nothing but one of these. What a sender chose (id, title, names) is never part of a path at a site: the folder of a study is
named by the digest of its order, and so is the owner's consent.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import ValidationError

from polyclinic import __version__
from polyclinic.config import Study, TimeRule
from polyclinic.config.sections import PrivacyAsked, StudyRule
from polyclinic.errors import ConfigError, MessageRefused, PolicyRefusal
from polyclinic.privacy.guarantee import exact, formal, noisy
from polyclinic.protocol.aggregators import facts_of
from polyclinic.protocol.interfaces import COORDINATOR, Roster, Step, least_threshold
from polyclinic.protocol.wire.sealed import Identity, digest
from polyclinic.records.events.codes import KNOWN
from polyclinic.tensors.axis import Axis, public_axis

__all__ = ["COORDINATOR", "StudyOrder", "make_order", "read_order"]

LIMIT: Final = 16 * 2**20  # bytes of an order: vocabularies travel in it
ALIGNMENTS: Final = ("ring", "union")
ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
RELEASE: Final = re.compile(r"r\d{4}-[0-9a-f]{16}")  # an owner decides on studies and on releases by their names
WORDS: Final = 4000  # of a description
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")  # of a site
KEY: Final = re.compile(r"[0-9a-f]{64}")
FILE: Final = re.compile(r"[0-9a-f]{64}\.(csv|json)")  # SHA-256 of the text
FILES, EACH, TEXTS = 32, 8 * 2**20, 16 * 2**20  # files of an order, bytes of one, bytes of all
SITES: Final = 500
LONGEST: Final = 7 * 86_400.0  # seconds that a sum may wait
TYPES: Final[Mapping[str, tuple[type, ...]]] = {  # exactly these: a truth value is no number, and 2.0 is not 2
    "id": (str,),
    "study": (dict,),
    "files": (dict,),
    "keys": (dict,),
    "quorum": (int,),
    "deadline": (int, float),
    "edges": (list,),
    "polyclinic": (str,),
    "signature": (str,),
}
LOCAL: Final = ("site", "sites", "data")  # sections of a simulation; between hosts every site brings its own node


@dataclass(frozen=True)
class StudyOrder:
    """What is asked, of whom, under which rules; everything here is covered by the coordinator's signature."""

    id: str
    study: Mapping[str, Any]
    files: Mapping[
        str, str
    ]  # lists and a cohort that the study names: SHA-256 of the text and ".csv" or ".json" -> text
    keys: Mapping[str, str]  # verification keys of sites and coordinator, hexadecimal
    quorum: int
    deadline: float
    edges: tuple[tuple[str, str], ...] = ()
    polyclinic: str = __version__
    signature: str = field(default="", compare=False)

    @property
    def sites(self) -> tuple[str, ...]:
        """Sites, by name."""
        return tuple(sorted(n for n in self.keys if n != COORDINATOR))

    @property
    def aggregation(self) -> str:
        """How contributions are added."""
        return str(self.study["method"].get("aggregation", "plain"))

    @property
    def peers(self) -> bool:
        """Whether letters go from site to site, and every site adds for itself."""
        return facts_of(self.aggregation).topology == "peers"

    @property
    def unlisted(self) -> tuple[str, ...]:
        """Modes without a public list of codes."""
        rule = self.study.get("tensor") or {}
        return tuple(m for m in rule.get("modes", ()) if m not in rule.get("vocabulary", {}))

    @property
    def listed(self) -> bool:
        """Whether every code or column is on a public list."""
        return not self.unlisted if self.study.get("tensor") is not None else self.columns is not None

    @property
    def formal(self) -> bool:
        """Whether the study claims a patient-level theorem: then its messages do not depend on records."""
        asked = self.study.get("privacy")
        return formal(PrivacyAsked.model_validate(asked) if asked else None, listed=self.listed)

    def hides(self, step: Step) -> bool:
        """Whether the noise of a sum hides a patient. If not, all sums are taken over one list of sites.

        Noise at entry level, or for an epsilon above the largest of a formal study, hides no patient.
        """
        return self.formal and not exact(step)

    def _rule(self) -> StudyRule:
        return StudyRule.model_validate({"name": "any", **self.study["study"]})

    @property
    def pace(self) -> float:
        """Seconds between the times at which a site may answer; 0: at once."""
        return self._rule().pace if self.formal else 0.0

    @property
    def reading(self) -> float:
        """Seconds from an owner's agreement until the site says that it is ready; 0: at once."""
        return self._rule().reading if self.formal else 0.0

    @property
    def alignment(self) -> str | None:
        """How the sites agree on codes before the first sum; None where every mode has a public list."""
        how = (self.study.get("tensor") or {}).get("alignment")
        return str(how) if self.unlisted and how in ALIGNMENTS else None

    def body(self) -> dict[str, Any]:
        """What is signed."""
        return {k: v for k, v in asdict(self).items() if k != "signature"}

    @cached_property
    def digest(self) -> str:
        """The order's own name, hexadecimal: SHA-256 of everything that is signed. Folder, consent and chain go by it."""
        return _digest(self).hex()

    def faults(self) -> list[str]:
        """Return everything that an order may not be, whoever signed it. Checked before anything is written or read."""
        faults = [*self._section_faults(), *self._party_faults(), *self._file_faults()]
        if any(end not in self.sites for edge in self.edges for end in edge):
            faults.append("an edge names a site that is not there")
        return faults

    def _section_faults(self) -> list[str]:
        checks = {
            "its id is not of small letters, digits and hyphens": ID.fullmatch(self.id),
            "its id is that of a release": not RELEASE.match(self.id),
            f"its description is longer than {WORDS:,} characters": len(str(self.study["study"].get("description", "")))
            <= WORDS,
            f"it names sections of a simulation ({', '.join(LOCAL)})": not any(self.study.get(k) for k in LOCAL),
        }
        try:
            self._rule()
        except ValidationError as e:
            checks |= {f"[study] {'.'.join(map(str, f['loc']))}: {f['msg']}": False for f in e.errors()}
        return [fault for fault, good in checks.items() if not good]

    def _party_faults(self) -> list[str]:
        n = len(self.sites)
        checks = {
            f"it has {n} sites; 1 to {SITES} are allowed": 1 <= n <= SITES,
            "a site's name is not of letters, digits and hyphens": all(NAME.fullmatch(s) for s in self.sites),
            "a key is not 64 hexadecimal digits": all(KEY.fullmatch(k) for k in self.keys.values()),
            "two parties have the same key": len(set(self.keys.values())) == len(self.keys),
            "there is no key of the coordinator": COORDINATOR in self.keys,
            f"quorum {self.quorum!r} of {n} sites": 1 <= self.quorum <= n,
            f"deadline {self.deadline!r}": math.isfinite(self.deadline) and 0 < self.deadline <= LONGEST,
        }
        return [fault for fault, good in checks.items() if not good]

    def _file_faults(self) -> list[str]:
        """Return faults of the files: too many, too long, not named by their text, or named and not carried."""
        faults = []
        if len(self.files) > FILES or sum(len(t) for t in self.files.values()) > TEXTS:
            faults.append(f"it carries more than {FILES} files, or more than {TEXTS:,} bytes of them")
        faults += [
            f"{place} names {file!r}, which the order does not carry"
            for place, file in self._named_files().items()
            if file not in self.files
        ]
        return faults + [
            f"file {name[:80]!r} is not named by the SHA-256 of its text, or is too long"
            for name, text in self.files.items()
            if not FILE.fullmatch(name) or len(text) > EACH or _file_name(text, Path(name).suffix) != name
        ]

    def _named_files(self) -> dict[str, Any]:
        """Return the files that the study names, by the place that names them."""
        tensor = dict(self.study.get("tensor") or {})
        named = {f"tensor.vocabulary.{k}": v for k, v in dict(tensor.get("vocabulary") or {}).items()}
        if tensor.get("ranges") is not None:
            named["tensor.ranges"] = tensor["ranges"]
        if (self.study.get("cohort") or {}).get("atlas") is not None:
            named["cohort.atlas"] = self.study["cohort"]["atlas"]
        codes = dict(self.study.get("codes") or {})
        return named | {f"codes.{k}.to": v["to"] for k, v in codes.items() if v.get("to", "normal") not in KNOWN}

    def roster(self, sites: Iterable[str], attempt: int, *, paid: bool = True) -> Roster:
        """Return the pinned roster of one attempt. ``sites`` may leave out sites that refused.

        A secure sum without noise (``paid`` false) needs every site of the attempt.
        """
        star, everyone = not self.peers, self.secure and not paid
        names = tuple(sorted(set(sites)))
        parties = (*names, *((COORDINATOR,) if star else ()))
        return Roster(
            names,
            COORDINATOR if star else None,
            frozenset((a, b) for a, b in self.edges if a in names and b in names),
            threshold=self.least if star and not everyone else len(names),
            attempt=attempt,
            keys={n: bytes.fromhex(self.keys[n]) for n in parties},
        )

    @property
    def secure(self) -> bool:
        """Whether the way to add shows the total only."""
        return facts_of(self.aggregation).reveals == "total"

    @property
    def least(self) -> int:
        """Sites that every sum needs, and every certificate: the quorum, whatever was ordered never below :func:`_floor`."""
        return max(self.quorum, _floor(self.aggregation, len(self.sites)))

    def parsed(self, folder: Path) -> Study:
        """The study, with its files laid out in ``folder`` under their digests; there is no other file that it could name."""
        if faults := self.faults():
            raise MessageRefused(f"study {self.id[:64]!r} is not an order that may be followed", faults=faults)
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8", newline="")
        return Study.parse(self.study, where=f"study {self.id}", folder=folder)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the features, where the study lists them: a method may speak of them (kinds of columns)."""
        return tuple((self.study.get("features") or {}).get("columns") or ()) or None

    def axis(self, mode: str) -> Axis:
        """The axis of a mode with a public list, as the order carries it: labels and names of no hospital."""
        if mode == "time":
            return Axis(mode, TimeRule.model_validate(self.study["time"]).labels, vocabulary="public")
        name = str(self.study["tensor"]["vocabulary"][mode])
        return public_axis(mode, self.files[name], name)

    def encode(self) -> str:
        """One line of text."""
        return base64.b64encode(json.dumps({**self.body(), "signature": self.signature}).encode()).decode()


def _carried(study: Study) -> tuple[dict[str, object], dict[str, str]]:
    """The study as it travels, and the files that it names, by the SHA-256 of their text."""
    values = {k: v for k, v in study.to_json().items() if k not in LOCAL}
    files: dict[str, str] = {}

    def carry(place: dict[str, Any], key: str, suffix: str = ".csv") -> None:
        path = study.path(place[key])
        if not path.is_file():
            raise ConfigError(f"study {study.name!r}: {path} is not there", hint="a study carries the files it names")
        text = path.read_bytes().decode("utf-8")
        place[key] = _file_name(text, suffix)
        files[place[key]] = text

    if study.cohort is not None and study.cohort.atlas is not None:
        carry(values["cohort"], "atlas", ".json")
    rule = values.get("tensor")
    if rule is not None:
        for kind in dict(rule.get("vocabulary", {})):
            carry(rule["vocabulary"], kind)
        if rule.get("ranges"):
            carry(rule, "ranges")
        for how in values.get("codes", {}).values():
            if how.get("to", "normal") not in KNOWN:
                carry(how, "to")
        known = {*rule.get("vocabulary", {}), *(("time",) if study.time is not None and study.time.bins else ())}
        missing = [m for m in rule["modes"] if m not in known]  # bins of time are public: the study names them
        how = rule.get("alignment")
        if missing and how not in ALIGNMENTS:
            raise ConfigError(
                f"study {study.name!r}: no public vocabulary of {', '.join(missing)}",
                hint="[tensor] vocabulary = {mode = 'codes.csv'}; or alignment = 'ring': the sites agree on codes in secret",
            )
        if missing and noisy(study.privacy):
            raise ConfigError(
                f"study {study.name!r}: alignment = {how!r} with [privacy]",
                hint="which codes occur at a site is data, too, and no bound covers it: give public lists",
            )
    return values, files


def make_order(study: Study, id: str, keys: Mapping[str, str], identity: Identity) -> StudyOrder:
    """Sign a study for a roster.

    Parameters
    ----------
    keys
        Verification keys of the sites that are asked, hexadecimal.
    """
    values, files = _carried(study)
    names = tuple(sorted(keys))
    adder = str(study.chosen().parameters.get("aggregation", "plain"))
    edges: tuple[tuple[str, str], ...] = ()
    if facts_of(adder).topology == "peers":
        from polyclinic.protocol.aggregators import by_name
        from polyclinic.protocol.loop import roster_for

        edges = tuple(sorted(roster_for(by_name(adder), names).edges))
    quorum = max(study.study.quorum or len(names), _floor(adder, len(names)))
    if quorum > len(names):
        raise ConfigError(
            f"every sum needs {quorum} sites, and the roster has {len(names)}",
            hint="lower [study] quorum, or approve more sites; secure sums need at least 3",
        )
    order = StudyOrder(
        id,
        values,
        files,
        {**keys, COORDINATOR: identity.public.hex()},
        quorum,
        study.study.deadline,
        edges,
    )
    if faults := order.faults():
        raise ConfigError(f"study {study.name!r} cannot be ordered", faults=faults)
    return StudyOrder(**{**order.body(), "edges": edges, "signature": identity.sign(_digest(order)).hex()})


def _floor(adder: str, sites: int) -> int:
    """A secure sum needs what hides a site; every other one n // 2 + 1, so that no two models are certified.

    Two certificates of v votes each need 2 v voters, n are there, and nobody votes twice: 2 v > n excludes it.
    """
    return least_threshold(sites) if facts_of(adder).reveals == "total" else sites // 2 + 1


def _file_name(text: str, suffix: str) -> str:
    return f"{hashlib.sha256(text.encode()).hexdigest()}{suffix}"


def _digest(order: StudyOrder) -> bytes:
    return digest(["polyclinic order 1", json.dumps(order.body(), sort_keys=True)])


def read_order(text: str, coordinator: bytes) -> StudyOrder:
    """The order, if the pinned coordinator signed exactly this; refused otherwise."""
    if len(text) > LIMIT:
        raise MessageRefused(f"an order of {len(text):,} characters exceeds the limit of {LIMIT:,}")
    try:
        value = json.loads(base64.b64decode(text, validate=True))
        wrong = {k for k in {*TYPES, *value} if k not in TYPES or type(value.get(k, ...)) not in TYPES[k]}
        if wrong or any(not isinstance(value["study"].get(k), dict) for k in ("study", "method")):
            raise ValueError(f"missing, unknown or of another type: {sorted(wrong) or 'study.study, study.method'}")
        if any(type(x) is not str for pair in (*value["files"].items(), *value["keys"].items()) for x in pair):
            raise ValueError("files and keys are texts")
        if any(type(e) is not list or [type(x) for x in e] != [str, str] for e in value["edges"]):
            raise ValueError("an edge is a pair of names")
        order = StudyOrder(**{**value, "edges": tuple((a, b) for a, b in value["edges"])})
        Ed25519PublicKey.from_public_bytes(coordinator).verify(bytes.fromhex(order.signature), _digest(order))
        faults = order.faults()
    except InvalidSignature:
        raise PolicyRefusal(
            "the study was not signed by the coordinator that this site joined",
            hint="it was forged, or the coordinator has a new key: compare fingerprints and join again",
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise MessageRefused(f"not an order ({type(e).__name__})") from None
    if faults:
        raise MessageRefused("an order that may not be followed, although the coordinator signed it", faults=faults)
    return order
