"""Engines run a protocol: in this process, or between hospitals on NVIDIA FLARE."""
