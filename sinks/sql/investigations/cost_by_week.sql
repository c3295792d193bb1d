-- title: Cost per week
-- theme: jobs and cost
-- description: GPU-hours that verdicts say were lost in each week (from Monday, UTC), by what was wrong: devices
--     (slow ranks, NICs, links), the fabric (slow communicators), the job itself (stages, imbalance), hangs. A
--     verdict counts whole, in the week in which its cause was seen last; the current week is not over.
-- empty: No verdict was seen in these weeks; weeks=520 looks further back.
-- parameter: weeks UInt32 = 12 | so many weeks before now, the current one included
-- parameter: job String = '' | training job; default: all
-- parameter: limit UInt32 = 60 | weeks at most, the newest first
SELECT
    toMonday(assumeNotNull(last_seen_at), 'UTC') AS week,
    count() AS verdicts,
    countIf(severity = 'page') AS pages,
    uniqExact(job) AS jobs,
    round(sum(incidents.gpu_hours_lost), 3) AS gpu_hours_lost,
    round(sumIf(incidents.gpu_hours_lost, kind IN ('slow_rank', 'slow_nic', 'slow_link')), 3) AS of_devices,
    round(sumIf(incidents.gpu_hours_lost, kind = 'slow_communicator'), 3) AS of_fabric,
    round(sumIf(incidents.gpu_hours_lost, kind IN ('slow_stage', 'imbalance')), 3) AS of_the_job,
    round(sumIf(incidents.gpu_hours_lost, kind IN ('hang', 'mismatch')), 3) AS of_hangs
FROM incidents
WHERE last_seen_at >= toDateTime64(toMonday(now('UTC')), 9, 'UTC') + toIntervalWeek(1) - toIntervalWeek({weeks:UInt32})
    AND ({job:String} = '' OR job = {job:String})
GROUP BY week
ORDER BY week DESC
LIMIT {limit:UInt32}
