-- MIMIC-III -> visits: one row an admission. patients.expire_flag is not used: it also counts deaths years later.
WITH stays AS (
    SELECT hadm_id, first_careunit AS site, ROW_NUMBER() OVER (PARTITION BY hadm_id ORDER BY intime) AS nth
    FROM icustays
)
SELECT a.subject_id AS patient_id, a.hadm_id AS visit_id, a.admittime AS starts, a.dischtime AS ends,
       a.hospital_expire_flag AS died, s.site AS site,
       a.admission_type AS type
FROM admissions a
LEFT JOIN stays s ON s.hadm_id = a.hadm_id AND s.nth = 1
