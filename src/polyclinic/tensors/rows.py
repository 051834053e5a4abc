"""The old name of polyclinic.sites.rows."""

import sys

from polyclinic.sites import rows as _moved
from polyclinic.sites.rows import *  # noqa: F403

sys.modules[__name__] = _moved
