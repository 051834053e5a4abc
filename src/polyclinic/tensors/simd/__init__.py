"""Rows of a factor in vector registers: what the kernels are written in."""
