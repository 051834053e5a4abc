"""One file for one model: a zip of ``model.json``, ``arrays/NAME.npy``, a ``README.md`` for people and ``SHA256SUMS``.

Rules of change. A reader accepts every version up to its own and refuses a newer one by name. Keys of ``model.json`` are
only added, never renamed; a key that a reader does not know is kept when the model is saved again. Members are stored, not
deflated, sorted by name, with a fixed date: the same model gives the same bytes, whatever the release of zlib, and nothing
can unpack to more than the file's own size. Nothing is pickled, on either side.
"""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError, DataError, PolyclinicError
from polyclinic.models.model_card import readme
from polyclinic.models.origin import Origin
from polyclinic.plugins import locate, plugged
from polyclinic.util.atomic_files import write_whole

if TYPE_CHECKING:
    from polyclinic.models.base import Value
    from polyclinic.models.mixtures.classes import Classes
    from polyclinic.models.mixtures.groups import Groups
    from polyclinic.models.moments import Moments
    from polyclinic.models.phenotypes.phenotypes import Phenotypes
    from polyclinic.models.similarity import Similarity

    Learned: TypeAlias = Phenotypes | Groups | Similarity | Moments | Classes  # what comes with polyclinic

FORMAT: Final = "polyclinic.model"
VERSION: Final = 1
LIMIT: Final = 2**31  # bytes of a file
DTYPES: Final = {"<f8": 8, "<i8": 8, "|b1": 1}
BUILT_IN: Final = {
    "phenotypes": "polyclinic.models.phenotypes.phenotypes:Phenotypes",
    "groups": "polyclinic.models.mixtures.groups:Groups",
    "similarity": "polyclinic.models.similarity:Similarity",
    "moments": "polyclinic.models.moments:Moments",
    "classes": "polyclinic.models.mixtures.classes:Classes",
}
READ: Final = ("format", "version", "kind", "arrays")  # keys that this file reads, beside those of origin and kind
AGAIN: Final = "ask whoever sent it to send it again; compare the SHA-256 of both files"


def kinds() -> tuple[str, ...]:
    """Kinds of models that can be read: those of polyclinic, then those plugged in (group ``polyclinic.models``)."""
    return (*BUILT_IN, *(name for name in plugged("polyclinic.models") if name not in BUILT_IN))


def class_of(kind: str) -> type[Learned]:
    """The class of a kind of models."""
    return cast(
        "type[Learned]", locate(BUILT_IN[kind]) if kind in BUILT_IN else plugged("polyclinic.models")[kind].load()
    )


