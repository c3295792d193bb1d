-- title: Jobs now
-- theme: now
-- description: The newest attempt of each job: how far it is, how fast it is (recent_iteration_s: mean of the newest
--     50 training iterations), and what is wrong: the most urgent verdict that is open, whom it accuses first, and how
--     many are open; end_reason: by its own word it is over. Lines with a severity want somebody; without one the job
--     runs as usual.
-- empty: No job has announced itself: no agent sends, or no worker stores.
-- parameter: limit UInt32 = 50 | jobs at most, the most recently seen first
WITH
    attempts AS
    (
        SELECT job, max(attempt) AS attempt FROM jobs FINAL GROUP BY job
    ),
    places AS
    (
        SELECT job, attempt, max(world_size) AS world_size, uniqExact(host) AS hosts
        FROM jobs FINAL
        WHERE (job, attempt) IN (SELECT job, attempt FROM attempts)
        GROUP BY job, attempt
    ),
    progress AS
    (
        SELECT
            job,
            attempt,
            toNullable(max(iteration)) AS last_iteration,
            maxOrNullIf(started_at, started_at > toDateTime64(0, 9, 'UTC')) AS last_seen_at, -- earlier ones: not known
            groupArrayIf((iteration, elapsed_ns), phase = 'train') AS trained,
            if(
                empty(trained),
                NULL,
                arrayAvg(arraySlice(arrayPartialReverseSort(x -> x.1, 50, trained), 1, 50).2) / 1e9
            ) AS recent_iteration_s,
            countIf(is_irregular) AS irregular_iterations
        FROM iterations FINAL
        WHERE (job, attempt) IN (SELECT job, attempt FROM attempts)
        GROUP BY job, attempt
    ),
    first_accused AS
    (
        SELECT job, verdict_id, toNullable(name) AS name FROM accused WHERE position = 0
    ),
    blame AS
    (
        SELECT
            job,
            attempt,
            countIf(state = 'open') AS open_verdicts,
            -- (urgency, loss, severity, verdict, kind): the largest of the open ones is what is wrong
            maxIf(
                (
                    indexOf(['note', 'ticket', 'page'], ifNull(severity, 'note')),
                    lost_s,
                    ifNull(toString(severity), ''),
                    verdict_id,
                    toString(kind)
                ),
                state = 'open'
            ) AS worst,
            sum(lost_s * world_size) / 3600 AS gpu_hours_lost
        FROM incidents
        GROUP BY job, attempt
    )
SELECT
    attempts.job AS job,
    attempts.attempt AS attempt,
    places.world_size AS world_size,
    places.hosts AS hosts,
    progress.last_iteration AS last_iteration,
    progress.last_seen_at AS last_seen_at,
    nullIf(toString(ends.reason), '') AS end_reason,
    round(progress.recent_iteration_s, 3) AS recent_iteration_s,
    progress.irregular_iterations AS irregular_iterations,
    blame.open_verdicts AS open_verdicts,
    nullIf(blame.worst.3, '') AS severity,
    nullIf(blame.worst.5, '') AS kind,
    first_accused.name AS device,
    nullIf(blame.worst.4, '') AS verdict_id,
    round(blame.gpu_hours_lost, 2) AS gpu_hours_lost
FROM attempts
LEFT JOIN places USING (job, attempt)
LEFT JOIN progress USING (job, attempt)
LEFT JOIN (SELECT job, attempt, reason FROM attempt_ends FINAL) AS ends USING (job, attempt)
LEFT JOIN blame USING (job, attempt)
LEFT JOIN first_accused ON first_accused.job = attempts.job AND first_accused.verdict_id = blame.worst.4
ORDER BY last_seen_at DESC NULLS LAST, job
LIMIT {limit:UInt32}
