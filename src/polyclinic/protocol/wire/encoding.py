"""The wire: how values become bytes. A msgpack header, then raw array buffers; versioned, size-limited, never pickle.

Layout: ``b"PCW1"``, header length (4 bytes, little endian), header, buffers. The header holds the tree of values, with
every array replaced by its number, and the type and shape of every array. Decoding allocates nothing that the sender
did not send, and refuses everything that is not exactly this. What the header's values will weigh is counted while it is
skipped over (:func:`polyclinic.protocol.wire.limits.weigh`), before the first of them is made. A frame of more than
four megabytes takes at most four bytes of memory for each of its own, a smaller one never more than 16 megabytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgpack
import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import MessageRefused, ProtocolMismatch
from polyclinic.protocol.wire.limits import weigh
from polyclinic.protocol.wire.message import Message
from polyclinic.util.atomic_files import atomic

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MAGIC: Final = b"PCW1"
VERSION: Final = 1
LIMIT: Final = 64 * 2**20  # bytes of one message
KEPT: Final = 2**40  # ... and of a file of our own, which is none
# bytes of memory that the values of a header may take, for each byte of the message; arrays take one more
WEIGHT: Final = 3
SMALL: Final = 16 * 2**20  # ... or this much: a list of short codes weighs ten times its text, and may travel
ARRAYS: Final = 200  # bytes of an array without its numbers
DEPTH: Final = 12
TYPES: Final = frozenset({"<f8", "<f4", "<i8", "<i4", "<u8", "<u4", "<u2", "|u1", "|b1"})
ARRAY: Final = "\x00array"
PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes})

T = TypeVar("T")


def encode(value: object, *, limit: int = LIMIT) -> bytes:
    """Bytes of a tree of None, booleans, numbers, texts, bytes, arrays, lists and maps.

    >>> decode(encode({"a": [1, 2.5, "x", None], "b": np.arange(3.0)}))["b"].tolist()
    [0.0, 1.0, 2.0]
    """
    return b"".join(parts(value, limit=limit))


def parts(value: object, *, limit: int = LIMIT) -> list[bytes | memoryview]:
    """The bytes of :func:`encode` one after the other, the arrays where they lie: what is hashed or written needs no copy."""
    header, arrays = _header(value)
    size = 8 + len(header) + sum(a.nbytes for a in arrays)
    if size > limit:
        raise MessageRefused(
            f"a message of {size:,} bytes exceeds the limit of {limit:,}", hint="lower the rank or the number of codes"
        )
    return [MAGIC + struct.pack("<I", len(header)) + header, *(a.reshape(-1).view("u1").data for a in arrays)]


def fingerprint(value: object, *, limit: int = LIMIT) -> bytes:
    """SHA-256 of :func:`encode`'s bytes.

    >>> value = {"a": [1, "x"], "b": np.arange(300.0)}
    >>> fingerprint(value) == hashlib.sha256(encode(value)).digest()
    True
    """
    h = hashlib.sha256()
    for part in parts(value, limit=limit):
        h.update(part)
    return h.digest()


def size(value: object) -> int:
    """Length of :func:`encode`'s bytes, without copying the arrays.

    >>> value = {"a": [1, "x"], "b": np.arange(300.0)}
    >>> size(value) == len(encode(value))
    True
    """
    header, arrays = _header(value)
    return 8 + len(header) + sum(a.nbytes for a in arrays)


def _header(value: object) -> tuple[bytes, list[NDArray[np.generic]]]:
    arrays: list[NDArray[np.generic]] = []
    tree = _strip(value, arrays, 0)
    parts = [[a.dtype.str, list(a.shape)] for a in arrays]
    return msgpack.packb({"v": VERSION, "t": tree, "a": parts}, use_bin_type=True), arrays


def decode(data: bytes | memoryview, *, limit: int = LIMIT) -> Any:
    """Inverse of :func:`encode`; anything malformed raises :class:`MessageRefused` and nothing else."""
    if len(data) > limit:
        raise MessageRefused(f"a message of {len(data):,} bytes exceeds the limit of {limit:,}")
    if len(data) < 8 or data[:4] != MAGIC:
        raise MessageRefused("not a Polyclinic message: wrong first bytes")
    (length,) = struct.unpack("<I", data[4:8])
    if length > len(data) - 8:
        raise MessageRefused("message truncated inside its header")
    header = _read_header(data, length, checked=limit <= LIMIT)
    arrays, position = [], 8 + length
    for entry in header["a"]:
        kind, shape = _announced(entry)
        count = math.prod(shape)
        size = count * np.dtype(kind).itemsize
        if size > len(data) - position:
            raise MessageRefused("message truncated inside an array")
        # A copy, because a buffer in the middle of a message is not aligned, and BLAS then adds in another order.
        arrays.append(np.frombuffer(data, kind, count, position).reshape(shape).copy())
        arrays[-1].flags.writeable = False
        position += size
    if position != len(data):
        raise MessageRefused(f"message carries {len(data) - position} bytes that were not announced")
    return _fill(header["t"], arrays, 0)


def _read_header(data: bytes | memoryview, length: int, *, checked: bool) -> dict[str, Any]:
    """Read the header. ``checked`` limits its weight: a checkpoint of our own may be larger, and nobody else wrote it."""
    view, most = memoryview(data)[8 : 8 + length], max(WEIGHT * len(data), SMALL)
    if checked:
        weigh(view, most)
    try:
        header = msgpack.unpackb(view, raw=False, strict_map_key=True, max_str_len=length)
    except Exception as e:
        raise MessageRefused(f"message header is unreadable ({type(e).__name__})") from None
    if not isinstance(header, dict) or set(header) != {"v", "t", "a"} or not isinstance(header["a"], list):
        raise MessageRefused("message header has the wrong fields")
    if header["v"] != VERSION:
        raise ProtocolMismatch(
            f"message in wire version {header['v']!r}, this side speaks {VERSION}",
            hint="upgrade the side with the smaller number",
        )
    if checked and ARRAYS * len(header["a"]) > most:
        raise MessageRefused(f"message announces {len(header['a']):,} arrays in {len(data):,} bytes")
    return header


def _announced(entry: object) -> tuple[str, list[int]]:
    """Return the type and the shape of an array that a header announces."""
    if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str) and entry[0] in TYPES):
        raise MessageRefused("message announces an array of an unknown type")
    kind, shape = entry
    if not isinstance(shape, list) or len(shape) > 8 or not all(type(d) is int and 0 <= d < 2**40 for d in shape):
        raise MessageRefused("message announces an array of a wrong shape")
    return kind, shape


def save(path: Path, value: object) -> None:
    """Keep a tree of values in a file that only its owner reads: whole and on disk, or not there."""
    with atomic(path) as temporary, open(temporary, "wb") as f:
        f.writelines(parts(value, limit=KEPT))


def load(path: Path) -> Any:
    """Inverse of :func:`save`."""
    return decode(path.read_bytes(), limit=KEPT)


def _strip(value: object, arrays: list[NDArray[np.generic]], depth: int) -> object:
    """The tree without its arrays. A letter is mostly leaves: they are told by their exact type, and never called for."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if depth == DEPTH and isinstance(value, Mapping | list | tuple) and value:  # what is in it is nested one deeper
        raise MessageRefused(f"a message nested deeper than {DEPTH}")
    if kind is not np.ndarray and isinstance(value, dict | Mapping):
        return {str(k): v if type(v) in PLAIN else _strip(v, arrays, depth + 1) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return _referred(value, arrays)
    if isinstance(value, list | tuple):
        return [v if type(v) in PLAIN else _strip(v, arrays, depth + 1) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bool | int | float | str | bytes):
        return value
    raise MessageRefused(f"a value of type {type(value).__name__} cannot travel")


def _referred(array: NDArray[np.generic], arrays: list[NDArray[np.generic]]) -> dict[str, int]:
    """An array goes to the others, and its number into the tree."""
    a = np.ascontiguousarray(array) if array.ndim else array
    if a.dtype.byteorder == ">":
        a = a.astype(a.dtype.newbyteorder("<"))
    if a.dtype.str not in TYPES:
        raise MessageRefused(f"an array of type {a.dtype} cannot travel")
    arrays.append(a)
    return {ARRAY: len(arrays) - 1}


def _fill(tree: object, arrays: list[NDArray[np.generic]], depth: int) -> object:
    if depth > DEPTH:
        raise MessageRefused(f"a message nested deeper than {DEPTH}")
    if type(tree) in PLAIN:
        return tree
    if isinstance(tree, dict):
        if ARRAY in tree:
            number = tree[ARRAY]
            if len(tree) != 1 or type(number) is not int or not 0 <= number < len(arrays):
                raise MessageRefused("message refers to an array that it does not carry")
            return arrays[number]
        return {k: _fill(v, arrays, depth + 1) for k, v in tree.items()}
    if isinstance(tree, list):
        return [_fill(v, arrays, depth + 1) for v in tree]
    raise MessageRefused("message holds a value of an unknown kind")


def encode_message(message: Message, protocol: str = "", *, limit: int = LIMIT) -> bytes:
    """Bytes of one message of an exchange; ``protocol`` is the method's name and version (``"trip/1"``)."""
    return encode(_letter(message, protocol), limit=limit)


def size_message(message: Message, protocol: str = "") -> int:
    """Length of :func:`encode_message`'s bytes."""
    return size(_letter(message, protocol))


def decode_message(data: bytes, protocol: str = "", *, limit: int = LIMIT) -> Message:
    """Inverse of :func:`encode_message`; another protocol or version is refused by name."""
    parts = decode(data, limit=limit)
    kinds = {
        "protocol": str,
        "sender": str,
        "to": str,
        "kind": str,
        "round": int,
        "step": str,
        "attempt": int,
        "body": dict,
    }
    if not isinstance(parts, list) or len(parts) != len(kinds):
        raise MessageRefused("message has the wrong fields")
    value = dict(zip(kinds, parts))
    faults = [f"{k} is a {type(value[k]).__name__}" for k, t in kinds.items() if type(value[k]) is not t]
    if faults:
        raise MessageRefused("message fields have the wrong type", faults=faults)
    theirs = value.pop("protocol")
    if theirs != protocol:
        raise ProtocolMismatch(
            f"message from {value['sender']!r} speaks {theirs!r}, this side speaks {protocol!r}",
            hint="install the same version of Polyclinic on both sides",
        )
    return Message(**value)


def _letter(message: Message, protocol: str) -> list[object]:
    """In the order of the fields: their names would be half of a short letter."""
    return [protocol, *_fields(message).values()]


def _fields(value: DataclassInstance) -> dict[str, object]:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}


