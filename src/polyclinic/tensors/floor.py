"""The old name of polyclinic.sites.floor."""

import sys

from polyclinic.sites import floor as _moved
from polyclinic.sites.floor import *  # noqa: F403

sys.modules[__name__] = _moved
