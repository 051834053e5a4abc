"""The old name of polyclinic.sites.visits."""

import sys

from polyclinic.sites import visits as _moved
from polyclinic.sites.visits import *  # noqa: F403

sys.modules[__name__] = _moved
