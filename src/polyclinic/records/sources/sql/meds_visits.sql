-- MEDS -> outcome: one row a subject; "died" is a MEDS_DEATH marker at any time.
SELECT subject_id AS patient_id, subject_id AS visit_id, min(time) AS starts, max(time) AS ends,
       CASE WHEN bool_or(code = 'MEDS_DEATH') THEN 1 ELSE 0 END AS died, CAST(NULL AS VARCHAR) AS site
FROM meds
GROUP BY subject_id
