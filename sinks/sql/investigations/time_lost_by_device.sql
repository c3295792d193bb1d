-- title: Time lost per device
-- theme: jobs and cost
-- description: GPU hours that verdicts lay on each device, over all jobs: what to repair first. A verdict's loss is
--     shared out by the probability of its suspects; what is missing to 1 is on nobody.
-- empty: No verdict of these days names a device; days=3650 looks further back.
-- parameter: days UInt32 = 30 | verdicts seen in so many days before now
-- parameter: limit UInt32 = 50 | devices at most, the costliest first
WITH known AS (SELECT * FROM incidents)
SELECT
    suspects.device AS device,
    suspects.host AS host,
    if(suspects.device = 'gpu', suspects.gpu, NULL) AS gpu,
    if(suspects.device IN ('nic', 'link'), suspects.nic, NULL) AS nic,
    if(suspects.device = 'switch', suspects.switch, NULL) AS switch,
    if(suspects.device = 'link' OR suspects.host IS NULL, suspects.ranks, []) AS ranks,
    uniqExact(known.verdict_id) AS verdicts,
    uniqExact(known.job) AS jobs,
    countIf(known.state = 'open') AS open_verdicts,
    round(sum(known.lost_s * suspects.probability), 3) AS expected_lost_s,
    round(sum(known.lost_s * known.world_size * suspects.probability) / 3600, 3) AS expected_gpu_hours_lost,
    max(known.last_seen_at) AS last_seen_at
FROM known
INNER JOIN newest_suspects AS suspects ON suspects.job = known.job AND suspects.verdict_id = known.verdict_id
WHERE known.last_seen_at IS NULL
    OR known.last_seen_at >= now64(9, 'UTC') - toIntervalDay({days:UInt32})
GROUP BY device, host, gpu, nic, switch, ranks
ORDER BY expected_gpu_hours_lost DESC, expected_lost_s DESC
LIMIT {limit:UInt32}
