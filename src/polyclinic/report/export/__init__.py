"""Files from a run: tables, OMOP cohorts, concept sets, OHDSI results, review sheets, the owner's own view."""
