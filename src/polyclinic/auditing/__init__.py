"""Attack our own privacy: made-up patients through the real method, and what their releases tell."""
