-- title: Jobs now
-- description: The newest attempt of each job: how far it is, how fast it is, whether a verdict is open.
-- parameter: limit UInt32 = 50 | jobs at most, the most recently seen first
WITH
    attempts AS
    (
        SELECT job, max(attempt) AS attempt FROM jobs FINAL GROUP BY job
    ),
    places AS
    (
        SELECT job, attempt, max(world_size) AS world_size, count() AS known_ranks, uniqExact(host) AS hosts
        FROM jobs FINAL
        GROUP BY job, attempt
    ),
    progress AS
    (
        SELECT
            job,
            attempt,
            max(iteration) AS last_iteration,
            max(started_at) AS last_seen_at,
            arrayAvg(arraySlice(arrayPartialReverseSort(x -> x.1, 50, groupArray((iteration, elapsed_ns))), 1, 50).2) / 1e9
                AS recent_iteration_s,
            countIf(is_irregular) AS irregular_iterations
        FROM iterations FINAL
        WHERE (job, attempt) IN (SELECT job, attempt FROM attempts)
        GROUP BY job, attempt
    ),
    blame AS
    (
        SELECT job, attempt, countIf(state = 'open') AS open_verdicts, sum(lost_s * world_size) / 3600 AS gpu_hours_lost
        FROM verdicts FINAL
        GROUP BY job, attempt
    )
SELECT
    attempts.job AS job,
    attempts.attempt AS attempt,
    places.world_size AS world_size,
    places.hosts AS hosts,
    progress.last_iteration AS last_iteration,
    progress.last_seen_at AS last_seen_at,
    round(progress.recent_iteration_s, 3) AS recent_iteration_s,
    progress.irregular_iterations AS irregular_iterations,
    blame.open_verdicts AS open_verdicts,
    round(blame.gpu_hours_lost, 2) AS gpu_hours_lost
FROM attempts
LEFT JOIN places USING (job, attempt)
LEFT JOIN progress USING (job, attempt)
LEFT JOIN blame USING (job, attempt)
ORDER BY last_seen_at DESC, job
LIMIT {limit:UInt32}
