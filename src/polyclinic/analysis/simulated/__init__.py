"""What only a simulation can know, because it sees all sites: association, held-out fit, presence, summary figures."""
