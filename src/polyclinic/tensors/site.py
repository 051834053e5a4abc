"""The old name of polyclinic.sites.site."""

import sys

from polyclinic.sites import site as _moved
from polyclinic.sites.site import *  # noqa: F403

sys.modules[__name__] = _moved
