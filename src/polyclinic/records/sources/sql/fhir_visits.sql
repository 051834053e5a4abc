-- FHIR -> visits: a death in hospital is a discharge disposition 'exp', or a death during the encounter.
SELECT regexp_replace(v.json ->> '$.subject.reference', '^(.*/)?(urn:uuid:)?', '') AS patient_id, v.json ->> '$.id' AS visit_id,
       substr(v.json ->> '$.period.start', 1, 19) AS starts, substr(v.json ->> '$.period.end', 1, 19) AS ends,
       CASE WHEN v.json ->> '$.hospitalization.dischargeDisposition.coding[0].code' = 'exp' THEN 1
            WHEN substr(p.deceased, 1, 10) >= substr(v.json ->> '$.period.start', 1, 10)
             AND substr(p.deceased, 1, 10) <= substr(v.json ->> '$.period.end', 1, 10) THEN 1
            ELSE 0 END AS died,
       v.json ->> '$.serviceProvider.reference' AS site
FROM "fhir Encounter" v
LEFT JOIN (SELECT json ->> '$.id' AS id, min(json ->> '$.deceasedDateTime') AS deceased FROM "fhir Patient" GROUP BY 1) p
  ON p.id = regexp_replace(v.json ->> '$.subject.reference', '^(.*/)?(urn:uuid:)?', '')
