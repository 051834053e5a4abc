"""Quantised sums: a few bits a number, with error correction; a transport of TRIP and SumALS."""
