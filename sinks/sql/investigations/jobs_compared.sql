-- title: Jobs compared
-- theme: jobs and cost
-- description: How fast and how even the newest attempt of each job trains (phase train alone): the median iteration, the
--     slowest of twenty (p95), and how many percent were irregular. spread is p95 over the median, to be read beside that
--     of other jobs: high with few irregular iterations, it is noise that the job always had.
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
            count() AS iterations,
            quantiles(0.5, 0.95)(elapsed_ns / 1e9) AS elapsed_s,
            avg(is_irregular) AS irregular,
            max(started_at) AS seen_at
        FROM iterations FINAL
        WHERE (job, attempt) IN (SELECT job, attempt FROM attempts) AND phase = 'train'
        GROUP BY job, attempt
    )
SELECT
    times.job AS job,
    sizes.world_size AS gpus,
    times.iterations AS iterations,
    round(times.elapsed_s[1], 4) AS median_s,
    round(times.elapsed_s[2], 4) AS p95_s,
    round(times.elapsed_s[2] / times.elapsed_s[1], 2) AS spread,
    round(100 * times.irregular, 2) AS irregular_pct
FROM times
LEFT JOIN sizes ON sizes.job = times.job AND sizes.attempt = times.attempt
ORDER BY times.seen_at DESC, job
LIMIT {limit:UInt32}
