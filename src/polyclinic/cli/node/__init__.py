"""Commands of a hospital's node and of the coordinator, one file a verb."""
