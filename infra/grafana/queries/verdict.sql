-- One verdict as it stands now, and what it costs an hour while its cause is there.
SELECT
    known.severity AS severity,
    known.state AS state,
    known.kind AS kind,
    first_accused.name AS device,
    first_accused.probability AS probability,
    known.delta AS times_usual,
    if(begins.started_at > toDateTime64(0, 9, 'UTC'), begins.started_at, NULL) AS since, -- earlier ones: not known
    known.last_seen_at AS last_seen_at,
    known.gpu_hours_lost AS gpu_hours_lost,
    known.gpu_hours_per_hour AS gpu_hours_per_hour,
    known.recovers_ratio AS recovers_ratio,
    known.layer AS layer,
    known.cause AS cause,
    known.close_reason AS close_reason,
    known.evidence AS evidence
FROM (SELECT * FROM incidents WHERE verdict_id = {verdict:String}) AS known
LEFT JOIN
(
    SELECT verdict_id, toNullable(name) AS name, toNullable(probability) AS probability
    FROM accused
    WHERE verdict_id = {verdict:String} AND position = 0
) AS first_accused ON first_accused.verdict_id = known.verdict_id
LEFT JOIN
(
    SELECT job, attempt, iteration, toNullable(started_at) AS started_at FROM iterations FINAL
    WHERE (job, attempt, iteration) IN (SELECT job, attempt, first_iteration FROM verdicts WHERE verdict_id = {verdict:String})
) AS begins
    ON begins.job = known.job AND begins.attempt = known.attempt AND begins.iteration = known.first_iteration
