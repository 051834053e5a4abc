"""Test which phenotypes replicate: split halves, other starts, other ranks, permuted data."""
