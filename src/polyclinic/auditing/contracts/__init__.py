"""Contract checks for methods, aggregators and sources (check_protocol, check_sum, check_source)."""
