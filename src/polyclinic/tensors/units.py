"""The old name of polyclinic.sites.units."""

import sys

from polyclinic.sites import units as _moved
from polyclinic.sites.units import *  # noqa: F403

sys.modules[__name__] = _moved
