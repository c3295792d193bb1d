-- Variable verdict: the most urgent first, open ones before closed ones. The first column is the value, the second what
-- is shown.
SELECT
    known.verdict_id AS verdict_id,
    concat(
        ifNull(toString(known.severity), 'note'), ' ', toString(known.state), ': ',
        replaceAll(toString(known.kind), '_', ' '), ', ', ifNull(named.name, 'nobody accused'),
        ', from iteration ', toString(known.first_iteration)
    ) AS label
FROM (SELECT * FROM incidents WHERE job = {job:String} AND attempt = {attempt:Int64}) AS known
LEFT JOIN
(
    SELECT verdict_id, toNullable(name) AS name FROM accused WHERE job = {job:String} AND position = 0
) AS named ON named.verdict_id = known.verdict_id
ORDER BY
    known.state != 'open',
    indexOf(['page', 'ticket', 'note'], ifNull(known.severity, 'note')),
    known.lost_s DESC,
    verdict_id
LIMIT 500
