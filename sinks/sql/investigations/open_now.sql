-- title: What is open now
-- theme: now
-- description: Verdicts that are open, the most urgent first, of these those that cost most an hour: whom they accuse,
--     with which probability, since when (UTC), and what they cost: GPU-hours so far, and GPU-hours per hour while the
--     cause is there.
-- empty: No verdict is open, and no job hangs, of those in jobs_now: one that is not heard is not judged.
-- parameter: job String = '' | training job; default: all
-- parameter: limit UInt32 = 30 | verdicts at most
WITH
    open_ones AS
    (
        SELECT * FROM incidents WHERE state = 'open' AND ({job:String} = '' OR job = {job:String})
    ),
    begins AS
    (
        SELECT job, attempt, iteration, toNullable(started_at) AS started_at
        FROM iterations FINAL
        WHERE (job, attempt, iteration) IN (SELECT job, attempt, first_iteration FROM open_ones)
    ),
    first_accused AS
    (
        SELECT job, verdict_id, toNullable(name) AS name, toNullable(probability) AS probability
        FROM accused
        WHERE position = 0
    )
SELECT
    open_ones.severity AS severity,
    open_ones.job AS job,
    first_accused.name AS device,
    round(first_accused.probability, 2) AS probability,
    open_ones.kind AS kind,
    if(begins.started_at > toDateTime64(0, 9, 'UTC'), begins.started_at, NULL) AS since, -- earlier ones: not known
    if(open_ones.kind IN ('hang', 'mismatch'), NULL, round(open_ones.delta, 2)) AS times_usual,
    round(open_ones.gpu_hours_lost, 3) AS gpu_hours_lost,
    round(open_ones.gpu_hours_per_hour, 2) AS gpu_hours_per_hour,
    open_ones.verdict_id AS verdict_id
FROM open_ones
LEFT JOIN begins
    ON begins.job = open_ones.job
    AND begins.attempt = open_ones.attempt
    AND begins.iteration = open_ones.first_iteration
LEFT JOIN first_accused ON first_accused.job = open_ones.job AND first_accused.verdict_id = open_ones.verdict_id
ORDER BY indexOf(['page', 'ticket', 'note'], ifNull(severity, 'note')), gpu_hours_per_hour DESC NULLS LAST, gpu_hours_lost DESC, verdict_id
LIMIT {limit:UInt32}
