"""The package ``nvflare``: imported only where it is needed, so that everything else works without the extra."""

from __future__ import annotations

import sys
from types import ModuleType

from polyclinic.errors import ConfigError, MissingExtra

VERSION = "2.9"  # the adapter rests on details of these versions (docs/howto/network.md, upgrade notes)


def need_flare() -> ModuleType:
    """The package ``nvflare``, or an error that says what to install."""
    if sys.platform == "win32":
        raise ConfigError(
            "a federation between hosts does not run on Windows",
            hint="run the node on Linux, e.g. in the container (docs/howto/container.md)",
        )
    try:
        import nvflare
    except ImportError:
        raise MissingExtra("nvflare", "nvflare", "a federation between hosts") from None
    found: ModuleType = nvflare
    return found
