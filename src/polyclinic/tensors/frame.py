"""The old name of polyclinic.sites.frame."""

import sys

from polyclinic.sites import frame as _moved
from polyclinic.sites.frame import *  # noqa: F403

sys.modules[__name__] = _moved
