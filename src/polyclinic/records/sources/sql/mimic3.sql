-- MIMIC-III -> events. One row out for every row of the four event tables; nothing is filtered here,
-- a row that cannot be used carries its reason in "dropped".
-- The site of an admission is the care unit of its first intensive-care stay.
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
       'diagnosis' AS kind, d.icd9_code AS code, 'icd9cm' AS system, NULL AS value, n.long_title AS description,
       v.site AS site, NULL AS dropped
FROM diagnoses_icd d
LEFT JOIN visits v ON v.hadm_id = d.hadm_id
LEFT JOIN d_icd_diagnoses n ON n.icd9_code = d.icd9_code
UNION ALL
SELECT 'procedures_icd', p.subject_id, p.hadm_id, v.admittime,
       'procedure', p.icd9_code, 'icd9proc', NULL, n.long_title,
       v.site, NULL
FROM procedures_icd p
LEFT JOIN visits v ON v.hadm_id = p.hadm_id
LEFT JOIN d_icd_procedures n ON n.icd9_code = p.icd9_code
UNION ALL
-- A drug counts on the day it was started.
SELECT 'prescriptions', r.subject_id, r.hadm_id, r.startdate,
       'drug', r.drug, 'local', NULL, r.drug,
       v.site, NULL
FROM prescriptions r
LEFT JOIN visits v ON v.hadm_id = r.hadm_id
UNION ALL
-- The laboratory's own flag says what is abnormal; 'delta' (a sudden change) is not.
SELECT 'labevents', l.subject_id, l.hadm_id, l.charttime,
       CASE WHEN l.flag = 'abnormal' THEN 'abnormal_lab' ELSE 'lab' END, l.itemid, 'local', l.valuenum, n.label,
       v.site, NULL
FROM labevents l
LEFT JOIN visits v ON v.hadm_id = l.hadm_id
LEFT JOIN d_labitems n ON n.itemid = l.itemid
