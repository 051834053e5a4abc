"""A study from its file to its run folder, in one process; which method a name stands for; what follows the fit."""
