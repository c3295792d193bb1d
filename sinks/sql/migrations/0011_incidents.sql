-- For how long the cause of a verdict was there: what it costs an hour follows. Verdicts of older workers do not say.
ALTER TABLE verdicts ADD COLUMN IF NOT EXISTS
    lasted_s Nullable(Float64) COMMENT 'Seconds of the job''s time from the first to the newest iteration in which the cause was seen; NULL: a hang, or nobody said'
    AFTER detector;

ALTER TABLE verdicts ADD COLUMN IF NOT EXISTS
    explanation Nullable(String) COMMENT 'Reasons, as JSON (verdict-json.md): who waited for whom, what was ruled out, what is usual, delta in force; NULL: none'
    AFTER lasted_s;

ALTER TABLE verdicts COMMENT COLUMN IF EXISTS close_reason 'recovered, finished, restarted, silent or stopped; NULL: open';

-- Verdicts in their newest revision, and what each costs, as sinks/advice.py has it for Python: `gpu_hours_per_hour` is the
-- share of the job's time that is lost while the cause is there, times its GPUs. Of verdicts that do not say how long that
-- was, as if all iterations took as long as the irregular ones; of a hang, all GPUs.
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
    known.explanation AS explanation,
    known.lost_s * nullIf(known.world_size, 0) / 3600 AS gpu_hours_lost,
    multiIf(
        known.world_size = 0, NULL,
        known.kind = 'hang', toFloat64(known.world_size),
        ifNull(known.lasted_s, 0) > 0, least(known.lost_s / known.lasted_s, 1) * known.world_size,
        ifNull(known.delta, 0) >= 1, (1 - 1 / known.delta) * known.world_size,
        NULL
    ) AS gpu_hours_per_hour
FROM verdicts AS known FINAL;

-- What an iteration is held against, since its verdicts hold it against that as well.
ALTER TABLE iterations COMMENT COLUMN IF EXISTS reference_ns 'Mean of the window before it, ns; while a verdict is open, of the window before that opened; NULL: no window yet';