def pack(model: Value) -> bytes:
    """The file as bytes."""
    arrays = {name: _npy(a) for name, a in model.arrays().items()}
    header = {
        **model.origin.to_json(),
        **model.described(),
        "format": FORMAT,
        "version": VERSION,
        "kind": model.kind,
        "arrays": {n: sha256(a).hexdigest() for n, a in arrays.items()},
    }
    text = json.dumps(header, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    members = {
        "README.md": readme(model).encode(),
        "model.json": text.encode(),
        **{f"arrays/{n}.npy": a for n, a in arrays.items()},
    }
    sums = "".join(f"{sha256(members[n]).hexdigest()}  {n}\n" for n in sorted(members))
    return _zip({**members, "SHA256SUMS": sums.encode()})


def unpack(data: bytes, where: str = "the model") -> Learned:
    """Inverse of :func:`pack`: every byte is checked before anything is believed."""
    if len(data) > LIMIT:
        raise DataError(f"{where}: {len(data):,} bytes, a model has at most {LIMIT:,}")
    members = _members(data, where)
    sums = "".join(f"{sha256(members[n]).hexdigest()}  {n}\n" for n in sorted(members) if n != "SHA256SUMS")
    if sums.encode() != members["SHA256SUMS"]:
        listed_sums = members["SHA256SUMS"].decode("utf-8", "replace").splitlines()
        damaged = [line.split("  ", 1)[-1] for line in sums.splitlines() if line not in listed_sums]
        raise DataError(f"{where} is damaged", faults=[f"{n}: not what was written" for n in damaged], hint=AGAIN)
    try:
        header = json.loads(members["model.json"])
    except (ValueError, RecursionError) as e:
        raise DataError(f"{where}: model.json is not JSON", faults=[str(e)], hint=AGAIN) from None
    return _value(header, members, where)


def _value(header: object, members: Mapping[str, bytes], where: str) -> Learned:
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise DataError(f"{where} is not a model of polyclinic", hint="models are written by model.save(path)")
    version = header.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DataError(f"{where}: version {version!r} is not a number of a format")
    if version > VERSION:
        raise DataError(
            f"{where} is written in version {version} of the format, this release reads up to {VERSION}",
            hint=f"it was written by polyclinic {header.get('versions', {}).get('polyclinic', '?')}; install that or a later one",
        )
    if header.get("kind") not in kinds():
        raise DataError(f"{where}: unknown kind {header.get('kind')!r}", hint=f"known: {', '.join(kinds())}")
    try:
        kind = class_of(header["kind"])
        arrays = _arrays(header.get("arrays"), members)
        return kind.restored(Origin.from_json(header, (*READ, *kind.keys)), header, arrays)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        if isinstance(e, PolyclinicError):
            raise DataError(f"{where}: {e.what}", faults=e.faults, hint=e.hint) from None
        raise DataError(f"{where}: model.json lacks or misstates {e}", hint=AGAIN) from None


def _arrays(listed: object, members: Mapping[str, bytes]) -> dict[str, NDArray[np.generic]]:
    """The arrays that the header lists; others are not in the file."""
    names = list(listed) if isinstance(listed, dict) else []
    expected = {f"arrays/{n}.npy" for n in names}
    stored = {n for n in members if n.startswith("arrays/")}
    if expected != stored:
        raise DataError("arrays that are listed and that are there differ", faults=sorted(expected ^ stored))
    return {n: _array(members[f"arrays/{n}.npy"], n) for n in names}


def save(model: Value, path: str | Path) -> Path:
    """Write the file, whole or not at all, readable by its owner only."""
    target = Path(path)
    if target.suffix != f".{model.kind}":
        raise ConfigError(
            f"{target}: this model is saved as *.{model.kind}", hint=f"use {target.with_suffix(f'.{model.kind}')}"
        )
    data = pack(model)
    return write_whole(target, data)


def load(path: str | Path) -> Learned:
    """Read a model that :meth:`save` wrote. Nothing in it is executed."""
    source = Path(path)
    if not source.is_file():
        raise ConfigError(
            f"{source}: no such file", hint="models are *.phenotypes, *.groups, *.classes, *.similarity, *.moments"
        )
    if source.stat().st_size > LIMIT:
        raise DataError(f"{source}: {source.stat().st_size:,} bytes, a model has at most {LIMIT:,}")
    return unpack(source.read_bytes(), str(source))


# ---- the container


def _zip(members: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.create_system = 3
            info.external_attr = 0o600 << 16
            z.writestr(info, members[name])
    return out.getvalue()


def _members(data: bytes, where: str) -> dict[str, bytes]:
    """The members of a container of ours; any other byte than we would have written is refused."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as z:
            entries = z.infolist()
            names = [i.filename for i in entries]
            if names != sorted(set(names)) or not _as_saved(entries, len(data)):
                raise DataError(
                    f"{where} is not a model of polyclinic", faults=["not stored as model.save does"], hint=AGAIN
                )
            members = {n: z.read(n) for n in names}
    except (zipfile.BadZipFile, NotImplementedError, struct.error, EOFError, RuntimeError, ValueError, OSError) as e:
        if isinstance(e, PolyclinicError):
            raise
        raise DataError(f"{where} is damaged, or not a model of polyclinic", faults=[str(e)], hint=AGAIN) from None
    absent = [n for n in ("SHA256SUMS", "model.json") if n not in members]
    if absent:
        raise DataError(f"{where} is not a model of polyclinic: {', '.join(absent)} is not in it")
    if _zip(members) != data:
        raise DataError(f"{where} is damaged", faults=["bytes outside of its members were changed"], hint=AGAIN)
    return members


def _as_saved(entries: Sequence[zipfile.ZipInfo], size: int) -> bool:
    """Whether members are stored as they are, within the file and within its folder."""
    stored = all(i.compress_type == zipfile.ZIP_STORED and i.file_size == i.compress_size for i in entries)
    local_names = not any(".." in i.filename or i.filename.startswith("/") for i in entries)
    return stored and local_names and sum(i.file_size for i in entries) <= size


def _npy(array: NDArray[np.generic]) -> bytes:
    kind = {"f": "<f8", "i": "<i8", "b": "|b1"}[array.dtype.kind]
    out = io.BytesIO()
    np.lib.format.write_array(out, np.ascontiguousarray(array, kind), version=(1, 0), allow_pickle=False)
    return out.getvalue()


def _array(data: bytes, name: str) -> NDArray[np.generic]:
    """An array whose shape and type were checked before anything is allocated."""
    stream = io.BytesIO(data)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("another version of npy")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    except ValueError as e:
        raise DataError(f"array {name!r}: {e}") from None
    start = stream.tell()
    if dtype.str not in DTYPES or fortran or math.prod(shape) * DTYPES[dtype.str] != len(data) - start:
        raise DataError(f"array {name!r}: {dtype.str} {shape} in {len(data) - start} bytes is not what a model holds")
    out = np.frombuffer(data, dtype, offset=start).reshape(shape)
    return out.astype(dtype.newbyteorder("="), copy=True)
