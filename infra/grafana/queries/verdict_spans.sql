-- Annotations: from the first to past the last iteration in which a verdict's cause was seen.
WITH
    starts AS
    (
        SELECT iteration, min(started_at) AS begun_at FROM iterations
        WHERE job = {job:String} AND attempt = {attempt:Int64}
        GROUP BY iteration
    ),
    named AS
    (
        SELECT verdict_id, toNullable(name) AS name, toNullable(probability) AS probability
        FROM accused
        WHERE job = {job:String} AND position = 0
    )
SELECT
    starts.begun_at AS time,
    greatest(starts.begun_at, ifNull(known.last_seen_at, starts.begun_at)) AS timeEnd,
    known.verdict_id AS title,
    concat(
        replaceAll(toString(known.kind), '_', ' '), ': ',
        ifNull(concat(named.name, ', ', toString(round(100 * named.probability)), '% sure'), 'nobody is accused')
    ) AS text,
    concat(ifNull(toString(known.severity), 'note'), ',', toString(known.state)) AS tags
FROM (SELECT * FROM incidents WHERE job = {job:String} AND attempt = {attempt:Int64}) AS known
INNER JOIN starts ON starts.iteration = known.first_iteration
LEFT JOIN named ON named.verdict_id = known.verdict_id
WHERE starts.begun_at <= $__toTime AND timeEnd >= $__fromTime
ORDER BY time
