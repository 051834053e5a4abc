"""Where the inner loops run: on the processor, or on a card that this machine has.

The device belongs to the node, never to the study: it is in no study file, order, public state or ledger, and hospitals with
and without a card take part in the same study. A process says it once (:func:`use_device`); ``node.toml`` says it for a hospital.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from polyclinic.errors import ConfigError
from polyclinic.tensors.kernels import mttkrp as kernels
from polyclinic.tensors.sparse import SparseTensor

if TYPE_CHECKING:
    from polyclinic.tensors.kernels.cuda import DeviceTensor

Device = Literal["cpu", "cuda", "auto"]
Matrix = NDArray[np.float64]
WORTH: Final = 5_000_000  # nonzeros from which a card is worth its upload
BYTES: Final = 40  # a nonzero may take on the card while it is sorted
KEPT: Final = 4  # tensors that stay on the card

_log = logging.getLogger(__name__)
_device: Device = "cpu"
_there: OrderedDict[int, tuple[SparseTensor, Any]] = OrderedDict()  # id: (tensor, the same on the card)


def use_device(device: Device) -> None:
    """Choose where this process computes: processor or graphics card.

    ``"auto"`` takes a graphics card with compute capability 8.0 and enough memory, for tensors of at least 5 million nonzeros.

    Parameters
    ----------
    device
        ``"cpu"``, ``"cuda"`` or ``"auto"``.

    Examples
    --------
    >>> use_device("auto")
    >>> use_device("cpu")
    """
    global _device
    if device not in ("cpu", "cuda", "auto"):
        raise ConfigError(f"device = {device!r} is not known", hint='one of "cpu", "cuda", "auto"')
    reason = missing() if device == "cuda" else None
    if reason:
        raise ConfigError(
            f"no CUDA device: {reason}", hint="pip install 'polyclinic[cuda13]' (or cuda12), or device = \"auto\""
        )
    if device != _device:
        _there.clear()
    _device = device


@contextmanager
def using(device: Device | None) -> Iterator[None]:
    """Work on ``device`` inside the block; None changes nothing."""
    previous = _device
    use_device(previous if device is None else device)
    try:
        yield
    finally:
        use_device(previous)


def missing() -> str | None:
    """Why no card can be used here; None if one can."""
    try:
        import cupy
    except ImportError as e:
        return f"CuPy is not installed ({e})"
    try:
        properties = cupy.cuda.runtime.getDeviceProperties(0)
    except cupy.cuda.runtime.CUDARuntimeError as e:
        return str(e)
    if (properties["major"], properties["minor"]) < (8, 0):
        return f"{properties['name'].decode()} has compute capability {properties['major']}.{properties['minor']}, 8.0 is the least"
    return None


def on_card(tensor: SparseTensor, rank: int) -> bool:
    """Does work on this tensor go to the card? With ``"auto"`` the log says which and why."""
    if _device == "cpu" or not tensor.nnz:
        return False
    if _device == "cuda":
        return True
    reason = f"{tensor.nnz:,} nonzeros are fewer than {WORTH:,}" if tensor.nnz < WORTH else missing()
    if reason is None:
        import cupy

        need = 1.3 * (BYTES * tensor.nnz + 8 * 64 * -(-rank // 64) * 3 * sum(tensor.shape))
        free = cupy.cuda.runtime.memGetInfo()[0]
        reason = f"{need / 1e9:.1f} GB are needed there, {free / 1e9:.1f} are free" if need > free else None
    _log.info("device: %s", f"the processor, because {reason}" if reason else "the card")
    return reason is None


def cuda() -> Any:
    """The card's kernels. They are loaded by name, because most machines have no card."""
    return import_module("polyclinic.tensors.kernels.cuda")


def card_of(tensor: SparseTensor) -> DeviceTensor:
    """The tensor on the card. The last few stay there, and the tensor is kept so that its id stays its own."""
    if id(tensor) not in _there:
        _there[id(tensor)] = tensor, cuda().DeviceTensor(tensor)
        while len(_there) > KEPT:
            _there.popitem(last=False)
    _there.move_to_end(id(tensor))
    device_tensor: DeviceTensor = _there[id(tensor)][1]
    return device_tensor


def mttkrp(tensor: SparseTensor, factors: Sequence[Matrix], mode: int, *, threads: int = 1) -> Matrix:
    """:func:`.kernels.mttkrp.mttkrp` of the whole tensor, on the device of this process."""
    rank = factors[1 if mode == 0 else 0].shape[1]
    if not on_card(tensor, rank):
        return kernels.mttkrp(tensor, factors, mode, threads=threads)
    work = cuda().GraphicsCard(card_of(tensor), rank)
    device_factors: list[Any] = [None if n == mode else work.put(f) for n, f in enumerate(factors)]
    product: Matrix = work.get(work.mttkrp(device_factors, mode))
    return product
