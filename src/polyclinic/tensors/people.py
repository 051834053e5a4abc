"""The old name of polyclinic.sites.people."""

import sys

from polyclinic.sites import people as _moved
from polyclinic.sites.people import *  # noqa: F403

sys.modules[__name__] = _moved
