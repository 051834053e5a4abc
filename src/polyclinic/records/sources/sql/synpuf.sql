-- CMS DE-SynPUF -> events: every code column of a claim becomes one row; an empty cell carries the reason 'empty cell'.
-- SynPUF keeps many diagnosis codes in its procedure columns (a known defect): a procedure has two to four digits,
-- anything else there is dropped and counted. A claim may have two segments: CLM_ID and SEGMENT together are the visit.
WITH claims AS (
    SELECT 'inpatient_claims' AS origin, * FROM inpatient_claims
    UNION ALL
    SELECT 'outpatient_claims' AS origin, * FROM outpatient_claims
),
cells AS (
    SELECT origin || '.diagnosis' AS origin, desynpuf_id, clm_id, segment, clm_from_dt, in_folder, 'diagnosis' AS kind,
           'icd9cm' AS system, unnest([icd9_dgns_cd_1, icd9_dgns_cd_2, icd9_dgns_cd_3, icd9_dgns_cd_4, icd9_dgns_cd_5, icd9_dgns_cd_6,
           icd9_dgns_cd_7, icd9_dgns_cd_8, icd9_dgns_cd_9, icd9_dgns_cd_10]) AS code
    FROM claims
    UNION ALL
    SELECT origin || '.procedure', desynpuf_id, clm_id, segment, clm_from_dt, in_folder, 'procedure',
           'icd9proc', unnest([icd9_prcdr_cd_1, icd9_prcdr_cd_2, icd9_prcdr_cd_3, icd9_prcdr_cd_4, icd9_prcdr_cd_5, icd9_prcdr_cd_6])
    FROM claims
    UNION ALL
    SELECT origin || '.hcpcs', desynpuf_id, clm_id, segment, clm_from_dt, in_folder, 'hcpcs',
           'hcpcs', unnest([hcpcs_cd_1, hcpcs_cd_2, hcpcs_cd_3, hcpcs_cd_4, hcpcs_cd_5, hcpcs_cd_6, hcpcs_cd_7, hcpcs_cd_8,
           hcpcs_cd_9, hcpcs_cd_10, hcpcs_cd_11, hcpcs_cd_12, hcpcs_cd_13, hcpcs_cd_14, hcpcs_cd_15, hcpcs_cd_16,
           hcpcs_cd_17, hcpcs_cd_18, hcpcs_cd_19, hcpcs_cd_20, hcpcs_cd_21, hcpcs_cd_22, hcpcs_cd_23, hcpcs_cd_24,
           hcpcs_cd_25, hcpcs_cd_26, hcpcs_cd_27, hcpcs_cd_28, hcpcs_cd_29, hcpcs_cd_30, hcpcs_cd_31, hcpcs_cd_32,
           hcpcs_cd_33, hcpcs_cd_34, hcpcs_cd_35, hcpcs_cd_36, hcpcs_cd_37, hcpcs_cd_38, hcpcs_cd_39, hcpcs_cd_40,
           hcpcs_cd_41, hcpcs_cd_42, hcpcs_cd_43, hcpcs_cd_44, hcpcs_cd_45])
    FROM claims
)
SELECT origin, desynpuf_id AS patient_id, CAST(clm_id AS VARCHAR) || '-' || coalesce(CAST(segment AS VARCHAR), '1') AS visit_id,
       substr(CAST(clm_from_dt AS VARCHAR), 1, 4) || '-' || substr(CAST(clm_from_dt AS VARCHAR), 5, 2) || '-'
       || substr(CAST(clm_from_dt AS VARCHAR), 7, 2) AS time,
       kind, code, system, CAST(NULL AS DOUBLE) AS value, CAST(NULL AS VARCHAR) AS description, in_folder AS site,
       CASE WHEN code IS NULL OR trim(code) = '' THEN 'empty cell'
            WHEN kind = 'diagnosis' AND NOT regexp_matches(code, '^([0-9]{3,5}|V[0-9]{2,4}|E[0-9]{3,4})$')
            THEN 'diagnosis column holds no ICD-9 diagnosis (by shape)'
            WHEN kind = 'procedure' AND NOT regexp_matches(code, '^[0-9]{2,4}$')
            THEN 'procedure column holds a diagnosis (by shape)' END AS dropped
FROM cells
