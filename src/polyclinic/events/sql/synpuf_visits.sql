-- DE-SynPUF -> outcome. The files know the month of a death (2008 to 2010), not whether it was in hospital:
-- "died" is any recorded death, so this label means death within the three years.
SELECT b.desynpuf_id AS patient_id, b.desynpuf_id AS visit_id, CAST(NULL AS VARCHAR) AS starts, CAST(NULL AS VARCHAR) AS ends,
       CASE WHEN max(b.bene_death_dt) IS NULL THEN 0 ELSE 1 END AS died, CAST(NULL AS VARCHAR) AS site
FROM (
    SELECT desynpuf_id, bene_death_dt FROM beneficiary_2008
    UNION ALL SELECT desynpuf_id, bene_death_dt FROM beneficiary_2009
    UNION ALL SELECT desynpuf_id, bene_death_dt FROM beneficiary_2010
) b
GROUP BY b.desynpuf_id
