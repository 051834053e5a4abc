"""What was learned, as a value: saved in one file, loaded, applied to new patients, adapted to a new hospital."""

from polyclinic.learned.coverage import Coverage
from polyclinic.learned.file import Learned, load
from polyclinic.learned.groups import Groups
from polyclinic.learned.moments import Moments
from polyclinic.learned.origin import Origin
from polyclinic.learned.phenotypes import Phenotypes
from polyclinic.learned.similarity import Similarity

__all__ = ["Coverage", "Groups", "Learned", "Moments", "Origin", "Phenotypes", "Similarity", "load"]
