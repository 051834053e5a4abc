"""Health and metrics of a node, for the monitoring that a hospital has already; off unless ``[monitor]`` is written."""
