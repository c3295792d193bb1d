-- title: Repeat offenders
-- theme: devices and hosts
-- description: Devices that several verdicts accuse with a probability that suffices, over all jobs, those in most
--     verdicts first. A device that comes back in several jobs is broken; one that comes back in a single job may be
--     what that job asks of it. What the device itself reported in these days stands beside it, and recent tells who is
--     likely to fail again: verdicts and reports, of which those of a week ago count half. Devices without a host's or a
--     switch's name are left out: nobody can tell them apart.
-- empty: No device was accused that often in these days: what was repaired stayed well.
-- parameter: days UInt32 = 30 | verdicts seen in so many days before now
-- parameter: at_least UInt32 = 2 | verdicts against a device
-- parameter: percent UInt32 = 50 | probability of a suspect from which on it counts, percent
-- parameter: limit UInt32 = 30 | devices at most
WITH reported AS
(
    SELECT
        host,
        device AS reporter,
        toUInt64(count()) AS times,
        sum(exp2(-age('second', reported_at, now64(9, 'UTC')) / 604800)) AS recent
    FROM events FINAL
    WHERE kind NOT IN ('link_up', 'node_state', 'process_exit', 'stack', 'function', 'metric')
        AND reported_at >= now64(9, 'UTC') - toIntervalDay({days:UInt32})
    GROUP BY host, reporter
)
SELECT
    name AS device,
    uniqExact(job, verdict_id) AS verdicts,
    uniqExact(job) AS jobs,
    uniqExactIf((job, verdict_id), state = 'open') AS open_verdicts,
    min(accused.last_seen_at) AS first_seen_at,
    max(accused.last_seen_at) AS last_seen_at,
    any(reported.times) AS reports,
    round(sum(exp2(-age('second', accused.last_seen_at, now64(9, 'UTC')) / 604800)) + any(reported.recent), 3) AS recent,
    round(sum(gpu_hours_lost * probability), 3) AS expected_gpu_hours_lost,
    arraySort(groupUniqArray(toString(kind))) AS kinds,
    arraySlice(arrayReverseSort(groupUniqArray(toString(job))), 1, 3) AS some_jobs
FROM accused
LEFT JOIN reported
    ON reported.host = ifNull(accused.host, '-')
    AND reported.reporter = multiIf(
        gpu IS NOT NULL, concat('gpu', toString(assumeNotNull(gpu))),
        nic IS NOT NULL AND peer IS NULL, assumeNotNull(nic),
        named_by = ['host'], '',
        '-'
    )
WHERE (host IS NOT NULL OR switch IS NOT NULL)
    AND probability >= {percent:UInt32} / 100
    AND accused.last_seen_at >= now64(9, 'UTC') - toIntervalDay({days:UInt32})
GROUP BY name
HAVING verdicts >= {at_least:UInt32}
ORDER BY verdicts DESC, expected_gpu_hours_lost DESC, device
LIMIT {limit:UInt32}
