-- title: What to look at first
-- theme: now
-- description: Verdicts by urgency, pages before tickets before notes, open ones first, then those that cost
--     most: whom they accuse, what is lost, and how much of it setting the first suspect right would win
--     back, where a replay tells.
-- empty: No verdict was seen in these days; days=3650 looks further back.
-- parameter: job String = '' | training job; default: all
-- parameter: days UInt32 = 30 | verdicts seen in so many days before now
-- parameter: limit UInt32 = 30 | verdicts at most
WITH known AS (SELECT * FROM incidents)
SELECT
    known.severity AS severity,
    known.state AS state,
    known.kind AS kind,
    suspects.name AS device,
    suspects.host AS host,
    known.verdict_id AS verdict_id,
    known.job AS job,
    suspects.rank AS rank,
    round(suspects.probability, 3) AS probability,
    round(known.delta, 2) AS times_usual,
    round(known.lost_s, 3) AS lost_s,
    round(known.gpu_hours_lost, 3) AS gpu_hours_lost,
    round(known.recovers_ratio, 3) AS recovers_ratio,
    known.layer AS layer,
    known.cause AS cause,
    known.last_seen_at AS last_seen_at
FROM known
LEFT JOIN
(
    SELECT job, verdict_id, toNullable(name) AS name, host, toNullable(rank) AS rank,
        toNullable(probability) AS probability
    FROM newest_suspects
    WHERE position = 0
) AS suspects
    ON suspects.job = known.job AND suspects.verdict_id = known.verdict_id
WHERE ({job:String} = '' OR known.job = {job:String})
    AND (
        known.last_seen_at IS NULL
        OR known.last_seen_at >= now64(9, 'UTC') - toIntervalDay({days:UInt32})
    )
ORDER BY
    indexOf(['page', 'ticket', 'note'], ifNull(known.severity, 'note')),
    known.state != 'open',
    gpu_hours_lost DESC,
    lost_s DESC,
    verdict_id
LIMIT {limit:UInt32}
