"""Charts: inline SVG for the report, Altair for notebooks."""
