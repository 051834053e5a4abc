"""Vector instructions for rows of a factor, used by the kernels."""
