-- title: Jobs compared
-- theme: jobs and cost
-- description: How fast and how even the newest attempt of each job trains (phase train alone): the median iteration,
--     the slowest of twenty (p95) and of a hundred (p99), and which share was irregular. spread is p95 over the
--     median: a healthy job stays below 1.1; a high spread with few irregular iterations is noise that the job always
--     had.
-- empty: No iteration is judged yet.
-- parameter: limit UInt32 = 50 | jobs at most, the most recently seen first
WITH
    attempts AS
    (
        SELECT job, max(attempt) AS attempt FROM iterations GROUP BY job
    ),
    sizes AS
    (
        SELECT job, attempt, max(world_size) AS world_size, uniqExact(host) AS hosts FROM jobs FINAL GROUP BY job, attempt
    ),
    times AS
    (
        SELECT
            job,
            attempt,
            count() AS iterations,
            quantiles(0.5, 0.95, 0.99)(elapsed_ns / 1e9) AS elapsed_s,
            avg(is_irregular) AS irregular,
            max(started_at) AS seen_at
        FROM iterations FINAL
        WHERE (job, attempt) IN (SELECT job, attempt FROM attempts) AND phase = 'train'
        GROUP BY job, attempt
    )
SELECT
    times.job AS job,
    times.attempt AS attempt,
    sizes.world_size AS world_size,
    sizes.hosts AS hosts,
    times.iterations AS iterations,
    round(times.elapsed_s[1], 4) AS median_s,
    round(times.elapsed_s[2], 4) AS p95_s,
    round(times.elapsed_s[3], 4) AS p99_s,
    round(times.elapsed_s[2] / times.elapsed_s[1], 2) AS spread,
    round(100 * times.irregular, 2) AS irregular_percent,
    times.seen_at AS last_seen_at
FROM times
LEFT JOIN sizes ON sizes.job = times.job AND sizes.attempt = times.attempt
ORDER BY last_seen_at DESC, job
LIMIT {limit:UInt32}
