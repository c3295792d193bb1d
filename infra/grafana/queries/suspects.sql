-- How the suspects of one verdict moved, revision by revision.
SELECT
    assumeNotNull(history.last_seen_at) AS time,
    concat(
        toString(named.device),
        ifNull(concat(' ', if(named.device IN ('nic', 'link'), named.nic, NULL)), ''),
        ' of rank ', toString(named.rank),
        if(named.device = 'link', concat(' to rank ', toString(ifNull(named.peer, 0))), ''),
        ifNull(concat(' on ', if(named.device = 'switch', named.switch, named.host)), '')
    ) AS suspect,
    max(named.probability) AS probability
FROM (SELECT * FROM verdict_revisions FINAL WHERE verdict_id = {verdict:String}) AS history
INNER JOIN (SELECT * FROM suspects FINAL WHERE verdict_id = {verdict:String}) AS named
    ON named.job = history.job AND named.revision = history.revision
WHERE history.last_seen_at IS NOT NULL
GROUP BY time, suspect
ORDER BY time, suspect
