"""Where records come from: one file a kind of database or export (OMOP, MIMIC, eICU, FHIR, MEDS, CSV ...)."""
