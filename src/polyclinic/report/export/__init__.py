"""Export a run: tables, OMOP cohorts, concept sets, OHDSI results, review sheets."""
