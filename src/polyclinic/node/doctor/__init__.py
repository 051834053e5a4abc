"""What is wrong with a node and what to do: probes of processes, disk, certificates, data."""
