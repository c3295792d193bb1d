-- title: Time lost per device
-- theme: jobs and cost
-- description: GPU hours that verdicts lay on each device, over all jobs: what to repair first. A verdict's loss is
--     shared out by the probability of its suspects; what is missing to 1 is on nobody. A device that only its ranks
--     name is one of its job, which stands behind it.
-- empty: No verdict of these days names a device; days=3650 looks further back.
-- parameter: days UInt32 = 30 | verdicts seen in so many days before now
-- parameter: limit UInt32 = 50 | devices at most, the costliest first
SELECT
    fleet_name AS device,
    accused.device AS device_kind,
    host,
    gpu,
    nic,
    if(has(named_by, 'switch'), accused.switch, NULL) AS switch,
    uniqExact(job, verdict_id) AS verdicts,
    uniqExact(job) AS jobs,
    uniqExactIf((job, verdict_id), state = 'open') AS open_verdicts,
    round(sum(lost_s * probability), 3) AS expected_lost_s,
    round(sum(gpu_hours_lost * probability), 3) AS expected_gpu_hours_lost,
    max(accused.last_seen_at) AS last_seen_at
FROM accused
WHERE accused.last_seen_at IS NULL
    OR accused.last_seen_at >= now64(9, 'UTC') - toIntervalDay({days:UInt32})
GROUP BY device, device_kind, host, gpu, nic, switch
ORDER BY expected_gpu_hours_lost DESC, expected_lost_s DESC
LIMIT {limit:UInt32}