def pack(state: object) -> object:
    """A frozen dataclass (nested ones too) as a tree for :func:`encode`."""
    if dataclasses.is_dataclass(state) and not isinstance(state, type):
        return {k: pack(v) for k, v in _fields(state).items()}
    if isinstance(state, list | tuple):
        return [pack(v) for v in state]
    if isinstance(state, Mapping):
        return {k: pack(v) for k, v in state.items()}
    return state


def canonical(state: T) -> T:
    """The same state with every array in row order, as it comes back from the wire or from a checkpoint.

    Sums over an axis depend in their last bit on an array's layout in memory; so that an interrupted run, and a run between
    hosts, give the same bits as one that was never written down, states are always kept in this form.
    """
    value: object = state
    if isinstance(state, np.ndarray):
        value = np.ascontiguousarray(state) if state.ndim else state
    elif dataclasses.is_dataclass(state) and not isinstance(state, type):
        value = dataclasses.replace(state, **{k: canonical(v) for k, v in _fields(state).items()})
    elif isinstance(state, tuple):
        value = tuple(canonical(v) for v in state)
    elif isinstance(state, dict):
        value = {k: canonical(v) for k, v in state.items()}
    return cast(T, value)


def unpack(kind: type[T], tree: object) -> T:
    """The dataclass of a tree made by :func:`pack`; lists come back as tuples."""
    from typing import get_args, get_type_hints

    hints = get_type_hints(kind)
    fields = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if not isinstance(tree, dict) or set(tree) != fields:
        raise MessageRefused(f"a stored {kind.__name__} has the wrong fields")
    values: dict[str, Any] = {}
    for name, value in tree.items():
        inner = next((h for h in (hints[name], *get_args(hints[name])) if dataclasses.is_dataclass(h)), None)
        many_values = isinstance(value, list) and all(isinstance(v, dict) for v in value)
        if inner is not None and isinstance(value, dict):
            values[name] = unpack(inner, value)  # type: ignore[arg-type]
        elif inner is not None and many_values:
            values[name] = tuple(unpack(inner, v) for v in value)  # type: ignore[arg-type]
        else:
            values[name] = _tuples(value)
    return kind(**values)


def _tuples(value: object) -> object:
    if isinstance(value, list):
        return tuple(_tuples(v) for v in value)
    if isinstance(value, dict):
        return {k: _tuples(v) for k, v in value.items()}
    return value
