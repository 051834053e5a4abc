"""The estimator: parameters in, ``fit(sites)``, results in attributes that end in an underscore."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError
from polyclinic.models.base import Value
from polyclinic.models.file import class_of, kinds
from polyclinic.models.origin import Origin
from polyclinic.plugins import did_you_mean
from polyclinic.privacy.card.card import Card, make_card
from polyclinic.privacy.card.release_history import ReleaseHistory
from polyclinic.protocol.interfaces import Method, Pri, Pub
from polyclinic.protocol.loop import Simulation, SimulationOptions
from polyclinic.protocol.outcome import History, Outcome, Progress
from polyclinic.protocol.params import P, Parameterized
from polyclinic.records.sites.from_data import Data, as_sites

if TYPE_CHECKING:
    from sklearn.utils import Tags

    from polyclinic.models.file import Learned
    from polyclinic.privacy.ledger.entries import Entry
    from polyclinic.protocol.wire.traffic import Traffic


class Configured(Parameterized[P]):
    """Anything that is fitted: results in attributes, scikit-learn's habits, and the model as a value that is saved."""

    history_: History
    name: ClassVar[str]
    traffic_: Traffic
    privacy_: Card
    result_: Any

    def __dir__(self) -> list[str]:
        """Parameters and results first in an editor's list; the verbs of the protocol are for engines."""
        verbs = {*Method.__abstractmethods__, "publish", "divergence_hint", "round_metrics", "learned"}
        names = {n for n in super().__dir__() if n not in verbs}
        return sorted(names | set(type(self).Params.model_fields))

    def _refuse_unknown(self, options: Mapping[str, object], known: Iterable[str]) -> None:
        """What ``fit`` was given and does not take: the nearest that it does, and where a parameter goes."""
        if not (strange := sorted(set(options) - set(known))):
            return
        name = type(self).__name__
        params = [k for k in strange if k in type(self).Params.model_fields]
        raise ConfigError(
            f"{name}.fit does not take {', '.join(strange)}",
            faults=[f"{k}: {did_you_mean(k, known) or 'unknown'}" for k in strange],
            hint=f"{name}({params[0]}=...).fit(sites)" if params else "parameters are given to the class",
        )

    # ---- scikit-learn's habits

    def __sklearn_clone__(self) -> Self:
        return type(self)(**self.get_params())

    def __sklearn_is_fitted__(self) -> bool:
        return "result_" in self.__dict__

    def __sklearn_tags__(self) -> Tags:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        tensor = not isinstance(self, Method) or self.needs == "tensor"
        input_tags = InputTags(two_d_array=not tensor, positive_only=bool(dict(self.params).get("nonnegative", False)))
        return Tags(None, TargetTags(required=False), TransformerTags(preserves_dtype=[]), input_tags=input_tags)

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Names of the columns that ``transform`` gives: ``trip0``, ``trip1``, ..."""
        rank = self._fitted("result_").rank
        return np.array([f"{type(self).__name__.lower()}{r}" for r in range(rank)], dtype=object)

    def set_output(self, *, transform: Literal["default", "pandas", "polars"] | None = None) -> Self:
        """What ``transform`` gives: arrays (``"default"``) or data frames, as in scikit-learn."""
        if transform not in (None, "default", "pandas", "polars"):
            raise ConfigError(f"set_output: transform = {transform!r} is not one of default, pandas, polars")
        if transform is not None:
            self._output = transform
        return self

    def _framed(self, array: NDArray[np.generic], rows: Sequence[str] | None = None) -> Any:
        """The result of a transform as it was asked for."""
        output = self.__dict__.get("_output")
        sklearn = sys.modules.get("sklearn")
        if output is None and sklearn is not None:
            output = sklearn.get_config()["transform_output"]
        if output not in ("pandas", "polars"):
            return array
        names = list(self.get_feature_names_out())
        if output == "polars":
            import polars

            return polars.DataFrame(array, schema=[str(n) for n in names])
        import pandas

        return pandas.DataFrame(array, index=rows, columns=names)

    def _repr_html_(self) -> str:
        """A card for notebooks: what it is, its parameters and, once fitted, how it went and what is guaranteed."""
        from html import escape

        history, traffic, card = (self.__dict__.get(k) for k in ("history_", "traffic_", "privacy_"))
        rows = [("", repr(self)), ("state", "fitted" if history is not None else "not fitted yet")]
        if history:
            last = {k: v for k, v in history[-1].items() if isinstance(v, float) and k != "seconds"}
            rows.append((f"round {history[-1].get('round')}", ", ".join(f"{k} {v:.4g}" for k, v in last.items())))
        rows += [] if traffic is None else [("traffic", repr(traffic).strip("<>"))]
        rows += [] if card is None else [("privacy", card.headline)]
        cells = "".join(
            f"<tr><th style='text-align:left'>{escape(k)}</th><td style='text-align:left'>{escape(v)}</td></tr>"
            for k, v in rows
            if v
        )
        return f"<table class='polyclinic-model'><caption>{escape(type(self).__name__)}</caption>{cells}</table>"

    # ---- the model as a value

    def save(self, path: str | Path) -> Path:
        """Write the fitted model to one file without a patient in it; ``pc.load`` reads it."""
        return self._whole().save(path)

    def _whole(self) -> Learned:
        """The value, with the card as it is now (an audit may have been added after the fit)."""
        value: Learned = self._fitted("result_")
        return value if value.card is self.privacy_ else value.with_origin(card=self.privacy_)

    def _conclude(self) -> None:
        """After a fit: make the value that everything else reads."""
        origin = Origin.of(
            self.name, self.version if isinstance(self, Method) else 1, self.get_params(), self.privacy_, self.history_
        )
        self.__dict__.pop("result_", None)  # of an earlier fit
        model: object = self.learned(origin)
        if model is not None and not isinstance(model, Value):
            names = ", ".join(f"pc.{class_of(kind).__name__}" for kind in kinds())
            raise ConfigError(
                f"learned() of {type(self).__name__} gave a {type(model).__name__}, not a model",
                hint=f"give one of {names}, or None",
            )
        if model is not None:
            self.result_ = model

    def learned(self, origin: Origin) -> Value | None:
        """The fitted model as a value that can be saved; None where a method answers a question and learns nothing.

        Called after ``_publish``, with where the model comes from (method, parameters, card, history).
        """
        return None

    def _fitted(self, attribute: str) -> Any:
        if attribute in self.__dict__:
            return self.__dict__[attribute]
        if attribute == "result_" and "privacy_" in self.__dict__:
            raise ConfigError(
                f"this {type(self).__name__} is fitted, and learns no value that could be saved or applied",
                hint="read its attributes; a method with a model gives it in learned(origin): docs/tutorials/own-protocol.md",
            )
        raise ConfigError(f"this {type(self).__name__} is not fitted yet", hint="call .fit(sites) first")


class Estimator(Configured[P], Method[P, Pub, Pri]):
    """A federated method that is fitted in this process by ``fit(sites)``; other engines call ``publish`` themselves."""

    lines_: tuple[Entry, ...]  # of the books, for what is built on this
    happened_: ReleaseHistory  # what the card was made from

    def fit(
        self,
        sites: Data,
        y: object = None,
        *,
        progress: Callable[[Progress], None] | None = None,
        **options: Unpack[SimulationOptions],
    ) -> Self:
        """Learn from the sites; only sums leave them.

        Parameters
        ----------
        sites
            The hospitals, in any order; or the patients of one.
        y
            Ignored; pipelines pass it.
        progress
            Called with every :class:`~polyclinic.protocol.loop.Progress` event.
        """
        self._refuse_unknown(options, SimulationOptions.__annotations__)
        self.publish(Simulation(self, as_sites(sites, self.needs), progress=progress, **options).run())
        return self

    def publish(self, outcome: Outcome) -> None:
        """Turn an outcome of any engine into attributes."""
        self.history_ = outcome.history
        self.traffic_ = outcome.traffic
        happened = ReleaseHistory.of(
            self.name,
            outcome.releases,
            entries=outcome.lines,
            axes=outcome.setting.axes,
            asked=self.params.privacy,
            books=outcome.books,
            certified=outcome.certified,
            sites=outcome.setting.sites,
            noise=outcome.noise,
            overlap=outcome.setting.overlap,
        )
        self.lines_ = (*outcome.lines, *(e for b in outcome.books for e in b.entries()))
        self.happened_ = happened
        self.privacy_ = make_card(self.facts, happened)
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        if outcome.setting.columns is not None:  # as in scikit-learn: only where features have names
            self.feature_names_in_ = np.array(outcome.setting.columns, dtype=object)
        self._publish(outcome)
        self._conclude()
        if outcome.heads and "result_" in self.__dict__:
            self.result_ = self.result_.with_origin(receipts={n: asdict(h) for n, h in outcome.heads.items()})

    def chosen_from(self, others: Sequence[Estimator[P, Pub, Pri]]) -> None:
        """This fit was chosen among several starts: its card and its lines are those of all of them."""
        self.happened_ = self.happened_.with_starts([m.happened_ for m in others])
        self.lines_ = tuple({e.hash: e for m in (self, *others) for e in m.lines_}.values())
        self.privacy_ = make_card(self.facts, self.happened_)

    def _publish(self, outcome: Outcome) -> None:
        raise NotImplementedError
