"""The old name of polyclinic.table."""

import sys

from polyclinic import table as _moved
from polyclinic.table import *  # noqa: F403

sys.modules[__name__] = _moved
