"""Contract checks that every method, aggregator and source must pass, ours or a stranger's (pc.check_protocol, pc.check_sum, pc.check_source)."""
