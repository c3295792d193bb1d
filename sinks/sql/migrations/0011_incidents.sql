-- For how long the cause of a verdict was there: what it costs an hour follows. Verdicts of older workers do not say.
ALTER TABLE verdicts ADD COLUMN IF NOT EXISTS
    lasted_s Nullable(Float64) COMMENT 'Seconds of the job''s time from the first to the newest iteration in which the cause was seen; NULL: a hang, or nobody said'
    AFTER detector;

ALTER TABLE verdicts COMMENT COLUMN IF EXISTS close_reason 'recovered, finished, restarted, silent or stopped; NULL: open';

-- Verdicts in their newest revision, whether each is over, and what it costs. Two rules stand here for all SQL, as they
-- do for Python in irregulars/messages/at_work.py and sinks/costs.py:
--
-- `is_at_work`: it is open; or its job hangs. A hang is closed when it comes, as its job is silent. It is over when a
-- later revision gives another reason, when a new start of its job announced itself, or a day after it was told. Whether a
-- job goes on revisions alone say: its monitor lives for as long as a hang counts. A hang is told when it has lasted for
-- `lost_s`: by the job's clock, so that topics that are read again make no old one count anew.
--
-- `gpu_hours_per_hour`: the share of the job's time that is lost while the cause is there, times its GPUs. Of verdicts
-- that do not say how long that was, as if all iterations took as long as the irregular ones; of a hang, all GPUs.
CREATE VIEW IF NOT EXISTS incidents AS
SELECT
    known.job AS job,
    known.attempt AS attempt,
    known.verdict_id AS verdict_id,
    known.revision AS revision,
    known.state AS state,
    known.event AS event,
    known.kind AS kind,
    known.first_iteration AS first_iteration,
    known.past_last_iteration AS past_last_iteration,
    known.delta AS delta,
    known.lost_s AS lost_s,
    known.lasted_s AS lasted_s,
    known.world_size AS world_size,
    known.communicator AS communicator,
    known.evidence AS evidence,
    known.last_seen_at AS last_seen_at,
    known.close_reason AS close_reason,
    known.severity AS severity,
    known.recovers_ratio AS recovers_ratio,
    known.detector AS detector,
    known.told_at AS told_at,
    known.state = 'open'
        OR (
            known.kind = 'hang'
            AND ifNull(known.close_reason = 'silent', false)
            AND known.told_at > now('UTC') - toIntervalDay(1)
            AND NOT ifNull(started.attempt > known.attempt, false)
        ) AS is_at_work,
    known.lost_s * nullIf(known.world_size, 0) / 3600 AS gpu_hours_lost,
    multiIf(
        known.world_size = 0, NULL,
        known.kind = 'hang', toFloat64(known.world_size),
        ifNull(known.lasted_s, 0) > 0, least(known.lost_s / known.lasted_s, 1) * known.world_size,
        ifNull(known.delta, 0) >= 1, (1 - 1 / known.delta) * known.world_size,
        NULL
    ) AS gpu_hours_per_hour
FROM
(
    SELECT
        *,
        least(
            stored_at,
            ifNull(
                toDateTime(addSeconds(last_seen_at, if(kind = 'hang', toInt64(least(lost_s, 1e9)), 0)), 'UTC'),
                stored_at
            )
        ) AS told_at
    FROM verdicts FINAL
) AS known
LEFT JOIN
(
    SELECT job, max(attempt) AS attempt
    FROM jobs
    WHERE job IN
    (
        SELECT job FROM verdicts
        WHERE kind = 'hang' AND close_reason = 'silent' AND stored_at > now('UTC') - toIntervalDay(1)
    )
    GROUP BY job
) AS started ON started.job = known.job;

-- What an iteration is held against, since its verdicts hold it against that as well.
ALTER TABLE iterations COMMENT COLUMN IF EXISTS reference_ns 'Mean of the window before it, ns; while a verdict is open, of the window before that opened; NULL: no window yet';
