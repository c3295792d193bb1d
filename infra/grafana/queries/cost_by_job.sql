-- What verdicts say each job lost in the time range, beside what it trained.
WITH
    sizes AS
    (
        SELECT job, attempt, max(world_size) AS world_size FROM jobs GROUP BY job, attempt
    ),
    trained AS
    (
        SELECT runs.job AS job, sum(runs.elapsed_s * sizes.world_size) / 3600 AS gpu_hours
        FROM
        (
            SELECT job, attempt, sum(elapsed_ns) / 1e9 AS elapsed_s FROM iterations FINAL
            WHERE $__timeFilter(started_at)
            GROUP BY job, attempt
        ) AS runs
        LEFT JOIN sizes ON sizes.job = runs.job AND sizes.attempt = runs.attempt
        GROUP BY job
    ),
    lost AS
    (
        SELECT
            job,
            sum(lost_s * world_size) / 3600 AS gpu_hours,
            countIf(severity = 'page') AS pages,
            countIf(severity = 'ticket') AS tickets,
            countIf(ifNull(severity, 'note') = 'note') AS notes
        FROM incidents
        WHERE $__timeFilter(last_seen_at)
        GROUP BY job
    )
SELECT
    trained.job AS job,
    trained.gpu_hours AS gpu_hours,
    lost.gpu_hours AS gpu_hours_lost,
    lost.gpu_hours / nullIf(trained.gpu_hours, 0) AS share_lost,
    lost.pages AS pages,
    lost.tickets AS tickets,
    lost.notes AS notes
FROM trained
LEFT JOIN lost ON lost.job = trained.job
ORDER BY gpu_hours_lost DESC, gpu_hours DESC, job
LIMIT 100
