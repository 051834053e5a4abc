"""The demo on a hospital's own export: MIMIC-III tables, one site an intensive care unit."""

from __future__ import annotations

from pathlib import Path

from polyclinic.config import Study

__all__ = ["study_of"]


def study_of(data: Path, seed: int) -> Study:
    """Drugs and abnormal laboratory results of the same day (TRIP's data), outcome death in hospital.

    Parameters
    ----------
    data
        Folder of MIMIC-III tables, such as the open demo of 100 patients.
    """
    return Study.parse(
        {
            "study": {"name": "mimic3", "seed": seed, "description": "Phenotypes of intensive care units."},
            "tensor": {
                "modes": ["drug", "abnormal_lab"],
                "window": "day",
                "cap": 3,  # TRIP truncates counts at three
                "top": {"drug": 200, "abnormal_lab": 100},
            },
            "labels": {"outcome": "mortality"},
            "sites": {"source": {"kind": "mimic3", "folder": str(data.resolve())}, "split": True},
            "method": {"name": "trip", "rank": 8, "aggregation": "masked"},
        }
    )
