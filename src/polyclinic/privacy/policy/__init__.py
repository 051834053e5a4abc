"""The rules that the data owner sets."""
