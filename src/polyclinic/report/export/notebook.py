"""A report from a notebook: the file that a run folder gives, of a fitted model and its hospitals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from polyclinic.analysis.pipelines.evaluate import evaluate
from polyclinic.config import Study
from polyclinic.errors import ConfigError
from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.protocol.estimator import Estimator
from polyclinic.records.sites.site import Site
from polyclinic.report import html
from polyclinic.studies.publish import publish
from polyclinic.studies.run_folder import RunFolder


def write_report(
    model: Any, sites: Sequence[Site], out: str | Path = "report.html", *, name: str = "notebook", findings: Any = None
) -> Path:
    """Write the report of a fitted model as one HTML file, as a run folder would give it.

    Parameters
    ----------
    model
        A fitted estimator.
    sites
        The hospitals that it was fitted on.
    out
        The file.
    name
        Title of the report.
    findings
        What :func:`polyclinic.evaluate` returned. None: phenotypes without a privacy budget are evaluated here.

    Returns
    -------
    Path
        The file.

    Examples
    --------
    >>> import tempfile, polyclinic as pc
    >>> sites = pc.datasets.icu_network(patients=300, seed=0)
    >>> model = pc.SumALS(rank=3, rounds=3, seed=0).fit(sites)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pc.write_report(model, sites, f"{folder}/report.html").name
    'report.html'
    """
    fitted_on = model.happened_.sites if isinstance(model, Estimator) else ()
    given = sorted(s.name for s in sites)
    if fitted_on and given != sorted(fitted_on):
        what = f"the model was fitted on {', '.join(fitted_on)}, the sites given are {', '.join(given)}"
        raise ConfigError(f"write_report: {what}", hint="give all hospitals of the fit: pc.write_report(model, sites)")
    sums = {k: v for k, v in dict(model.params).items() if k == "aggregation"}  # a central method has none
    study = Study.parse({"study": {"name": name}, "method": {"name": model.name, **sums}})
    exact = model.privacy_.guarantee == "none"
    if findings is None and exact and isinstance(model.result_, Phenotypes):
        findings = evaluate(model, sites)
    if findings is not None:
        model.findings_ = findings
    head = {"study": study.to_json(), "sites": given, "versions": RunFolder.manifest()}
    with TemporaryDirectory() as place:
        folder = RunFolder.create(Path(place) / "run")
        publish(folder, model, head, local=sites)
        return html.write_report(folder, out=Path(out))
