-- Variable host: those on which verdicts accuse something. `*` stands for all.
SELECT value, label
FROM
(
    SELECT '*' AS value, 'all hosts' AS label, 0 AS place
    UNION ALL
    SELECT DISTINCT assumeNotNull(CAST(host AS Nullable(String))) AS value, value AS label, 1 AS place
    FROM suspects
    WHERE host IS NOT NULL
)
ORDER BY place, value
LIMIT 5000
