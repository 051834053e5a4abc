-- FHIR R4 bulk export -> events. One row out for every resource; the first coding of a resource is its code.
-- Times keep the hospital's own clock; a date given as a year or a month counts as its first day.
WITH medication AS (
    SELECT json ->> '$.id' AS id, CAST(min(CAST(json -> '$.code' AS VARCHAR)) AS JSON) AS code FROM "fhir Medication" GROUP BY 1
),
encounters AS (
    SELECT json ->> '$.id' AS id, regexp_replace(json ->> '$.subject.reference', '^(.*/)?(urn:uuid:)?', '') AS patient_id,
           min(json ->> '$.serviceProvider.reference') AS site
    FROM "fhir Encounter" GROUP BY 1, 2
),
events AS (
SELECT 'Condition' AS origin, json, json -> '$.code' AS concept,
       json ->> '$.encounter.reference' AS encounter, json ->> '$.subject.reference' AS subject,
       coalesce(json ->> '$.onsetDateTime', json ->> '$.onsetPeriod.start', json ->> '$.recordedDate') AS at,
       'diagnosis' AS kind,
       CASE WHEN json ->> '$.verificationStatus.coding[0].code' IN ('entered-in-error', 'refuted')
            THEN 'refuted or entered in error' END AS dropped
FROM "fhir Condition"
UNION ALL
SELECT 'Procedure', json, json -> '$.code', json ->> '$.encounter.reference', json ->> '$.subject.reference',
       coalesce(json ->> '$.performedDateTime', json ->> '$.performedPeriod.start', json ->> '$.occurrenceDateTime'),
       'procedure',
       CASE WHEN json ->> '$.status' IN ('entered-in-error', 'not-done') THEN 'not done or entered in error' END
FROM "fhir Procedure"
UNION ALL
SELECT 'MedicationRequest', r.json, coalesce(r.json -> '$.medicationCodeableConcept', m.code),
       r.json ->> '$.encounter.reference', r.json ->> '$.subject.reference', r.json ->> '$.authoredOn', 'drug',
       CASE WHEN r.json ->> '$.status' IN ('entered-in-error', 'cancelled') THEN 'cancelled or entered in error' END
FROM "fhir MedicationRequest" r
LEFT JOIN medication m ON m.id = regexp_replace(r.json ->> '$.medicationReference.reference', '^(.*/)?(urn:uuid:)?', '')
UNION ALL
SELECT 'MedicationAdministration', r.json, coalesce(r.json -> '$.medicationCodeableConcept', m.code),
       coalesce(r.json ->> '$.context.reference', r.json ->> '$.encounter.reference'), r.json ->> '$.subject.reference',
       coalesce(r.json ->> '$.effectiveDateTime', r.json ->> '$.effectivePeriod.start'), 'drug',
       CASE WHEN r.json ->> '$.status' IN ('entered-in-error', 'not-done') THEN 'not done or entered in error' END
FROM "fhir MedicationAdministration" r
LEFT JOIN medication m ON m.id = regexp_replace(r.json ->> '$.medicationReference.reference', '^(.*/)?(urn:uuid:)?', '')
UNION ALL
-- A result is abnormal where the laboratory says so, or outside its own reference range.
SELECT 'Observation', json, json -> '$.code', json ->> '$.encounter.reference', json ->> '$.subject.reference',
       coalesce(json ->> '$.effectiveDateTime', json ->> '$.effectivePeriod.start', json ->> '$.issued'),
       CASE WHEN json ->> '$.interpretation[0].coding[0].code' IN ('H', 'L', 'A', 'HH', 'LL', 'AA', 'HU', 'LU')
              OR TRY_CAST(json ->> '$.valueQuantity.value' AS DOUBLE)
                 < TRY_CAST(json ->> '$.referenceRange[0].low.value' AS DOUBLE)
              OR TRY_CAST(json ->> '$.valueQuantity.value' AS DOUBLE)
                 > TRY_CAST(json ->> '$.referenceRange[0].high.value' AS DOUBLE)
            THEN 'abnormal_lab' ELSE 'lab' END,
       CASE WHEN json ->> '$.status' IN ('entered-in-error', 'cancelled') THEN 'cancelled or entered in error'
            WHEN NOT list_contains(json ->> '$.category[*].coding[*].code', 'laboratory')
            THEN 'not a laboratory result' END
FROM "fhir Observation"
)
SELECT e.origin, regexp_replace(e.subject, '^(.*/)?(urn:uuid:)?', '') AS patient_id,
       regexp_replace(e.encounter, '^(.*/)?(urn:uuid:)?', '') AS visit_id,
       CASE length(e.at) WHEN 4 THEN e.at || '-01-01' WHEN 7 THEN e.at || '-01' ELSE e.at END AS time,
       e.kind, coalesce(e.concept ->> '$.coding[0].code', e.concept ->> '$.text') AS code,
       CASE e.concept ->> '$.coding[0].system'
            WHEN 'http://hl7.org/fhir/sid/icd-9-cm' THEN CASE e.kind WHEN 'procedure' THEN 'icd9proc' ELSE 'icd9cm' END
            WHEN 'http://hl7.org/fhir/sid/icd-10-cm' THEN 'icd10cm' WHEN 'http://hl7.org/fhir/sid/icd-10' THEN 'icd10'
            WHEN 'http://www.cms.gov/Medicare/Coding/ICD10' THEN 'icd10pcs' WHEN 'http://snomed.info/sct' THEN 'snomed'
            WHEN 'http://loinc.org' THEN 'loinc' WHEN 'http://www.nlm.nih.gov/research/umls/rxnorm' THEN 'rxnorm'
            WHEN 'http://hl7.org/fhir/sid/ndc' THEN 'ndc' WHEN 'http://www.whocc.no/atc' THEN 'atc'
            WHEN 'http://www.ama-assn.org/go/cpt' THEN 'cpt' ELSE 'local' END AS system,
       e.json ->> '$.valueQuantity.value' AS value,
       coalesce(e.concept ->> '$.coding[0].display', e.concept ->> '$.text') AS description,
       v.site, e.dropped
FROM events e
LEFT JOIN encounters v ON v.id = regexp_replace(e.encounter, '^(.*/)?(urn:uuid:)?', '')
  AND v.patient_id = regexp_replace(e.subject, '^(.*/)?(urn:uuid:)?', '')
