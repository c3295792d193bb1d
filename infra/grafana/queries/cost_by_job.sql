-- What verdicts say each job lost in the time range, beside what it trained or hung: as the question cost_by_job counts it.
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
            sum(gpu_hours_lost) AS gpu_hours,
            sumIf(gpu_hours_lost, kind IN ('hang', 'mismatch')) AS hung_gpu_hours,
            countIf(severity = 'page') AS pages,
            countIf(severity = 'ticket') AS tickets,
            countIf(ifNull(severity, 'note') = 'note') AS notes
        FROM incidents
        WHERE $__timeFilter(last_seen_at)
        GROUP BY job
    )
SELECT
    trained.job AS job,
    -- The time that a job hung is in no iteration that ended
    trained.gpu_hours + ifNull(lost.hung_gpu_hours, 0) AS gpu_hours,
    lost.gpu_hours AS gpu_hours_lost,
    lost.gpu_hours / nullIf(trained.gpu_hours + ifNull(lost.hung_gpu_hours, 0), 0) AS share_lost,
    lost.pages AS pages,
    lost.tickets AS tickets,
    lost.notes AS notes
FROM trained
LEFT JOIN lost ON lost.job = trained.job
ORDER BY gpu_hours_lost DESC, gpu_hours DESC, job
LIMIT 100
