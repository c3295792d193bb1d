-- How the NICs were used while operators ran, of iterations that were looked into: see infra/docs/bandwidth.md. Some
-- four rows per rank and such iteration; kept 30 days.
CREATE TABLE IF NOT EXISTS behaviour_patterns
(
    job LowCardinality(String) COMMENT 'Training job',
    attempt Int64 COMMENT 'Start number of the job',
    iteration Int64 COMMENT 'Number of the training iteration' CODEC(Delta, ZSTD),
    rank UInt32 COMMENT 'Global rank' CODEC(Delta, ZSTD),
    communicator LowCardinality(String) COMMENT 'Communicator of the operators; empty: the iteration as a whole',
    operator LowCardinality(String) COMMENT 'Kind of the operators; empty: the iteration as a whole',
    started_at Nullable(DateTime64(9, 'UTC')) COMMENT 'Start of the iteration on this rank; its own host''s clock' CODEC(Delta, ZSTD),
    share Float64 COMMENT 'Share of the iteration in which they ran, 0 to 1 (beta)' CODEC(Gorilla, ZSTD),
    tx_mean Nullable(Float64) COMMENT 'Mean rate that the NIC sent meanwhile, bytes per second; NULL: too few samples (mu)' CODEC(Gorilla, ZSTD),
    tx_deviation Nullable(Float64) COMMENT 'Standard deviation of that rate (sigma)' CODEC(Gorilla, ZSTD),
    rx_mean Nullable(Float64) COMMENT 'Mean rate that the NIC received meanwhile, bytes per second' CODEC(Gorilla, ZSTD),
    rx_deviation Nullable(Float64) COMMENT 'Standard deviation of that rate' CODEC(Gorilla, ZSTD),
    differential Nullable(Float64) COMMENT 'Share of the other workers whose pattern is far from this one (Delta); NULL: there are none' CODEC(Gorilla, ZSTD),
    unexpected Nullable(Float64) COMMENT 'Distance to the range of regular iterations (D), in largest values of the class; NULL: no range is known' CODEC(Gorilla, ZSTD),
    is_abnormal Bool COMMENT 'Whether D is above 0, or Delta above the median of the class and 5 median absolute deviations',
    stored_at DateTime('UTC') MATERIALIZED now() COMMENT 'When the row was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree
PARTITION BY toMonday(ifNull(started_at, toDateTime64(0, 9, 'UTC')))
ORDER BY (job, attempt, iteration, rank, communicator, operator)
TTL stored_at + INTERVAL 30 DAY
SETTINGS ttl_only_drop_parts = 1
COMMENT 'Behaviour patterns: how steadily NICs moved while operators ran';
