"""The coordinator's half of a study: deadlines, quorum, attempts, checkpoints, the end."""
