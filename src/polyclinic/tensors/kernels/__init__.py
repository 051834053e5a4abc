"""Compiled loops over the nonzeros, for the processor and the GPU, and their numpy references."""
