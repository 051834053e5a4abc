"""Run a study file in one process and write its run folder. Registry of methods."""
