"""The release gate: check, add noise, charge, get approval, store the bytes."""
