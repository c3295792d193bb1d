-- title: What is open now
-- theme: now
-- description: Verdicts that are open, and hangs after which their job was not heard again, the most urgent first:
--     whom they accuse, with which probability, since when (UTC), and what they cost: GPU-hours so far, and GPU-hours
--     per hour between the first and the newest iteration in which the cause was seen.
-- empty: Nothing is wrong: no verdict is open, and no job hangs.
-- parameter: job String = '' | training job; default: all
-- parameter: limit UInt32 = 30 | verdicts at most
WITH
    heard AS
    (
        SELECT job, max((attempt, iteration)) AS newest FROM iterations GROUP BY job
    ),
    open_ones AS
    (
        SELECT known.*
        FROM (SELECT * FROM verdicts FINAL) AS known
        LEFT JOIN heard ON heard.job = known.job
        WHERE ({job:String} = '' OR known.job = {job:String})
            AND (
                known.state = 'open'
                OR (
                    known.kind = 'hang'
                    AND known.close_reason = 'silent'
                    AND known.attempt >= heard.newest.1
                    AND known.past_last_iteration >= heard.newest.2
                )
            )
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
    begins.started_at AS since,
    round(open_ones.delta, 2) AS times_usual,
    round(open_ones.lost_s * open_ones.world_size / 3600, 3) AS gpu_hours_lost,
    round(
        open_ones.lost_s * open_ones.world_size
        / nullIf(dateDiff('nanosecond', begins.started_at, open_ones.last_seen_at) / 1e9, 0), 2
    ) AS gpu_hours_per_hour,
    open_ones.verdict_id AS verdict_id
FROM open_ones
LEFT JOIN begins
    ON begins.job = open_ones.job
    AND begins.attempt = open_ones.attempt
    AND begins.iteration = open_ones.first_iteration
LEFT JOIN first_accused ON first_accused.job = open_ones.job AND first_accused.verdict_id = open_ones.verdict_id
ORDER BY indexOf(['page', 'ticket', 'note'], ifNull(severity, 'note')), gpu_hours_lost DESC, verdict_id
LIMIT {limit:UInt32}
