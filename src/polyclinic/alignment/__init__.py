"""Agree on the codes of a mode: public dictionary (default), ECDH ring, TRIP's polynomials (legacy, insecure)."""

from polyclinic.alignment.union import align

__all__ = ["align"]
