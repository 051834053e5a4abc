"""Labelled sparse tensors, sites, and the mathematics of CP factorization."""

from polyclinic.tensors.axis import Axis
from polyclinic.tensors.site import Site, Sites, pooled
from polyclinic.tensors.sparse import SparseTensor

__all__ = ["Axis", "Site", "Sites", "SparseTensor", "pooled"]
