"""The old name of polyclinic.sites.checkup."""

import sys

from polyclinic.sites import checkup as _moved
from polyclinic.sites.checkup import *  # noqa: F403

sys.modules[__name__] = _moved
