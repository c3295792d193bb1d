-- title: Who was blamed, and why
-- theme: a verdict
-- description: Verdicts in their newest revision with their suspects, best first, and the evidence. A verdict that
--     blames nobody (imbalance, slow_communicator) has one line without a device. The cause was seen in iterations
--     first_iteration up to before past_last_iteration (half-open).
-- empty: No verdict is stored: no iteration was slow for long enough, or the worker has judged nothing yet.
-- parameter: job String = '' | training job; default: all
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: all
-- parameter: limit UInt32 = 50 | lines at most, the newest verdicts first
SELECT
    verdicts.job AS job,
    verdicts.verdict_id AS verdict_id,
    verdicts.state AS state,
    verdicts.kind AS kind,
    verdicts.severity AS severity,
    suspects.name AS device,
    suspects.host AS host,
    suspects.rank AS rank,
    suspects.peer AS peer,
    round(suspects.probability, 3) AS probability,
    verdicts.first_iteration AS first_iteration,
    verdicts.past_last_iteration AS past_last_iteration,
    round(verdicts.delta, 2) AS times_usual,
    round(verdicts.gpu_hours_lost, 3) AS gpu_hours_lost,
    round(verdicts.recovers_ratio, 3) AS recovers_ratio,
    verdicts.layer AS layer,
    verdicts.cause AS cause,
    round(verdicts.cause_share, 3) AS cause_share,
    verdicts.evidence AS evidence,
    verdicts.close_reason AS close_reason
FROM incidents AS verdicts
LEFT JOIN
(
    SELECT job, verdict_id, position, toNullable(name) AS name, host, toNullable(rank) AS rank, peer,
        toNullable(probability) AS probability
    FROM newest_suspects
) AS suspects
    ON suspects.job = verdicts.job AND suspects.verdict_id = verdicts.verdict_id
WHERE ({job:String} = '' OR verdicts.job = {job:String})
    AND ({attempt:Nullable(Int64)} IS NULL OR verdicts.attempt = {attempt:Nullable(Int64)})
ORDER BY verdicts.last_seen_at DESC, verdicts.verdict_id, suspects.position
LIMIT {limit:UInt32}
