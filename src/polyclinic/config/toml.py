"""A TOML file, read and checked whole: all faults together, an unknown key with the known ones next to it."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self, get_args

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from polyclinic.errors import ConfigError
from polyclinic.plugins import did_you_mean

NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$"


class TomlSection(BaseModel):
    """One section of a file: frozen, no other keys than its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TomlFile(BaseModel):
    """A whole file. Paths in it are relative to its folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    _folder: Path = PrivateAttr(default=Path())

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read and check a file; every fault is in the one :class:`~polyclinic.errors.ConfigError`."""
        file = Path(path)
        try:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(
                f"{file}: cannot be read ({e.strerror if isinstance(e, OSError) else 'not UTF-8 text'})",
                hint="check the path",
            ) from None
        except tomllib.TOMLDecodeError as e:
            raise ConfigError(
                f"{file}: not TOML", faults=[str(e)], hint="put text in double quotes, one key = value per line"
            ) from None
        return cls.parse(values, where=str(file), folder=file.resolve().parent)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, where: str = "", folder: Path | None = None) -> Self:
        """Check plain values (a dictionary as TOML gives it)."""
        faults, result = cls._together(values), None
        try:
            result = cls.model_validate(dict(values))
        except ValidationError as e:
            faults = [*(_fault(cls, f) for f in e.errors()), *faults]
        if faults or result is None:
            raise ConfigError(
                f"{where or cls.__name__.lower()}: wrong {cls.__name__.lower()} file",
                faults=faults,
                hint="correct every line above; docs/reference/files.md lists all keys",
            )
        result._folder = folder or Path()
        return result

    @classmethod
    def _together(cls, values: Mapping[str, Any]) -> list[str]:
        """Faults between sections, looked for even where a section is wrong in itself."""
        return []

    @property
    def folder(self) -> Path:
        """Folder of the file: paths in it are relative to this."""
        return self._folder

    def path(self, name: str | Path) -> Path:
        """A path written in the file, made absolute."""
        return self.folder / Path(name).expanduser()

    def to_json(self) -> dict[str, Any]:
        """Plain values; :meth:`parse` reads them back."""
        return self.model_dump(mode="json", exclude_none=True, by_alias=True)

    def digest(self) -> str:
        """Hash of everything in the file: two sites with one digest run the same study."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()


def _fault(model: type[BaseModel], f: Any) -> str:
    place = ".".join(str(x) for x in f["loc"]) or "file"
    if f["type"] == "extra_forbidden":
        keys = _known(model, f["loc"][:-1])
        hint = did_you_mean(str(f["loc"][-1]), keys)
        return f"{place}: unknown key; {hint + ' ' if hint else ''}known: {', '.join(keys)}"
    if f["type"] == "missing":
        return f"{place}: missing"
    text = str(f["msg"]).removeprefix("Value error, ")
    plain = isinstance(f["input"], str | int | float | bool)
    # A password is never quoted, nor is a whole section.
    return f"{place}: {text}" + (
        f" (got {f['input']!r})" if plain and f["loc"][-1:] not in (("password",), ("url",)) else ""
    )


def _known(model: type[BaseModel], where: tuple[int | str, ...]) -> list[str]:
    """The keys that are allowed at a place of the file."""
    current: type[BaseModel] = model
    for part in where:
        if isinstance(part, int):
            continue
        fields = current.model_fields
        current = (section_in(fields[part].annotation) if part in fields else None) or current
    return sorted(f.alias or k for k, f in current.model_fields.items())


def section_in(annotation: object) -> type[BaseModel] | None:
    """The section a field holds, whatever it is wrapped in; None for a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((s for s in map(section_in, get_args(annotation)) if s is not None), None)
