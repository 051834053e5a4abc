"""What was learned, as a value: saved in one file, loaded, applied to new patients, adapted to a new hospital."""
