"""The run folder: one file per box of the data's way, so that any stage can be inspected or rerun alone."""

from __future__ import annotations

import json
import os
import platform
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyclinic.analysis.simulated.presence import memberships_of
from polyclinic.errors import ConfigError
from polyclinic.models.base import Value
from polyclinic.models.file import kinds
from polyclinic.models.file import load as read_model
from polyclinic.models.phenotypes.compare import Difference
from polyclinic.models.phenotypes.compare import compare as differ
from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.privacy.ledger.ledger import Ledger
from polyclinic.protocol.estimator import Configured
from polyclinic.records.sites.site import Site, Sites
from polyclinic.util.atomic_files import atomic
from polyclinic.util.file_format import FORMAT, check_format

if TYPE_CHECKING:
    from polyclinic.models.file import Learned

_version = cache(version)  # reads a file of metadata each time
Model: TypeAlias = "Configured | Learned | str | Path"


RULES: Final = (
    "tensor",
    "features",
    "codes",
    "labels",
    "people",
    "cohort",
    "time",
    "visits",
)  # what makes data of records


@dataclass(frozen=True)
class RunFolder:
    """Names of every artifact of a run. Made readable by its owner only: checkpoints hold patients' loadings."""

    path: Path

    def __init__(self, path: str | Path) -> None:
        object.__setattr__(self, "path", Path(path))

    @classmethod
    def create(cls, path: str | Path, *, resume: bool = False) -> RunFolder:
        """A new folder, or the same one again with ``resume``."""
        p = Path(path)
        begun = p.is_dir() and any(x.name != "study.json" for x in p.iterdir())  # a refused study leaves nothing else
        if (p.exists() and not p.is_dir()) or (begun and not resume):
            raise ConfigError(f"{p}: the folder is not empty", hint="choose another --out, or --resume the run in it")
        p.mkdir(parents=True, exist_ok=True)
        os.chmod(p, 0o700)
        return cls(p)

    @property
    def study(self) -> Path:
        """The study as it ran."""
        return self.path / "study.json"

    @property
    def metrics(self) -> Path:
        """Figures of merit."""
        return self.path / "metrics.json"

    @property
    def outcome(self) -> Path:
        """The model."""
        return self.path / "outcome.npz"

    def model(self) -> Path:
        """The model as one file (``model.phenotypes`` ...), which ``pc.load`` reads."""
        found = sorted(p for p in self.path.glob("model.*") if p.suffix.lstrip(".") in kinds())
        if len(found) != 1:
            hint = "is this a run folder, did the run finish, and with a release that writes models?"
            raise ConfigError(f"{self.path}: {len(found)} model files, expected one", hint=hint)
        return found[0]

    def read_model(self) -> Learned | None:
        """Read the model from its file. None if the run learned nothing that is a model."""
        self.check_format()
        if any(p.suffix.lstrip(".") in kinds() for p in self.path.glob("model.*")) or not self.outcome.is_file():
            return read_model(self.model())
        return None

    @property
    def progress(self) -> Path:
        """Progress events, one JSON a line; the live page follows it."""
        return self.path / "progress.jsonl"

    @property
    def report(self) -> Path:
        """The report for people."""
        return self.path / "report.html"

    @property
    def ledgers(self) -> Path:
        """Each simulated site's privacy ledger."""
        return self.path / "ledgers"

    def checkpoints(self) -> list[Path]:
        """Checkpoints, oldest first."""
        return sorted(self.path.glob("round-*.ckpt"))

    def abandon(self) -> bool:
        """Remove a folder in which nothing was learned yet; one that could be resumed, or from which was released, stays."""
        import shutil

        if any(self.path.rglob("round-*.ckpt")) or any(p.is_file() for p in self.path.glob("sites/*/releases/*/*")):
            return False
        shutil.rmtree(self.path)
        return True

    def write_checkpoint(self, number: int, data: bytes, *, keep: int = 2) -> Path:
        """Write one round's checkpoint atomically and prune older ones."""
        path = self.path / f"round-{number:04d}.ckpt"
        with atomic(path) as temporary:
            temporary.write_bytes(data)
        for old in self.checkpoints()[:-keep]:
            old.unlink()
        return path

    def write_json(self, path: Path, value: Mapping[str, object]) -> None:
        """Write JSON atomically. NaN is refused, numpy numbers are plain, ``study.json`` gets the format of the folder."""
        if path == self.study:
            value = {**value, "format": FORMAT}
        with atomic(path) as temporary:
            temporary.write_text(json.dumps(value, indent=1, default=_plain, allow_nan=False) + "\n", encoding="utf-8")

    def read_json(self, path: Path) -> Any:
        """Read JSON, or say that the run did not get that far."""
        if not path.is_file():
            raise ConfigError(f"{path}: not there", hint="is this a run folder, and did the run finish?")
        self.check_format()
        return json.loads(path.read_text(encoding="utf-8"))

    def check_format(self) -> None:
        """Refuse a folder of another format. A folder without ``study.json`` holds a model file, which has its own."""
        if self.study.is_file():
            models = [p for p in sorted(self.path.glob("model.*")) if p.suffix.lstrip(".") in kinds()]
            todo = "run the study again" + (f" (its model can still be read: {models[0]})" if models else "")
            check_format(json.loads(self.study.read_text(encoding="utf-8")), f"run folder {self.path}", todo)

    def append_progress(self, event: Mapping[str, object]) -> None:
        """Add one progress event."""
        with open(self.progress, "a", encoding="utf-8") as f:
            f.write(json.dumps(event, default=_plain) + "\n")

    def write_arrays(self, path: Path, arrays: Mapping[str, Any]) -> None:
        """Write arrays atomically."""
        with atomic(path) as temporary, open(temporary, "wb") as f:
            np.savez_compressed(f, **dict(arrays))

    def write_value(self, value: Learned) -> Path:
        """The model as one file, with the rules of the study and the heads of the ledgers that paid."""
        told = self.read_json(self.study)["study"] if self.study.is_file() else {}
        rule = {k: told[k] for k in RULES if told.get(k)}
        heads = {p.stem: asdict(Ledger(p, site=p.stem).head) for p in sorted(self.ledgers.glob("*.jsonl"))}
        whole = value.with_origin(rule=rule or value.origin.rule, receipts={**value.origin.receipts, **heads})
        return whole.save(self.path / f"model.{value.kind}")

    @staticmethod
    def manifest() -> dict[str, str]:
        """Versions that a result depends on."""
        names = ["polyclinic", "numpy", "scipy", "numba", "scikit-learn", "duckdb", "cryptography", "dp-accounting"]
        return {"python": platform.python_version(), "platform": sys.platform, **{n: _version(n) for n in names}}


