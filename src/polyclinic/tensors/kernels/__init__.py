"""Inner loops over the nonzeros, compiled for the processor or a graphics card; and their plain numpy references."""
