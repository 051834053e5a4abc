-- DE-SynPUF -> outcome. The files know the month of a death (2008 to 2010), not whether it was in hospital:
-- "died" is any recorded death, so this label means death within the three years.
-- "age" is in completed years on 1 January 2008, when the files begin; "sex" is 1 (male) or 2 (female) there.
SELECT b.desynpuf_id AS patient_id, b.desynpuf_id AS visit_id, CAST(NULL AS VARCHAR) AS starts, CAST(NULL AS VARCHAR) AS ends,
       CASE WHEN max(b.bene_death_dt) IS NULL THEN 0 ELSE 1 END AS died, CAST(NULL AS VARCHAR) AS site,
       FLOOR((20080101 - CAST(REPLACE(CAST(min(b.bene_birth_dt) AS VARCHAR), '-', '') AS INTEGER)) / 10000.0) AS age,
       CASE CAST(min(b.bene_sex_ident_cd) AS VARCHAR) WHEN '1' THEN 'M' WHEN '2' THEN 'F' END AS sex
FROM (
    SELECT desynpuf_id, bene_death_dt, bene_birth_dt, bene_sex_ident_cd FROM beneficiary_2008
    UNION ALL SELECT desynpuf_id, bene_death_dt, bene_birth_dt, bene_sex_ident_cd FROM beneficiary_2009
    UNION ALL SELECT desynpuf_id, bene_death_dt, bene_birth_dt, bene_sex_ident_cd FROM beneficiary_2010
) b
GROUP BY b.desynpuf_id
