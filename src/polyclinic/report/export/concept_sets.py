"""Concept sets of a run's phenotypes, as ATLAS and CIRCE read them: the shown codes, one set a phenotype and mode."""

from __future__ import annotations

import json
from pathlib import Path

from polyclinic.errors import ConfigError
from polyclinic.report.cards import PhenotypeCard, cards
from polyclinic.report.contents import RunContents
from polyclinic.studies.run_folder import RunFolder
from polyclinic.util.atomic_files import atomic


def concept_sets(found: tuple[PhenotypeCard, ...]) -> list[dict[str, object]]:
    """One set for each phenotype and mode with shown codes; a code is an OMOP ``concept_id``, and its descendants count.

    Raises
    ------
    ConfigError
        A shown code is no concept_id: the records were not read by OMOP's standard concepts, or codes were grouped.
    """
    faults = []
    for mode in dict.fromkeys(m for c in found for m, _ in c.codes):
        labels = {x.label for c in found for m, codes in c.codes if m == mode for x in codes}
        not_concepts = sorted(x for x in labels if not x.isdecimal() or x.startswith("0"))
        if not_concepts:
            faults.append(
                f"mode {mode}: {len(not_concepts)} of {len(labels)} codes are no concept_id, e.g. {not_concepts[0]!r}"
            )
    if faults:
        raise ConfigError(
            "no concept sets can be made of this run's codes",
            faults=faults,
            hint="they are concept_ids where a source of kind 'omop' has codes = 'standard' and [codes] to = 'normal'",
        )
    return [
        {
            "name": f"phenotype {card.number}: {card.name} ({mode})",
            "expression": {
                "items": [
                    {
                        "concept": {"CONCEPT_ID": int(x.label), "CONCEPT_NAME": x.name or x.label},
                        "isExcluded": False,
                        "includeDescendants": True,
                        "includeMapped": False,
                    }
                    for x in codes
                ]
            },
        }
        for card in found
        for mode, codes in card.codes
        if codes
    ]


def write_concept_sets(folder: RunFolder, out: Path | None = None) -> list[Path]:
    """Write ``concept_sets/NUMBER-MODE.json`` of a finished run: the expression alone, as ATLAS imports it; and all of them,
    with their names, as ``all.json``. Codes that may not be shown are in none."""
    run = RunContents.read(folder)
    if run.kind != "phenotypes":
        raise ConfigError(f"the run learned {run.kind}, not phenotypes: there are no concept sets")
    phenotypes = tuple(cards(run))
    sets = concept_sets(phenotypes)
    place = folder.path / "concept_sets" if out is None else out
    place.mkdir(parents=True, exist_ok=True)
    names = [f"{card.number:02d}-{mode}" for card in phenotypes for mode, codes in card.codes if codes]
    written = []
    for name, value in [*((f"{n}.json", s["expression"]) for n, s in zip(names, sets)), ("all.json", sets)]:
        with atomic(place / name) as temporary:
            temporary.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")
        written.append(place / name)
    return written
