"""What was learned, as a value: saved in one file, loaded, applied to new patients, adapted to a new hospital."""

from polyclinic.models.file import Learned, load
from polyclinic.models.mixtures.groups import Groups
from polyclinic.models.moments import Moments
from polyclinic.models.origin import Origin
from polyclinic.models.phenotypes.coverage import Coverage
from polyclinic.models.phenotypes.phenotypes import Phenotypes
from polyclinic.models.similarity import Similarity

__all__ = ["Coverage", "Groups", "Learned", "Moments", "Origin", "Phenotypes", "Similarity", "load"]
