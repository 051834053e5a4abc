-- OMOP CDM -> visits: death in hospital is a death between the first and the last day of the visit.
SELECT v.person_id AS patient_id, v.visit_occurrence_id AS visit_id,
       COALESCE(v.visit_start_datetime, v.visit_start_date) AS starts,
       COALESCE(v.visit_end_datetime, v.visit_end_date) AS ends,
       CASE WHEN CAST(d.death_date AS DATE) >= CAST(v.visit_start_date AS DATE)
             AND CAST(d.death_date AS DATE) <= CAST(v.visit_end_date AS DATE) THEN 1 ELSE 0 END AS died,
       CAST(COALESCE(v.care_site_id, p.care_site_id) AS VARCHAR(50)) AS site,
       CAST(v.visit_concept_id AS VARCHAR(50)) AS type
FROM visit_occurrence v
LEFT JOIN person p ON p.person_id = v.person_id
LEFT JOIN death d ON d.person_id = v.person_id
