"""Commands for researchers: data, studies, models, reports."""
