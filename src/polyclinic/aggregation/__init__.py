"""Aggregators, interchangeable under every method: plain, robust, secure."""
