-- title: Cost per job
-- theme: jobs and cost
-- description: GPU-hours that each job trained in these days, and how many of them verdicts say were lost, split by
--     how urgent they were; lost_percent beside that of other jobs tells where it is worth looking. A verdict counts
--     whole, on the day when its cause was seen last, also where nobody is to blame.
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
        SELECT runs.job AS job, sum(runs.elapsed_s * sizes.world_size) / 3600 AS gpu_hours, sum(runs.iterations) AS iterations
        FROM
        (
            SELECT job, attempt, sum(elapsed_ns) / 1e9 AS elapsed_s, count() AS iterations
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
            sum(lost_s * world_size) / 3600 AS gpu_hours,
            sumIf(lost_s * world_size, severity = 'page') / 3600 AS of_pages,
            sumIf(lost_s * world_size, severity = 'ticket') / 3600 AS of_tickets
        FROM verdicts FINAL
        WHERE last_seen_at >= now64(9, 'UTC') - toIntervalDay({days:UInt32})
        GROUP BY job
    )
SELECT
    trained.job AS job,
    trained.iterations AS iterations,
    round(trained.gpu_hours, 2) AS gpu_hours,
    lost.verdicts AS verdicts,
    round(lost.gpu_hours, 3) AS gpu_hours_lost,
    round(100 * lost.gpu_hours / nullIf(trained.gpu_hours, 0), 2) AS lost_percent,
    round(lost.of_pages, 3) AS of_pages,
    round(lost.of_tickets, 3) AS of_tickets
FROM trained
LEFT JOIN lost ON lost.job = trained.job
ORDER BY lost.gpu_hours DESC, gpu_hours DESC, job
LIMIT {limit:UInt32}
