"""Which class a method's name stands for; open to plug-ins by the entry point group ``polyclinic.methods``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from polyclinic.config import Study
from polyclinic.errors import ConfigError
from polyclinic.plugins import did_you_mean, locate, plugged
from polyclinic.privacy.guarantee import noisy

if TYPE_CHECKING:
    from polyclinic.protocol.estimator import Estimator

BUILT_IN: Final = {
    "trip": "polyclinic.methods.phenotypes:TRIP",
    "dpfact": "polyclinic.methods.phenotypes:DPFact",
    "localtf": "polyclinic.methods.phenotypes:LocalTF",
    "distributedsgd": "polyclinic.methods.phenotypes:DistributedSGD",
    "sumals": "polyclinic.methods.phenotypes:SumALS",
    "topics": "polyclinic.methods.phenotypes:Topics",
    "dpem": "polyclinic.methods.phenotypes:DPEM",
    "cpals": "polyclinic.methods.central.als:CPALS",
    "cpsgd": "polyclinic.methods.central.sgd:CPSGD",
    "localmodel": "polyclinic.methods.phenotypes:LocalModel",
    "gaussianmixture": "polyclinic.methods.mixtures.gaussian_mixture:GaussianMixture",
    "parafac2": "polyclinic.methods.phenotypes:PARAFAC2",
    "latentclass": "polyclinic.methods.latent_classes.latent_class:LatentClass",
    "unpsl": "polyclinic.methods.similarity.unpsl:UnPSL",
}

# Names whose class is an estimator of its own, and the protocol that runs between sites
PROTOCOLS: Final = {"unpsl": "polyclinic.methods.similarity.federated:ConsensusUnPSL"}


def find(name: str) -> type[Any]:
    """The class of a method, built in or plugged in.

    >>> find("trip").__name__
    'TRIP'
    """
    key = _key(name)
    others = plugged("polyclinic.methods")
    same = {n for n in others if _key(n) == key}
    if key in BUILT_IN:
        if same:
            packages = ", ".join(others[n].package for n in sorted(same))
            warnings.warn(f"method {name!r} is polyclinic's own, not the one of {packages}: rename that", stacklevel=2)
        return cast("type[Any]", locate(BUILT_IN[key]))
    if len(same) > 1:
        faults = [f"{n!r} of {others[n].package}" for n in sorted(same)]
        raise ConfigError(f"method {name!r} is plugged in more than once", faults=faults, hint="uninstall all but one")
    for n in same:
        cls = others[n].load()
        if not isinstance(cls, type):
            raise ConfigError(
                f"method {name!r} of {others[n].package} is no class: {others[n].value}",
                hint="docs/tutorials/own-protocol.md",
            )
        return cls
    known = sorted({*BUILT_IN, *others})
    near = did_you_mean(key, known)
    fault = f"method {name!r} is unknown; {near + ' ' if near else ''}known: {', '.join(known)}"
    raise ConfigError(f"unknown method {name!r}", faults=[fault])


def _key(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def read_study(path: str | Path) -> Study:
    """A study file; the faults of its sections and of its method's parameters in one list."""
    try:
        study = Study.read(path)
        if study.method is not None:
            find(study.method.name)
    except ConfigError as e:
        faults = dict.fromkeys([*e.faults, *_faults_of_method(Path(path))])
        raise ConfigError(e.what, faults=faults, hint=e.hint) from None
    return study


def _faults_of_method(path: Path) -> list[str]:
    """What is wrong with [method] alone, of a file whose other sections are wrong; nothing if it cannot be told."""
    import tomllib

    from polyclinic.protocol.params import Parameterized, Params

    try:
        method = dict(tomllib.loads(path.read_text(encoding="utf-8"))["method"])
        name = str(method.pop("name"))
    except (OSError, ValueError, KeyError, TypeError):
        return []
    faults: list[str] = []
    cls: type[object] = Parameterized  # of an unknown method, what every method has is checked
    try:
        try:
            cls = find(name)
        except ConfigError as e:
            faults, method = [*(e.faults or [e.what])], {k: v for k, v in method.items() if k in Params.model_fields}
        _checked(cls, method)
    except ConfigError as e:
        return faults + ([f"method: {f}" for f in e.faults] or [f"method: {e.what}"])
    except Exception:  # a plug-in's own error comes when the rest is right
        return faults
    return faults


def make(study: Study) -> Any:
    """The method that a study names, with its parameters checked."""
    return _made(study, find(study.chosen().name))


def federated(study: Study) -> Any:
    """The protocol between sites behind the method that a study names; one that needs pooled data is refused."""
    return _floored(study, _protocol(study))


def ordered(study: Study) -> Any:
    """The same as ONE run, with several starts inside: what an order runs between hospitals."""
    from polyclinic.protocol.restarts import started

    return _floored(study, started(_protocol(study)))


def _protocol(study: Study) -> Estimator:
    from polyclinic.protocol.interfaces import Method

    name = study.chosen().name
    where = PROTOCOLS.get(name.lower())
    cls = find(name) if where is None else cast("type[Any]", locate(where))
    if not issubclass(cls, Method):
        raise ConfigError(f"method {name!r} needs pooled data; it cannot run between hospitals")
    method: Estimator = _made(study, cls)
    return method


def _floored(study: Study, method: Any) -> object:
    """The method without codes of few patients over all sites (``[tensor] minimum_patients``), where that can be counted.

    Not under [privacy] (the count would have to be paid for), nor where totals are no sums.
    """
    from polyclinic.protocol.aggregators import by_name
    from polyclinic.protocol.minimum_patients import MinimumPatients

    rule = study.tensor
    if rule is None or method.needs != "tensor" or rule.minimum_patients <= 1:
        return method
    if noisy(study.privacy) or not by_name(method.params.aggregation).adds:
        return method
    return MinimumPatients(method, rule.minimum_patients, rule.axes)


def _made(study: Study, cls: type[object]) -> Any:
    chosen = study.chosen()
    values = dict(chosen.parameters)
    if "seed" in values:
        raise ConfigError("method.seed: the seed belongs in [study]", hint="move it there")
    values["seed"] = study.seed
    if noisy(study.privacy):
        from polyclinic.privacy.accounting.budget import Privacy

        values["privacy"] = Privacy(**study.privacy.model_dump(exclude_none=True))
    method = _checked(cls, values)
    from polyclinic.protocol.estimator import Estimator
    from polyclinic.studies.analyses import whole
    from polyclinic.studies.halvings import evaluated, halvings

    follows = evaluated(study) or halvings(study).number > 0
    return whole(study, method) if follows and isinstance(method, Estimator) else method


def _checked(cls: type[object], values: dict[str, object]) -> object:
    """The method; a way to add that does not exist is found here, with the other faults, before any data are read."""
    from polyclinic.protocol.aggregators import facts_of

    method = cls(**values)
    facts_of(str(values.get("aggregation", "plain")))
    return method
