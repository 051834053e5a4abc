"""The old name of polyclinic.sites.ingest."""

import sys

from polyclinic.sites import ingest as _moved
from polyclinic.sites.ingest import *  # noqa: F403

sys.modules[__name__] = _moved
