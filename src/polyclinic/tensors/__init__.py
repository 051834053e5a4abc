"""Labelled sparse tensors, and the mathematics of CP factorization."""

from polyclinic.tensors.axis import Axis
from polyclinic.tensors.sparse import SparseTensor

__all__ = ["Axis", "SparseTensor"]
