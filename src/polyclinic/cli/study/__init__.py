"""Commands of a researcher, one file a verb: data, studies, models, reports."""
