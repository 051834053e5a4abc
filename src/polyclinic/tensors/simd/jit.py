"""How kernels are compiled: without the GIL, cached on disk, also where the package itself is read-only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba


def _cache_folder() -> None:
    """Point numba's cache at a writable folder if the package's own folder is not writable.

    Numba caches beside the source. In a read-only install it falls back to a per-user folder, and fails where there
    is no writable home (containers); then a private temporary folder serves, at the price of compiling once a boot.
    """
    if os.environ.get("NUMBA_CACHE_DIR"):
        return
    if os.access(Path(__file__).parent, os.W_OK):
        return
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "polyclinic" / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(folder)
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"polyclinic-kernels-{os.getuid() if hasattr(os, 'getuid') else 0}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
            folder = Path(tempfile.mkdtemp(prefix="polyclinic-kernels-"))  # never load code that another user wrote
    numba.config.CACHE_DIR = str(folder)


_cache_folder()


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a serial loop that releases the GIL; division by zero follows IEEE like numpy's."""
    compiled: Callable[..., Any] = numba.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)(function)
    return compiled