def _described_start(model: Configured) -> dict[str, object]:
    """Return the guides' columns, and the model that the fit started from with every phenotype's distance to it."""
    changed = vars(model).get("changed_")
    digest = None if changed is None else dict(model.params)["start"].model.digest()
    begun = None if changed is None else {"sha256": digest, "distances": list(changed.pairs)}
    return {"guided": vars(model).get("guided_"), "start": begun}


@dataclass(frozen=True, eq=False)
class Run:
    """Keep a finished run: its folder, study, figures and model. It contains no patient.

    Parameters
    ----------
    path
        The run folder.
    study
        The study as it was run.
    metrics
        Figures of the run, for example ``metrics["fit"]``.
    model
        The model, as :func:`polyclinic.load` gives it.

    See Also
    --------
    run_study : runs a study and returns this value.

    Examples
    --------
    >>> import tempfile, polyclinic as pc
    >>> study = pc.Study.parse({"study": {"name": "icu"}, "data": {"dataset": "icu_network", "patients": 300},
    ...                         "method": {"name": "sumals", "rank": 3, "rounds": 3, "aggregation": "plain"}})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = pc.run_study(study, f"{folder}/run")
    >>> run.path.name, run.model.rank
    ('run', 3)
    """

    path: Path
    study: Mapping[str, Any]
    metrics: Mapping[str, Any]
    model: Learned

    @classmethod
    def read(cls, path: str | Path) -> Run:
        """Read a run folder."""
        folder = RunFolder(path)
        study = folder.read_json(folder.study)
        return cls(folder.path, study, folder.read_json(folder.metrics), _of(folder))

    @staticmethod
    def write(
        place: RunFolder | str | Path,
        model: Configured,
        sites: Sequence[Site] = (),
        *,
        metrics: Mapping[str, object] | None = None,
    ) -> RunFolder:
        """Write a fitted model into a run folder, whichever engine fitted it.

        ``outcome.npz`` and ``outcome.json`` hold the released arrays for the report, ``model.KIND`` the model as one file,
        with the study's rules and the heads of the ledgers in the folder; ``sites`` writes each site's memberships, apart
        and for its owner only.

        Parameters
        ----------
        place
            The folder, new or begun.
        model
            A fitted estimator.
        sites
            Those whose memberships are known here: all in a simulation, none at a coordinator.
        metrics
            Written as ``metrics.json`` where given.
        """
        folder = place if isinstance(place, RunFolder) else RunFolder.create(place, resume=True)
        arrays: dict[str, NDArray[np.generic]] = {}
        described: dict[str, object] = {
            "method": model.name,
            "class": type(model).__name__,
            "parameters": {k: v for k, v in model.params.model_dump(mode="json").items() if v is not None},
            "history": model.history_,
            "privacy": model.privacy_.to_dict(),
            "traffic": {"by_site": model.traffic_.by_site},
        }
        value: Learned | None = vars(model).get("result_")
        match value:
            case Phenotypes():
                stability = vars(model).get("stability_")
                value = replace(value, stability=stability)
                arrays = {n: a for n, a in value.arrays().items() if not n.startswith("place_")}
                described["axes"] = [a.to_json() for a in value.axes]
                described |= {"stability": stability, "saturation": value.saturation}
                described |= {k: v for k, v in _described_start(model).items() if v}
                for s in sites:
                    kept: dict[str, NDArray[np.generic]] = {"memberships": memberships_of(model, s)}
                    kept |= {} if s.labels is None else {"labels": s.labels}
                    named = s.tensor.axes[0].labels if s.tensor is not None else None
                    kept |= {} if named is None else {"patients": np.array(named)}  # for `report --cohort`, the owner's
                    if isinstance(sites, Sites) and sites.periods and named is not None:
                        kept["period"] = np.array(sites.period_of(s), dtype=np.str_).reshape(len(named), 2)
                    own = folder.path / "sites" / s.name / "memberships.npz"
                    folder.write_arrays(own, kept)
                    os.chmod(own, 0o600)
            case _:
                arrays = {n: v for n, v in vars(model).items() if _released(n, v)}
                columns = vars(model).get("feature_names_in_")
                described |= {} if columns is None else {"columns": [str(c) for c in columns]}
        folder.write_arrays(folder.outcome, arrays)
        folder.write_json(folder.path / "outcome.json", described)
        if value is not None:
            folder.write_value(value.with_origin(card=model.privacy_))
        if metrics is not None:
            folder.write_json(folder.metrics, metrics)
        return folder


