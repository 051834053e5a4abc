"""What every learned model is: a frozen value with an origin, that can be saved, hashed and shown. No patient is in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from polyclinic.errors import ConfigError
from polyclinic.models import file
from polyclinic.models.origin import Origin
from polyclinic.privacy.card.card import Card
from polyclinic.util.json_types import JsonMap
from polyclinic.util.table import Table

Array = NDArray[np.float64]
StoredArrays = Mapping[str, NDArray[Any]]  # as a file holds them: each kind checks what it takes
Unseen = Literal["error", "drop"]


def frozen(array: ArrayLike, dtype: DTypeLike = np.float64) -> Any:
    """A contiguous array that cannot be written to; a copy if the given one could be.

    >>> frozen([1.0]).flags.writeable
    False
    """
    values = np.asarray(array)
    out = np.ascontiguousarray(values, dtype)
    if out.shape != values.shape:  # a scalar became a vector of one
        out = out.reshape(values.shape)
    if out.flags.writeable:
        out = out.copy() if out is values or out.base is not None else out
        out.flags.writeable = False
    return out


def all_finite(*arrays: NDArray[np.generic] | float | None) -> bool:
    """Whether no number is infinite or NaN; None has none.

    >>> all_finite(np.ones(2), None), all_finite(np.array([1.0, np.nan]))
    (True, False)
    """
    return all(np.isfinite(a).all() for a in arrays if a is not None)


@dataclass(frozen=True, eq=False)
class Value:
    """A learned model. Two are equal if their files are."""

    origin: Origin

    kind: ClassVar[str]
    keys: ClassVar[tuple[str, ...]] = ()  # of the file's header that :meth:`restored` reads

    @property
    def card(self) -> Card:
        """What is guaranteed about the patients that it was learned from."""
        return self.origin.card

    @property
    def method(self) -> str:
        """The protocol that made it."""
        return self.origin.method

    @property
    def parameters(self) -> JsonMap:
        """As they were given."""
        return self.origin.parameters

    @property
    def history(self) -> tuple[JsonMap, ...]:
        """One mapping per round."""
        return self.origin.history

    def with_origin(self, **changes: Any) -> Self:
        """The same numbers with another card, rule or receipts."""
        return replace(self, origin=replace(self.origin, **changes))

    # ---- the file

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return its numbers by name; a single one is an array of one."""
        numbers = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("origin", *self.keys)}
        return {n: np.array([v]) if isinstance(v, float) else v for n, v in numbers.items() if v is not None}

    def described(self) -> dict[str, object]:
        """Return the plain values of the header: ``keys``."""
        values = {name: getattr(self, name) for name in self.keys}
        return {n: [*v] if isinstance(v, tuple) else v for n, v in values.items()}

    @classmethod
    def restored(cls, origin: Origin, described: JsonMap, arrays: StoredArrays) -> Self:
        """Return the model of a file: the inverse of :meth:`arrays` and :meth:`described`."""
        values: dict[str, Any] = {}
        for f in fields(cls):
            if f.name in cls.keys:
                value = described[f.name]
                values[f.name] = tuple(value) if isinstance(value, list) else value
            elif f.name in arrays:
                values[f.name] = float(arrays[f.name][0]) if f.type == "float" else arrays[f.name]
        return cls(origin, **values)

    def to_bytes(self) -> bytes:
        """The file as bytes: the same for the same model, on every machine with the same versions."""
        return file.pack(self)

    def digest(self) -> str:
        """SHA-256 of the file."""
        return sha256(self.to_bytes()).hexdigest()

    def save(self, path: str | Path) -> Path:
        """Write the model to one file, named by its kind: ``*.phenotypes``, ``*.groups``, ..."""
        return file.save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model of this kind; ``pc.load`` reads any."""
        model = file.load(path)
        if not isinstance(model, cls):
            raise ConfigError(f"{path} holds {model.kind}, not {cls.kind}", hint="pc.load(path) reads any kind")
        return model

    def table(self) -> Table:
        """The model for people."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return f"<div class='polyclinic-model'><p>{escape(repr(self))}</p>{self.card._repr_html_()}{self.table()._repr_html_()}</div>"

    def __eq__(self, other: object) -> bool:
        return self.to_bytes() == other.to_bytes() if isinstance(other, Value) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest())
