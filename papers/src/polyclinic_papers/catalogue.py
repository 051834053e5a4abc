"""All experiments, by name."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Final

from polyclinic.errors import ConfigError
from polyclinic_papers.experiment import Experiment, Lab, Result

__all__ = ["CATALOGUE", "find"]

_TABLE: Final = {  # name: (paper, title, module, function, data)
    "dpfact-rmse": ("DPFact", "Figure 2 (a): RMSE over epochs, icu_network", "dpfact", "rmse", "generated"),
    "dpfact-rmse-synthetic": ("DPFact", "Figure 2 (c): RMSE over epochs, synthetic", "dpfact", "rmse", "generated"),
    "dpfact-rmse-mimic": ("DPFact", "Figure 2 (a): RMSE over epochs, MIMIC-III demo", "dpfact", "rmse", "mimic3_demo"),
    "dpfact-rmse-cms": ("DPFact", "Figure 2 (b): RMSE over epochs, DE-SynPUF", "dpfact", "rmse", "cms_desynpuf"),
    "dpfact-cost": ("DPFact", "Table 3: communication cost", "dpfact", "cost", "generated"),
    "dpfact-cost-real": ("DPFact", "Table 3: communication cost, open data", "dpfact", "cost", "cms_desynpuf"),
    "dpfact-sites": ("DPFact", "Tables 2, 8: cost by number of sites", "dpfact", "sites", "generated"),
    "dpfact-sites-real": ("DPFact", "Tables 2, 8: the same, open data", "dpfact", "sites", "cms_desynpuf"),
    "dpfact-auc": ("DPFact", "Table 4: mortality AUC by rank", "dpfact_utility", "auc", "generated"),
    "dpfact-auc-real": ("DPFact", "Table 4: the same, open data", "dpfact_utility", "auc", "cms_desynpuf"),
    "dpfact-nicu": ("DPFact", "Figure 3 (a): AUC of NICU patients", "dpfact_utility", "nicu", "generated"),
    "dpfact-fms": ("DPFact", "Figure 3 (b): FMS against the budget", "dpfact_settings", "fms", "generated"),
    "dpfact-phenotypes": (
        "DPFact",
        "Tables 5-7: representative phenotypes",
        "dpfact_phenotypes",
        "phenotypes",
        "generated",
    ),
    "dpfact-mu": ("DPFact", "Figure 4: mu against column norms", "dpfact_settings", "mu", "generated"),
    "dpfact-grid": ("DPFact", "Section 5.4: grids over gamma, mu, eta", "dpfact_settings", "grid", "generated"),
    "localtf-rmse": ("LocalTF", "Sections 4.5.1, 4.5.3: RMSE and AUC", "localtf", "rmse", "generated"),
    "localtf-cost": ("LocalTF", "Section 4.5.2: communication", "localtf_cost", "cost", "generated"),
    "localtf-convergence": ("LocalTF", "Figure 4.1: convergence", "localtf", "convergence", "generated"),
    "localtf-passes": ("LocalTF", "Section 4.4.4: grid over b", "localtf_cost", "passes", "generated"),
    "trip-size": ("TRIP", "Figure 4: RMSE, time and convergence against nonzeros", "trip", "size", "generated"),
    "trip-hospitals": ("TRIP", "Figures 5 (a), (c): number of hospitals", "trip", "hospitals", "generated"),
    "trip-skew": ("TRIP", "Figures 5 (b), (d): skewness", "trip", "skew", "generated"),
    "trip-iterations": (
        "TRIP",
        "Figures 4 (c), (d): RMSE over iterations, corrected and literal",
        "trip_settings",
        "iterations",
        "generated",
    ),
    "trip-distinct": ("TRIP", "grid over lambda", "trip_settings", "distinct", "generated"),
    "trip-discovery": ("TRIP", "Section 5.2: phenotype discovery", "trip_settings", "discovery", "generated"),
    "trip-alignment": ("TRIP", "alignment time", "trip_settings", "alignment", "generated"),
    "unpsl-table1": ("UnPSL", "Table 1: real data", "similarity", "table1", "parkinsons"),
    "unpsl-table2": ("UnPSL", "Table 2: synthetic data", "similarity", "table2", "generated"),
    "unpsl-few": ("UnPSL", "what few features cost", "similarity", "few", "parkinsons"),
    "unpsl-figure1": ("UnPSL", "Figure 1: correlated features", "similarity", "figure1", "parkinsons"),
    "unpsl-figures": ("UnPSL", "Figures 2 and 3: convergence", "similarity", "figures", "parkinsons"),
    "em-figure2": ("private EM", "Figure 2: log-likelihood", "em", "figure2", "parkinsons"),
    "em-figure3": ("private EM", "Figure 3: leaked information", "em", "figure3", "generated"),
    "em-inversion": ("private EM", "what exact sums give away", "em", "inversion", "generated"),
}


def _lazy(module: str, function: str) -> object:
    def run(lab: Lab) -> Result:
        return getattr(import_module(f"polyclinic_papers.{module}"), function)(lab)  # type: ignore[no-any-return]

    return run


CATALOGUE: Final = {
    name: Experiment(name, paper, title, _lazy(module, function), data)  # type: ignore[arg-type]
    for name, (paper, title, module, function, data) in _TABLE.items()
}


def find(name: str) -> list[Experiment]:
    """One experiment, all of a paper (``dpfact``), or ``all``.

    >>> [e.name for e in find("em")]
    ['em-figure2', 'em-figure3', 'em-inversion']
    """
    if name == "all":
        return list(CATALOGUE.values())
    found = [e for n, e in CATALOGUE.items() if n == name or n.split("-")[0] == name]
    if not found:
        known = [*CATALOGUE, *dict.fromkeys(n.split("-")[0] for n in CATALOGUE), "all"]
        near = [name.lower()] if name.lower() in known else get_close_matches(name.lower(), known)
        raise ConfigError(
            f"no experiment {name!r}" + (f": did you mean {' or '.join(near)}?" if near else ""),
            faults=[f"known: {', '.join(CATALOGUE)}"],
            hint="polyclinic papers list",
        )
    return found
