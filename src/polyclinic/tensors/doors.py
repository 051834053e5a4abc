"""The old name of polyclinic.sites.doors."""

import sys

from polyclinic.sites import doors as _moved
from polyclinic.sites.doors import *  # noqa: F403

sys.modules[__name__] = _moved
