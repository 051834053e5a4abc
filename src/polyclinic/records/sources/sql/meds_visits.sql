-- MEDS -> outcome: one row a subject; "died" is a MEDS_DEATH marker at any time. A birth is no visit.
SELECT subject_id AS patient_id, subject_id AS visit_id, min(CASE WHEN code <> 'MEDS_BIRTH' THEN time END) AS starts, max(time) AS ends,
       CASE WHEN bool_or(code = 'MEDS_DEATH') THEN 1 ELSE 0 END AS died, CAST(NULL AS VARCHAR) AS site
FROM meds
GROUP BY subject_id
