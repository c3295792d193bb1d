-- title: Jobs compared
-- theme: jobs and cost
-- description: How fast and how even the newest attempt of each job trains (phase train alone): the median iteration, the
--     slowest of twenty (p95), and how many percent were irregular. spread is p95 over the median, to be read beside that
--     of other jobs: high with few irregular iterations, it is noise that the job always had. checkpoint_pct is the
--     share of all its time in iterations that wrote checkpoints.
-- empty: No iteration is judged yet.
-- parameter: limit UInt32 = 50 | jobs at most, the most recently seen first
WITH
    attempts AS
    (
        SELECT job, max(attempt) AS attempt FROM iterations GROUP BY job
    ),
    sizes AS
    (
        SELECT job, attempt, max(world_size) AS world_size FROM jobs FINAL GROUP BY job, attempt
    ),
    times AS
    (
        SELECT
            job,
            attempt,
            countIf(phase = 'train') AS iterations,
            quantilesIf(0.5, 0.95)(elapsed_ns / 1e9, phase = 'train') AS elapsed_s,
            avgIf(is_irregular, phase = 'train') AS irregular,
            sumIf(elapsed_ns, phase = 'checkpoint') / sum(elapsed_ns) AS checkpoints,
            max(started_at) AS seen_at
        FROM iterations FINAL
        WHERE (job, attempt) IN (SELECT job, attempt FROM attempts)
        GROUP BY job, attempt
        HAVING iterations > 0
    )
SELECT
    times.job AS job,
    sizes.world_size AS gpus,
    times.iterations AS iterations,
    round(times.elapsed_s[1], 4) AS median_s,
    round(times.elapsed_s[2], 4) AS p95_s,
    round(times.elapsed_s[2] / times.elapsed_s[1], 2) AS spread,
    round(100 * times.irregular, 2) AS irregular_pct,
    round(100 * times.checkpoints, 2) AS checkpoint_pct
FROM times
LEFT JOIN sizes ON sizes.job = times.job AND sizes.attempt = times.attempt
ORDER BY times.seen_at DESC, job
LIMIT {limit:UInt32}
