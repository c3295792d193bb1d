-- State of GPUs, for people beside a verdict; judgement does not read it. At one state a second of 10,000 GPUs 864 million
-- rows a day, most of them like the one before; kept 7 days.
CREATE TABLE IF NOT EXISTS gpu_health
(
    job LowCardinality(String) COMMENT 'Training job',
    attempt Int64 COMMENT 'Start number of the job',
    rank UInt32 COMMENT 'Global rank that uses the GPU',
    device LowCardinality(String) COMMENT 'Name of the GPU on its host, for example gpu3',
    sampled_at DateTime64(9, 'UTC') COMMENT 'When it was looked at; end of the interval of means and new errors' CODEC(DoubleDelta, ZSTD),
    sm_clock_mhz Nullable(Float64) COMMENT 'Clock of the SMs, MHz' CODEC(Gorilla, ZSTD),
    memory_clock_mhz Nullable(Float64) COMMENT 'Clock of the memory, MHz' CODEC(Gorilla, ZSTD),
    power_w Nullable(Float64) COMMENT 'Mean power since the state before, W' CODEC(Gorilla, ZSTD),
    temperature_c Nullable(Float64) COMMENT 'Temperature of the GPU, degrees Celsius' CODEC(Gorilla, ZSTD),
    sm_active_ratio Nullable(Float64) COMMENT 'Mean share of the SMs that were busy since the state before, 0 to 1; NULL: the GPU does not tell' CODEC(Gorilla, ZSTD),
    throttle_reasons LowCardinality(Nullable(String)) COMMENT 'Why its clocks are below their highest, names with commas between; empty: nothing holds them; NULL: not known',
    ecc_corrected Nullable(Int64) COMMENT 'New memory errors that were corrected' CODEC(T64, ZSTD),
    ecc_uncorrected Nullable(Int64) COMMENT 'New memory errors that were not corrected' CODEC(T64, ZSTD),
    xid Nullable(Int64) COMMENT 'Number of a critical error, in a row of its own; NULL: none' CODEC(T64, ZSTD),
    stored_at DateTime('UTC') MATERIALIZED now() COMMENT 'When the row was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree
PARTITION BY toMonday(sampled_at)
ORDER BY (job, attempt, rank, device, sampled_at)
TTL stored_at + INTERVAL 7 DAY
SETTINGS ttl_only_drop_parts = 1
COMMENT 'State of GPUs: clocks, throttling, power, errors';
