-- What people say of verdicts, as it stands on the topic feedback. A later word of the same person replaces an earlier one.
CREATE TABLE IF NOT EXISTS feedback
(
    job LowCardinality(String) COMMENT 'Training job',
    verdict_id String COMMENT 'Verdict that was judged',
    who String COMMENT 'Who says so',
    said_at DateTime64(9, 'UTC') COMMENT 'When it was said',
    is_right Nullable(Bool) COMMENT 'Whether its first suspect was to blame; NULL: withdrawn',
    kind LowCardinality(String) COMMENT 'What the verdict said was wrong',
    first_iteration Int64 COMMENT 'First iteration in which its cause had been seen then',
    past_last_iteration Int64 COMMENT 'One past the last of them',
    note String COMMENT 'What more there is to say',
    device Nullable(String) COMMENT 'First suspect, named the same in all jobs, like nic:node-3/mlx5_1; NULL: it has no such name',
    rank Nullable(UInt32) COMMENT 'First rank of the first suspect; NULL: there was none',
    probability Nullable(Float64) COMMENT 'What the verdict said of the first suspect, 0 to 1; NULL: there was none',
    stored_at DateTime('UTC') MATERIALIZED now() COMMENT 'When the row was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree(said_at)
ORDER BY (job, verdict_id, who)
TTL stored_at + INTERVAL 3 YEAR
COMMENT 'Feedback: right or wrong, by verdict and person';
