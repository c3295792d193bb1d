-- Rows of operators that say how long a transfer between two ranks took, by themselves: `slowest_links` asks for all of a
-- job, and they are a small part of its operators. A recv names both ranks, so sends are left out. Projections of
-- operators would not serve: ClickHouse reads none where it must merge rows (FINAL).
--
-- The view copies what is inserted, with the moment of storing. Of two rows with equal keys the later one stays, as in
-- operators. That is why it chooses by columns of the key alone: if a later row of a transfer had another size or no
-- time, an earlier row would be left here.
CREATE TABLE IF NOT EXISTS transfers
(
    job LowCardinality(String) COMMENT 'Training job',
    attempt Int64 COMMENT 'Start number of the job',
    iteration Int64 COMMENT 'Number of the training iteration' CODEC(Delta, ZSTD),
    rank UInt32 COMMENT 'Global rank that received' CODEC(Delta, ZSTD),
    peer UInt32 COMMENT 'Global rank that sent' CODEC(Delta, ZSTD),
    communicator LowCardinality(String) COMMENT 'Communicator that it ran on',
    sequence Int64 COMMENT 'n-th from source to destination' CODEC(Delta, ZSTD),
    started_at Nullable(DateTime64(9, 'UTC')) COMMENT 'When the recv began to execute; its own host''s clock; NULL: not known' CODEC(Delta, ZSTD),
    size_bytes Nullable(Int64) COMMENT 'Payload, bytes' CODEC(T64, ZSTD),
    transfer_ns Nullable(Int64) COMMENT 'How long it took when both ranks were there, ns' CODEC(T64, ZSTD),
    stored_at DateTime('UTC') COMMENT 'When the row of operators was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree(stored_at)
PARTITION BY toMonday(ifNull(started_at, toDateTime64(0, 9, 'UTC')))
ORDER BY (job, attempt, iteration, rank, peer, communicator, sequence)
TTL stored_at + INTERVAL 30 DAY
SETTINGS ttl_only_drop_parts = 1
COMMENT 'Transfers between two ranks: the recvs of operators';

CREATE MATERIALIZED VIEW IF NOT EXISTS transfers_of_operators TO transfers AS
SELECT
    job,
    attempt,
    iteration,
    rank,
    assumeNotNull(peer) AS peer,
    communicator,
    sequence,
    started_at,
    size_bytes,
    transfer_ns,
    stored_at
FROM operators
WHERE operators.operator = 'recv' AND operators.peer IS NOT NULL;

-- What was stored before. A row that comes meanwhile, or a second time, is stored by its key once, the later one stays.
INSERT INTO transfers
    (job, attempt, iteration, rank, peer, communicator, sequence, started_at, size_bytes, transfer_ns, stored_at)
SELECT
    job,
    attempt,
    iteration,
    rank,
    assumeNotNull(operators.peer),
    communicator,
    sequence,
    started_at,
    size_bytes,
    transfer_ns,
    stored_at
FROM operators FINAL
WHERE operators.operator = 'recv' AND operators.peer IS NOT NULL
SETTINGS max_partitions_per_insert_block = 0;
