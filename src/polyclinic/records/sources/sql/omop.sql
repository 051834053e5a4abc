-- OMOP CDM 5.3 / 5.4 / 5.5 -> events by standard concepts.
-- One row out for every row of the four tables; a row that cannot be used carries its reason in "dropped".
-- A missing time of day falls back to the date. The site is the visit's care site, or else the person's.
-- Plain SQL: runs in PostgreSQL, DuckDB and (types aside) SQL Server, Oracle, Snowflake.
SELECT 'condition_occurrence' AS origin, t.person_id AS patient_id, t.visit_occurrence_id AS visit_id,
       COALESCE(t.condition_start_datetime, t.condition_start_date) AS time,
       'diagnosis' AS kind,
       CAST(t.condition_concept_id AS VARCHAR(50)) AS code, 'omop' AS system,
       CAST(NULL AS DOUBLE PRECISION) AS value, c.concept_name AS description,
       CAST(COALESCE(v.care_site_id, p.care_site_id) AS VARCHAR(50)) AS site,
       CASE WHEN COALESCE(CAST(t.condition_concept_id AS BIGINT), 0) = 0 THEN 'concept_id 0: no standard concept'
            WHEN c.concept_id IS NULL THEN 'concept is not in the vocabulary'
            WHEN p.person_id IS NULL THEN 'patient is not in person'
            WHEN v.person_id <> t.person_id THEN 'visit of another patient' END AS dropped
FROM condition_occurrence t
LEFT JOIN person p ON p.person_id = t.person_id
LEFT JOIN visit_occurrence v ON v.visit_occurrence_id = t.visit_occurrence_id
LEFT JOIN concept c ON c.concept_id = t.condition_concept_id
UNION ALL
SELECT 'procedure_occurrence', t.person_id, t.visit_occurrence_id,
       COALESCE(t.procedure_datetime, t.procedure_date),
       'procedure',
       CAST(t.procedure_concept_id AS VARCHAR(50)), 'omop',
       CAST(NULL AS DOUBLE PRECISION), c.concept_name,
       CAST(COALESCE(v.care_site_id, p.care_site_id) AS VARCHAR(50)),
       CASE WHEN COALESCE(CAST(t.procedure_concept_id AS BIGINT), 0) = 0 THEN 'concept_id 0: no standard concept'
            WHEN c.concept_id IS NULL THEN 'concept is not in the vocabulary'
            WHEN p.person_id IS NULL THEN 'patient is not in person'
            WHEN v.person_id <> t.person_id THEN 'visit of another patient' END
FROM procedure_occurrence t
LEFT JOIN person p ON p.person_id = t.person_id
LEFT JOIN visit_occurrence v ON v.visit_occurrence_id = t.visit_occurrence_id
LEFT JOIN concept c ON c.concept_id = t.procedure_concept_id
UNION ALL
SELECT 'drug_exposure', t.person_id, t.visit_occurrence_id,
       COALESCE(t.drug_exposure_start_datetime, t.drug_exposure_start_date),
       'drug',
       CAST(t.drug_concept_id AS VARCHAR(50)), 'omop',
       CAST(NULL AS DOUBLE PRECISION), c.concept_name,
       CAST(COALESCE(v.care_site_id, p.care_site_id) AS VARCHAR(50)),
       CASE WHEN COALESCE(CAST(t.drug_concept_id AS BIGINT), 0) = 0 THEN 'concept_id 0: no standard concept'
            WHEN c.concept_id IS NULL THEN 'concept is not in the vocabulary'
            WHEN p.person_id IS NULL THEN 'patient is not in person'
            WHEN v.person_id <> t.person_id THEN 'visit of another patient' END
FROM drug_exposure t
LEFT JOIN person p ON p.person_id = t.person_id
LEFT JOIN visit_occurrence v ON v.visit_occurrence_id = t.visit_occurrence_id
LEFT JOIN concept c ON c.concept_id = t.drug_concept_id
UNION ALL
-- A result is abnormal outside its own range, or where the result itself says high, low or abnormal.
SELECT 'measurement', t.person_id, t.visit_occurrence_id,
       COALESCE(t.measurement_datetime, t.measurement_date),
       CASE WHEN CAST(t.value_as_number AS DOUBLE PRECISION) < CAST(t.range_low AS DOUBLE PRECISION)
              OR CAST(t.value_as_number AS DOUBLE PRECISION) > CAST(t.range_high AS DOUBLE PRECISION)
              OR LOWER(r.concept_name) IN ('high', 'low', 'abnormal', 'very high', 'very low',
                                           'above reference range', 'below reference range', 'outside reference range')
            THEN 'abnormal_lab' ELSE 'lab' END,
       CAST(t.measurement_concept_id AS VARCHAR(50)), 'omop',
       CAST(t.value_as_number AS DOUBLE PRECISION), c.concept_name,
       CAST(COALESCE(v.care_site_id, p.care_site_id) AS VARCHAR(50)),
       CASE WHEN COALESCE(CAST(t.measurement_concept_id AS BIGINT), 0) = 0 THEN 'concept_id 0: no standard concept'
            WHEN c.concept_id IS NULL THEN 'concept is not in the vocabulary'
            WHEN p.person_id IS NULL THEN 'patient is not in person'
            WHEN v.person_id <> t.person_id THEN 'visit of another patient' END
FROM measurement t
LEFT JOIN person p ON p.person_id = t.person_id
LEFT JOIN visit_occurrence v ON v.visit_occurrence_id = t.visit_occurrence_id
LEFT JOIN concept c ON c.concept_id = t.measurement_concept_id
LEFT JOIN concept r ON r.concept_id = t.value_as_concept_id
