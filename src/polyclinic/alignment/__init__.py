"""Agree on the codes of a mode: public dictionary (default), ECDH ring, codes that occur together."""

from polyclinic.alignment.ecdh_ring import align_by_ring
from polyclinic.alignment.union import align, align_to

__all__ = ["align", "align_by_ring", "align_to"]
