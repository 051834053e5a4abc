-- MEDS -> events. One row out for every row; birth and death markers are dropped by name.
-- 'DIAGNOSIS//icd9cm//4280' is of kind diagnosis, system icd9cm, code 4280; 'SNOMED/84114007' of the kind mapped for SNOMED.
WITH split AS (
    SELECT *, CASE WHEN code LIKE '%//%' THEN '//' ELSE '/' END AS mark FROM meds
),
parts AS (
    SELECT *, split_part(code, mark, 1) AS prefix, split_part(code, mark, 2) AS second,
           CASE WHEN contains(code, mark) THEN substr(code, length(split_part(code, mark, 1)) + length(mark) + 1) ELSE code END AS rest
    FROM split
),
known AS (
    SELECT *, mark = '//' AND lower(second) IN ('icd9cm', 'icd9proc', 'icd10', 'icd10cm', 'icd10pcs', 'cpt', 'hcpcs', 'snomed',
                                                'loinc', 'rxnorm', 'ndc', 'atc', 'omop', 'phecode', 'local')
                     AND length(rest) > length(second) AS named
    FROM parts
)
SELECT 'meds' AS origin, p.subject_id AS patient_id, p.visit_id, p.time AS time,
       coalesce(k.kind, lower(p.prefix)) AS kind,
       CASE WHEN p.named THEN substr(p.rest, length(p.second) + 3) ELSE p.rest END AS code,
       CASE WHEN p.named THEN lower(p.second) END AS system, p.numeric_value AS value,
       c.description AS description, CAST(NULL AS VARCHAR) AS site,
       CASE WHEN p.code IN ('MEDS_BIRTH', 'MEDS_DEATH') THEN 'marker of birth or death' END AS dropped
FROM known p
LEFT JOIN meds_kinds k ON k.prefix = p.prefix
LEFT JOIN meds_codes c ON c.code = p.code
