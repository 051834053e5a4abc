"""Pairs of codes that an owner accepted, as a study uses them: its sheets, their digest, and what they add to the coverage."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import numpy as np

from polyclinic.config import Study
from polyclinic.methods.code_table import all_codes
from polyclinic.privacy.guarantee import noisy
from polyclinic.records.events.code_maps import CodePair, accepted, is_sheet
from polyclinic.records.sites.site import Site
from polyclinic.tensors.side_by_side import side_by_side


def sheets(study: Study) -> dict[str, Path]:
    """Mode -> the sheet of pairs that ``[codes.MODE] to`` names."""
    paths = {mode: study.path(rule.to) for mode, rule in study.codes.items()}
    return {mode: path for mode, path in paths.items() if path.is_file() and is_sheet(path)}


def unlisted(study: Study, *, paired: bool = False) -> Study:
    """The same study with all codes, whatever public lists have, and with or without the accepted pairs."""
    codes = {k: r for k, r in study.codes.items() if paired or k not in sheets(study)}
    return study.model_copy(update={"codes": codes, "tensor": study.rule().model_copy(update={"vocabulary": {}})})


def record(study: Study, read: Callable[[Study], Sequence[Site]]) -> dict[str, object]:
    """What ``study.json`` says of accepted pairs: digest, number and, without ``[privacy]``, coverage before and after.

    Parameters
    ----------
    read
        Reads the hospitals of a study.
    """
    pairs = [p for mode, path in sheets(study).items() for p in accepted(path, mode)]
    out: dict[str, object] = {"accepted": len(pairs), "sha256": digest(pairs)} if pairs else {}
    # in a ring codes have places, and no names that can be compared
    if not pairs or study.rule().alignment == "ring" or noisy(study.privacy):
        return out
    bare, paired = read(unlisted(study)), read(unlisted(study, paired=True))
    local = {s.name for s in bare if {(p.mode, p.local) for p in pairs} & set(_listed(s))}
    return out | {"coverage": [known(bare, local), known(paired, local)]}


def digest(pairs: Sequence[CodePair]) -> str:
    """Hash of modes, local codes and common codes, in order of spelling."""
    return hashlib.sha256(repr(sorted((p.mode, p.local, p.code) for p in pairs)).encode()).hexdigest()


def known(sites: Sequence[Site], local: Collection[str]) -> float:
    """Share of the codes in the local hospitals' records that a hospital without local codes has."""
    common = {c for s in sites if s.name not in local for c in _listed(s)}
    counts = [(c, n) for s in sites if s.name in local for c, n in _listed(s).items()]
    return float(sum(n for c, n in counts if c in common) / max(sum(n for _, n in counts), 1))


def _listed(site: Site) -> dict[tuple[str, str], int]:
    """Patients of every code that a hospital has."""
    rows = side_by_side(site.counts(), "presence")
    patients = np.bincount(rows.codes, minlength=rows.size).tolist()
    return {c: n for c, n in zip(all_codes(site.counts().axes[1:]), patients, strict=True) if n}
