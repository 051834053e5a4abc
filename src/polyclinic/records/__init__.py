"""Turn a hospital's records into a tensor and account for every row."""
