"""NVIDIA FLARE between hospitals: real processes, mutual TLS, studies instead of code.

Nothing here imports ``nvflare`` before it is needed, so the package works without the extra.

    enrolment   who takes part: the authority, keys born at the site, fingerprints; with invitation, joining, provisioning
    worker      a hospital's half of a study (``node.site.worker``) in one thread
    carry       the coordinator's half (``node.coordinator.coordinator``): its asks out, the answers back
    startup_files                       FLARE's own files, written so that a site refuses code
    controller, executor, launcher      the only classes that FLARE sees
    aligning    codes without a public list are agreed on before the first sum
    coordinator, jobs, site             the services: start, stop, run, watch; processes, session below them
"""

from __future__ import annotations

import sys
from types import ModuleType

from polyclinic.errors import ConfigError, MissingExtra

__all__ = ["VERSION", "need_flare"]

VERSION = "2.9"  # the adapter rests on details of these versions (docs/howto/deployment.md, upgrade notes)


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
