"""Decide whether a site takes part: policy, budget, data, the owner's consent, retention."""
