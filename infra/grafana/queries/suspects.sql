-- How the suspects of one verdict moved, revision by revision.
SELECT assumeNotNull(history.last_seen_at) AS time, named.name AS suspect, max(named.probability) AS probability
FROM (SELECT * FROM verdict_revisions FINAL WHERE verdict_id = {verdict:String}) AS history
INNER JOIN (SELECT * FROM named_suspects WHERE verdict_id = {verdict:String}) AS named
    ON named.job = history.job AND named.revision = history.revision
WHERE history.last_seen_at IS NOT NULL
GROUP BY time, suspect
ORDER BY time, suspect
