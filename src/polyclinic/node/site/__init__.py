"""A hospital's side of a study: answer the coordinator and check every update."""