def load(path: str | Path) -> Learned:
    """Load a model from its file (``*.phenotypes`` ...) or from a run folder. Loading never runs code from the file.

    Parameters
    ----------
    path
        A model file, or a run folder of a simulation or a federation.

    Returns
    -------
    Phenotypes, Groups, Classes, Similarity or Moments
        The model as a value.

    Examples
    --------
    >>> import tempfile, polyclinic as pc
    >>> model = pc.SumALS(rank=3, rounds=3, seed=0).fit(pc.datasets.icu_network(patients=300, seed=0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = model.save(f"{folder}/icu.phenotypes")
    ...     print(pc.load(path).rank)
    3
    """
    model = _of(RunFolder(path)) if Path(path).is_dir() else read_model(path)
    if model.origin.censored:
        warnings.warn(
            f"{path}: censored, codes of few patients were removed; the whole model is in the run folder", stacklevel=2
        )
    return model


def compare(first: Model, second: Model) -> Difference:
    """Compare two models: matched phenotypes with their distance, and what differs in how they were made.

    Parameters
    ----------
    first, second
        Fitted estimators, models as ``pc.load`` gives them, model files or run folders.

    Examples
    --------
    >>> import polyclinic as pc
    >>> sites = pc.datasets.icu_network(patients=200, seed=0)
    >>> found = pc.compare(*(pc.CPALS(rank=2, seed=s).fit(sites) for s in (0, 0)))
    >>> found.same, found.match
    (True, 1.0)
    """
    return differ(_learned(first), _learned(second))


def _learned(model: Model) -> Learned:
    if isinstance(model, str | Path):
        return load(model)
    if not isinstance(model, Configured | Value):
        hint = "give two fitted estimators, models of pc.load, model files or run folders: pc.compare(first, second)"
        raise ConfigError(f"compare: {model!r:.40} is of type {type(model).__name__}, expected a model", hint=hint)
    return model._whole() if isinstance(model, Configured) else model


def _of(folder: RunFolder) -> Learned:
    model = folder.read_model()
    if model is None:
        raise ConfigError(f"{folder.path}: the run learned no model", hint="its figures are in metrics.json")
    return model


def _released(name: str, value: object) -> bool:
    public = name.endswith("_") and not name.startswith("_")
    return public and isinstance(value, np.ndarray) and value.dtype.kind != "O"  # names would have to be pickled


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")
