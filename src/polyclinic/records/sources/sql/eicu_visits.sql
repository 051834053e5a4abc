-- eICU -> visits: one row a unit stay, named by its hospital stay as in the events.
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
SELECT uniquepid AS patient_id, hospital_stay AS visit_id, stay AS unit_stay, origin_time AS starts,
       origin_time + (discharged - admitted) * INTERVAL 1 MINUTE AS ends,
       CASE hospitaldischargestatus WHEN 'Expired' THEN 1 WHEN 'Alive' THEN 0 END AS died, hospitalid AS site
FROM stays
