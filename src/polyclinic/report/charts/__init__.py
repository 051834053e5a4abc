"""Charts: SVG for the report, Altair for notebooks."""
