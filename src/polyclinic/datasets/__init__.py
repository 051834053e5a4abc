"""Synthetic networks with a known truth, and loaders of open data by path."""

from polyclinic.datasets.aminoacid import load_aminoacid
from polyclinic.datasets.claims import load_diabetes130, load_mimic3_demo, load_synpuf
from polyclinic.datasets.courses import planted_courses
from polyclinic.datasets.dpfact import dpfact_synthetic
from polyclinic.datasets.icu import icu_network
from polyclinic.datasets.open_data import open_data
from polyclinic.datasets.planted import planted_counts, planted_four_mode
from polyclinic.datasets.samples import Samples, gene_filter, load_colon, load_leukemia, load_parkinsons
from polyclinic.datasets.split import split
from polyclinic.datasets.truth import Truth, expected_auc
from polyclinic.datasets.unpsl import PlantedSimilarity, unpsl_synthetic
from polyclinic.datasets.workload import skewed_counts

__all__ = [
    "PlantedSimilarity",
    "Samples",
    "Truth",
    "dpfact_synthetic",
    "expected_auc",
    "gene_filter",
    "icu_network",
    "load_aminoacid",
    "load_colon",
    "load_diabetes130",
    "load_leukemia",
    "load_mimic3_demo",
    "load_parkinsons",
    "load_synpuf",
    "open_data",
    "planted_counts",
    "planted_courses",
    "planted_four_mode",
    "skewed_counts",
    "split",
    "unpsl_synthetic",
]
