-- title: Cost per job
-- theme: jobs and cost
-- description: GPU-hours that each job trained or hung in these days, how many of them verdicts say were lost, and how many
--     verdicts of which severity there were; percent beside that of other jobs tells where it is worth looking. A verdict
--     counts whole, on the day when its cause was seen last, also where nobody is to blame.
-- empty: No iteration was stored in these days; days=3650 looks further back.
-- parameter: days UInt32 = 30 | so many days before now
-- parameter: limit UInt32 = 50 | jobs at most, the costliest first
WITH
    sizes AS
    (
        SELECT job, attempt, max(world_size) AS world_size FROM jobs FINAL GROUP BY job, attempt
    ),
    trained AS
    (
        SELECT runs.job AS job, sum(runs.elapsed_s * sizes.world_size) / 3600 AS gpu_hours
        FROM
        (
            SELECT job, attempt, sum(elapsed_ns) / 1e9 AS elapsed_s
            FROM iterations FINAL
            WHERE started_at >= now64(9, 'UTC') - toIntervalDay({days:UInt32})
            GROUP BY job, attempt
        ) AS runs
        LEFT JOIN sizes ON sizes.job = runs.job AND sizes.attempt = runs.attempt
        GROUP BY job
    ),
    lost AS
    (
        SELECT
            job,
            count() AS verdicts,
            sum(gpu_hours_lost) AS gpu_hours,
            sumIf(gpu_hours_lost, kind IN ('hang', 'mismatch')) AS hung_gpu_hours,
            countIf(severity = 'page') AS pages,
            countIf(severity = 'ticket') AS tickets
        FROM incidents
        WHERE incidents.last_seen_at >= now64(9, 'UTC') - toIntervalDay({days:UInt32})
        GROUP BY job
    )
SELECT
    trained.job AS job,
    -- The time that a job hung is in no iteration that ended
    round(trained.gpu_hours + ifNull(lost.hung_gpu_hours, 0), 3) AS gpu_hours,
    round(lost.gpu_hours, 3) AS gpu_hours_lost,
    round(100 * lost.gpu_hours / nullIf(trained.gpu_hours + ifNull(lost.hung_gpu_hours, 0), 0), 2) AS percent,
    lost.pages AS pages,
    lost.tickets AS tickets,
    lost.verdicts - lost.pages - lost.tickets AS notes
FROM trained
LEFT JOIN lost ON lost.job = trained.job
ORDER BY lost.gpu_hours DESC, gpu_hours DESC, job
LIMIT {limit:UInt32}
