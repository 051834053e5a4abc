-- OMOP CDM 5.3 / 5.4 / 5.5 -> events by the source's own codes.
-- One row out for every row of the four tables; a row that cannot be used carries its reason in "dropped".
-- A missing time of day falls back to the date. The site is the visit's care site, or else the person's.
-- Plain SQL: runs in PostgreSQL, DuckDB and (types aside) SQL Server, Oracle, Snowflake.
SELECT 'condition_occurrence' AS origin, t.person_id AS patient_id, t.visit_occurrence_id AS visit_id,
       COALESCE(t.condition_start_datetime, t.condition_start_date) AS time,
       'diagnosis' AS kind,
       CAST(t.condition_source_value AS VARCHAR(255)) AS code,
       CASE c.vocabulary_id WHEN 'ICD9CM' THEN 'icd9cm' WHEN 'ICD9Proc' THEN 'icd9proc' WHEN 'ICD10CM' THEN 'icd10cm'
            WHEN 'ICD10' THEN 'icd10' WHEN 'ICD10PCS' THEN 'icd10pcs' WHEN 'SNOMED' THEN 'snomed' WHEN 'LOINC' THEN 'loinc'
            WHEN 'RxNorm' THEN 'rxnorm' WHEN 'NDC' THEN 'ndc' WHEN 'CPT4' THEN 'cpt' WHEN 'HCPCS' THEN 'hcpcs'
            WHEN 'ATC' THEN 'atc' ELSE 'local' END AS system,
       CAST(NULL AS DOUBLE PRECISION) AS value, c.concept_name AS description,
       CAST(COALESCE(v.care_site_id, p.care_site_id) AS VARCHAR(50)) AS site,
       CASE WHEN p.person_id IS NULL THEN 'patient is not in person'
            WHEN v.person_id <> t.person_id THEN 'visit of another patient' END AS dropped
FROM condition_occurrence t
LEFT JOIN person p ON p.person_id = t.person_id
LEFT JOIN visit_occurrence v ON v.visit_occurrence_id = t.visit_occurrence_id
LEFT JOIN concept c ON c.concept_id = t.condition_source_concept_id
UNION ALL
SELECT 'procedure_occurrence', t.person_id, t.visit_occurrence_id,
       COALESCE(t.procedure_datetime, t.procedure_date),
       'procedure',
       CAST(t.procedure_source_value AS VARCHAR(255)),
       CASE c.vocabulary_id WHEN 'ICD9CM' THEN 'icd9cm' WHEN 'ICD9Proc' THEN 'icd9proc' WHEN 'ICD10CM' THEN 'icd10cm'
            WHEN 'ICD10' THEN 'icd10' WHEN 'ICD10PCS' THEN 'icd10pcs' WHEN 'SNOMED' THEN 'snomed' WHEN 'LOINC' THEN 'loinc'
            WHEN 'RxNorm' THEN 'rxnorm' WHEN 'NDC' THEN 'ndc' WHEN 'CPT4' THEN 'cpt' WHEN 'HCPCS' THEN 'hcpcs'
            WHEN 'ATC' THEN 'atc' ELSE 'local' END,
       CAST(NULL AS DOUBLE PRECISION), c.concept_name,
       CAST(COALESCE(v.care_site_id, p.care_site_id) AS VARCHAR(50)),
       CASE WHEN p.person_id IS NULL THEN 'patient is not in person'
            WHEN v.person_id <> t.person_id THEN 'visit of another patient' END
FROM procedure_occurrence t
LEFT JOIN person p ON p.person_id = t.person_id
LEFT JOIN visit_occurrence v ON v.visit_occurrence_id = t.visit_occurrence_id
LEFT JOIN concept c ON c.concept_id = t.procedure_source_concept_id
UNION ALL
SELECT 'drug_exposure', t.person_id, t.visit_occurrence_id,
       COALESCE(t.drug_exposure_start_datetime, t.drug_exposure_start_date),
       'drug',
       CAST(t.drug_source_value AS VARCHAR(255)),
       CASE c.vocabulary_id WHEN 'ICD9CM' THEN 'icd9cm' WHEN 'ICD9Proc' THEN 'icd9proc' WHEN 'ICD10CM' THEN 'icd10cm'
            WHEN 'ICD10' THEN 'icd10' WHEN 'ICD10PCS' THEN 'icd10pcs' WHEN 'SNOMED' THEN 'snomed' WHEN 'LOINC' THEN 'loinc'
            WHEN 'RxNorm' THEN 'rxnorm' WHEN 'NDC' THEN 'ndc' WHEN 'CPT4' THEN 'cpt' WHEN 'HCPCS' THEN 'hcpcs'
            WHEN 'ATC' THEN 'atc' ELSE 'local' END,
       CAST(NULL AS DOUBLE PRECISION), c.concept_name,
       CAST(COALESCE(v.care_site_id, p.care_site_id) AS VARCHAR(50)),
       CASE WHEN p.person_id IS NULL THEN 'patient is not in person'
            WHEN v.person_id <> t.person_id THEN 'visit of another patient' END
FROM drug_exposure t
LEFT JOIN person p ON p.person_id = t.person_id
LEFT JOIN visit_occurrence v ON v.visit_occurrence_id = t.visit_occurrence_id
LEFT JOIN concept c ON c.concept_id = t.drug_source_concept_id
UNION ALL
-- A result is abnormal outside its own range, or where the result itself says high, low or abnormal.
SELECT 'measurement', t.person_id, t.visit_occurrence_id,
       COALESCE(t.measurement_datetime, t.measurement_date),
       CASE WHEN CAST(t.value_as_number AS DOUBLE PRECISION) < CAST(t.range_low AS DOUBLE PRECISION)
              OR CAST(t.value_as_number AS DOUBLE PRECISION) > CAST(t.range_high AS DOUBLE PRECISION)
              OR LOWER(r.concept_name) IN ('high', 'low', 'abnormal', 'very high', 'very low',
                                           'above reference range', 'below reference range', 'outside reference range')
            THEN 'abnormal_lab' ELSE 'lab' END,
       CAST(t.measurement_source_value AS VARCHAR(255)),
       CASE c.vocabulary_id WHEN 'ICD9CM' THEN 'icd9cm' WHEN 'ICD9Proc' THEN 'icd9proc' WHEN 'ICD10CM' THEN 'icd10cm'
            WHEN 'ICD10' THEN 'icd10' WHEN 'ICD10PCS' THEN 'icd10pcs' WHEN 'SNOMED' THEN 'snomed' WHEN 'LOINC' THEN 'loinc'
            WHEN 'RxNorm' THEN 'rxnorm' WHEN 'NDC' THEN 'ndc' WHEN 'CPT4' THEN 'cpt' WHEN 'HCPCS' THEN 'hcpcs'
            WHEN 'ATC' THEN 'atc' ELSE 'local' END,
       CAST(t.value_as_number AS DOUBLE PRECISION), c.concept_name,
       CAST(COALESCE(v.care_site_id, p.care_site_id) AS VARCHAR(50)),
       CASE WHEN p.person_id IS NULL THEN 'patient is not in person'
            WHEN v.person_id <> t.person_id THEN 'visit of another patient' END
FROM measurement t
LEFT JOIN person p ON p.person_id = t.person_id
LEFT JOIN visit_occurrence v ON v.visit_occurrence_id = t.visit_occurrence_id
LEFT JOIN concept c ON c.concept_id = t.measurement_source_concept_id
LEFT JOIN concept r ON r.concept_id = t.value_as_concept_id
