"""The coordinator's side of a study: deadlines, quorum, checkpoints, dropouts."""
