"""Diagnose a node: processes, disk, certificates, clock, data."""
