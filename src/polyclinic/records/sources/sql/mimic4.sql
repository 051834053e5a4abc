-- MIMIC-IV -> events. One row out for every row of the four event tables.
-- Codes of ICD-9 and ICD-10 stand side by side: each row names its own system.
WITH stays AS (
    SELECT hadm_id, first_careunit AS site, ROW_NUMBER() OVER (PARTITION BY hadm_id ORDER BY intime) AS nth
    FROM icustays
),
visits AS (
    SELECT a.hadm_id, a.admittime, s.site
    FROM admissions a
    LEFT JOIN stays s ON s.hadm_id = a.hadm_id AND s.nth = 1
)
SELECT 'diagnoses_icd' AS origin, d.subject_id AS patient_id, d.hadm_id AS visit_id, v.admittime AS time,
       'diagnosis' AS kind, TRIM(d.icd_code) AS code,
       CASE CAST(d.icd_version AS VARCHAR(9)) WHEN '9' THEN 'icd9cm' WHEN '10' THEN 'icd10cm' END AS system,
       NULL AS value, n.long_title AS description, v.site AS site,
       CASE WHEN CAST(d.icd_version AS VARCHAR(9)) NOT IN ('9', '10') THEN 'ICD version is neither 9 nor 10' END AS dropped
FROM diagnoses_icd d
LEFT JOIN visits v ON v.hadm_id = d.hadm_id
LEFT JOIN d_icd_diagnoses n ON TRIM(n.icd_code) = TRIM(d.icd_code) AND n.icd_version = d.icd_version
UNION ALL
-- A procedure has its own day.
SELECT 'procedures_icd', p.subject_id, p.hadm_id, COALESCE(p.chartdate, v.admittime),
       'procedure', TRIM(p.icd_code),
       CASE CAST(p.icd_version AS VARCHAR(9)) WHEN '9' THEN 'icd9proc' WHEN '10' THEN 'icd10pcs' END,
       NULL, n.long_title, v.site,
       CASE WHEN CAST(p.icd_version AS VARCHAR(9)) NOT IN ('9', '10') THEN 'ICD version is neither 9 nor 10' END
FROM procedures_icd p
LEFT JOIN visits v ON v.hadm_id = p.hadm_id
LEFT JOIN d_icd_procedures n ON TRIM(n.icd_code) = TRIM(p.icd_code) AND n.icd_version = p.icd_version
UNION ALL
SELECT 'prescriptions', r.subject_id, r.hadm_id, r.starttime, 'drug', r.drug, 'local', NULL, r.drug, v.site, NULL
FROM prescriptions r
LEFT JOIN visits v ON v.hadm_id = r.hadm_id
UNION ALL
SELECT 'labevents', l.subject_id, l.hadm_id, l.charttime,
       CASE WHEN l.flag = 'abnormal' THEN 'abnormal_lab' ELSE 'lab' END, CAST(l.itemid AS VARCHAR(20)), 'local',
       l.valuenum, n.label, v.site, NULL
FROM labevents l
LEFT JOIN visits v ON v.hadm_id = l.hadm_id
LEFT JOIN d_labitems n ON n.itemid = l.itemid
