"""The contract battery with the report: whatever a method learned, its run folder is written, read and shown."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from polyclinic.auditing.contracts import method_checks as battery
from polyclinic.auditing.contracts.method_checks import BatteryCheck, Checks
from polyclinic.auditing.contracts.result import Battery, Skip
from polyclinic.protocol.estimator import Estimator
from polyclinic.protocol.interfaces import Method
from polyclinic.records.sites.site import Site
from polyclinic.report.contents import RunContents
from polyclinic.report.export.tables import export
from polyclinic.report.html import render
from polyclinic.studies.run_folder import Run, RunFolder


def _reported(checks: Checks) -> None:
    """the run folder and the report show the model and its guarantee, and name no patient"""
    if not isinstance(checks.method, Estimator):
        raise Skip("the method is not an estimator")
    model = copy.copy(checks.method)
    model.publish(checks.run(method=model))
    names = sorted(s.name for s in checks.sites)
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run")
        asked = {"study": {"name": "battery", "seed": 0}, "method": {"name": model.name}}
        folder.write_json(folder.study, {"study": asked, "sites": names})
        Run.write(folder, model, metrics={"rounds": model.traffic_.rounds})
        contents = RunContents.read(folder)
        page = render(contents)
        export(folder)
        left = [p for p in folder.path.rglob("*") if p.is_file()]
        words = [page.encode(), *(p.read_bytes() for p in left)]
    assert escape(contents.card.headline, quote=False) in page or contents.card.headline in page, (
        "the report does not say what is guaranteed"
    )
    assert contents.card.guarantee == model.privacy_.guarantee, "the report has another card than the model"
    value = vars(model).get("result_")
    assert (value is None) == (contents.model is None), "what was learned is not in the folder"
    if value is not None and contents.model is not None:
        assert contents.model.arrays().keys() == value.arrays().keys(), "the folder holds another model"
    patients = [x for s in checks.sites if s.tensor is not None for x in s.tensor.axes[0].labels or ()]
    named = sorted({x for x in patients if len(x) > 6 and any(x.encode() in w for w in words)})
    assert not named, f"patients are named in the run folder: {', '.join(named[:5])}"


REPORT: Final = BatteryCheck("report", str(_reported.__doc__), _reported)


def check_protocol(
    method: Method, sites: Sequence[Site] | None = None, *, parts: Sequence[int | str] | None = None
) -> Battery:
    """Run the contract checks on a method. Raises AssertionError with all results if a check fails.

    Parameters
    ----------
    method
        An instance of a :class:`~polyclinic.protocol.interfaces.Method`, with few rounds.
    sites
        At least three sites; small generated ones by default.
    parts
        Which parts to run, by name (``"order"``, ``"resume"``, ``"save"``, ``"report"`` ...) or number; all by default.

    Examples
    --------
    >>> from polyclinic import TRIP
    >>> print(check_protocol(TRIP(rank=2, rounds=3), parts=["seed", "report"]))
    contract checks of trip
     3 seed       passed  the same seed gives the same model
    21 report     passed  the run folder and the report show the model and its guarantee, and name no patient
    """
    return battery.check_protocol(method, sites, parts=parts, further=(REPORT,))
