-- What each detector says of each rank, by the detector's name: see infra/docs/detectors.md. Few rows: scores from half of
-- where strange begins on, and of irregular iterations the highest of each detector; of all others the largest is in
-- rank_iterations. About 6 bytes a row.
CREATE TABLE IF NOT EXISTS detector_scores
(
    job LowCardinality(String) COMMENT 'Training job',
    attempt Int64 COMMENT 'Start number of the job',
    detector LowCardinality(String) COMMENT 'Name of the detector',
    iteration Int64 COMMENT 'Number of the training iteration' CODEC(Delta, ZSTD),
    rank UInt32 COMMENT 'Global rank' CODEC(Delta, ZSTD),
    score Float32 COMMENT 'How strange the detector finds the rank: from 1 on strange' CODEC(ZSTD),
    started_at Nullable(DateTime64(9, 'UTC')) COMMENT 'Start of the iteration on this rank; its own host''s clock; NULL: not known' CODEC(Delta, ZSTD),
    stored_at DateTime('UTC') MATERIALIZED now() COMMENT 'When the row was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree
PARTITION BY toMonday(ifNull(started_at, toDateTime64(0, 9, 'UTC')))
ORDER BY (job, attempt, detector, iteration, rank)
TTL stored_at + INTERVAL 30 DAY
SETTINGS ttl_only_drop_parts = 1
COMMENT 'Notable scores by detector, rank and iteration';

ALTER TABLE verdicts ADD COLUMN IF NOT EXISTS
    detector LowCardinality(Nullable(String)) COMMENT 'Name of the detector that opened a verdict of kind custom; NULL: of all other kinds'
    AFTER recovers_ratio;
