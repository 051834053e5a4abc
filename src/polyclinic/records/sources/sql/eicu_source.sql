-- eICU -> events with the words of the source: diagnosisstring, a path, instead of ICD-9 codes ([source] codes = "source").
-- One row out for every row of the four event tables.
-- eICU has no dates, only minutes from the start of a unit stay. Each hospital stay of a patient is given its own
-- origin, 1,000 days apart in order of discharge, so that differences are true within a stay and never small between stays.
WITH numbered AS (
    SELECT CAST(patientunitstayid AS VARCHAR) AS stay, CAST(patienthealthsystemstayid AS VARCHAR) AS hospital_stay,
           uniquepid, CAST(hospitalid AS VARCHAR) AS hospitalid, hospitaldischargestatus,
           CAST(hospitaladmitoffset AS BIGINT) AS admitted, CAST(hospitaldischargeoffset AS BIGINT) AS discharged,
           DENSE_RANK() OVER (PARTITION BY uniquepid
                              ORDER BY hospitaldischargeyear, patienthealthsystemstayid) AS nth
    FROM patient
),
stays AS (
    SELECT *, TIMESTAMP '2000-01-01 00:00:00' + nth * INTERVAL 1000 DAY AS origin_time FROM numbered
)
SELECT 'diagnosis' AS origin, s.uniquepid AS patient_id, s.hospital_stay AS visit_id,
       s.origin_time + (CAST(d.diagnosisoffset AS BIGINT) - s.admitted) * INTERVAL 1 MINUTE AS time,
       'diagnosis' AS kind,
       d.diagnosisstring AS code,
       'local' AS system, CAST(NULL AS VARCHAR) AS value, d.diagnosisstring AS description, s.hospitalid AS site,
       CASE WHEN s.stay IS NULL THEN 'stay is not in patient'
            WHEN d.diagnosisoffset IS NOT NULL AND CAST(d.diagnosisoffset AS BIGINT) IS NULL THEN 'offset is not a number'
            WHEN d.diagnosisstring IS NULL THEN 'no diagnosisstring' END AS dropped
FROM diagnosis d LEFT JOIN stays s ON s.stay = CAST(d.patientunitstayid AS VARCHAR)
UNION ALL
SELECT 'treatment', s.uniquepid, s.hospital_stay,
       s.origin_time + (CAST(t.treatmentoffset AS BIGINT) - s.admitted) * INTERVAL 1 MINUTE,
       'procedure', t.treatmentstring, 'local', NULL, t.treatmentstring, s.hospitalid,
       CASE WHEN s.stay IS NULL THEN 'stay is not in patient'
            WHEN t.treatmentoffset IS NOT NULL AND CAST(t.treatmentoffset AS BIGINT) IS NULL THEN 'offset is not a number' END
FROM treatment t LEFT JOIN stays s ON s.stay = CAST(t.patientunitstayid AS VARCHAR)
UNION ALL
SELECT 'medication', s.uniquepid, s.hospital_stay,
       s.origin_time + (CAST(m.drugstartoffset AS BIGINT) - s.admitted) * INTERVAL 1 MINUTE,
       'drug', m.drugname, 'local', NULL, m.drugname, s.hospitalid,
       CASE WHEN s.stay IS NULL THEN 'stay is not in patient'
            WHEN m.drugstartoffset IS NOT NULL AND CAST(m.drugstartoffset AS BIGINT) IS NULL THEN 'offset is not a number'
            WHEN m.drugordercancelled = 'Yes' THEN 'order was cancelled'
            WHEN m.drugname IS NULL THEN 'no drug name' END
FROM medication m LEFT JOIN stays s ON s.stay = CAST(m.patientunitstayid AS VARCHAR)
UNION ALL
-- eICU has no abnormal flag: give [tensor] ranges = "ranges.csv" to tell abnormal results.
SELECT 'lab', s.uniquepid, s.hospital_stay,
       s.origin_time + (CAST(l.labresultoffset AS BIGINT) - s.admitted) * INTERVAL 1 MINUTE,
       'lab', l.labname, 'local', CAST(l.labresult AS VARCHAR), l.labname, s.hospitalid,
       CASE WHEN s.stay IS NULL THEN 'stay is not in patient'
            WHEN l.labresultoffset IS NOT NULL AND CAST(l.labresultoffset AS BIGINT) IS NULL THEN 'offset is not a number' END
FROM lab l LEFT JOIN stays s ON s.stay = CAST(l.patientunitstayid AS VARCHAR)
