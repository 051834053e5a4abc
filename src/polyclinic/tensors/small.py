"""The old name of polyclinic.sites.small."""

import sys

from polyclinic.sites import small as _moved
from polyclinic.sites.small import *  # noqa: F403

sys.modules[__name__] = _moved
