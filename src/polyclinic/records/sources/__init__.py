"""Read records from OMOP, MIMIC, eICU, FHIR, MEDS, DE-SynPUF, PostgreSQL and files."""
