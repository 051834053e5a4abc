"""The old name of polyclinic.threads."""

import sys

from polyclinic import threads as _moved
from polyclinic.threads import *  # noqa: F403

sys.modules[__name__] = _moved
