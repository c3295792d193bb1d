-- The tables that the sink fills. Rules of this folder: numbered, forward only, never edited once released; each
-- statement may run twice (IF NOT EXISTS), because two workers may migrate at the same moment; each ends with a
-- semicolon at the end of a line.
--
-- Input is stored at least once. Every table is therefore a ReplacingMergeTree whose ORDER BY names a row by what it
-- is, never by when it came: a replay with other batch borders gives the same rows. Read with FINAL.
--
-- Retention counts from stored_at, the moment of storing, so that an old recording which is replayed today stays. It
-- needs no setting; to change it: ALTER TABLE operators MODIFY TTL stored_at + INTERVAL 60 DAY. stored_at is
-- materialized: SELECT * leaves it out, and two replays compare equal.
--
-- Partitions follow event time, which is the same in every replay; months where rows are few, weeks where they are
-- many, so that whole parts expire. Numbers given below are for a job of 10,000 ranks and 10 s per iteration.

-- 10,000 rows per start of the job; kept 2 years.
CREATE TABLE IF NOT EXISTS jobs
(
    job LowCardinality(String) COMMENT 'Training job',
    attempt Int64 COMMENT 'Start number of the job',
    rank UInt32 COMMENT 'Global rank',
    world_size UInt32 COMMENT 'Ranks of the job',
    logged_ranks UInt32 COMMENT 'Ranks of the job that log',
    is_logged Bool COMMENT 'False: the place of this rank is known, and it sends nothing',
    clock LowCardinality(String) COMMENT 'shared: times of different hosts compare to 0.1 ms; per_host: they do not',
    host LowCardinality(Nullable(String)) COMMENT 'Host name; NULL: not announced',
    gpu Nullable(Int64) COMMENT 'GPU index on its host; NULL: not announced',
    nic LowCardinality(Nullable(String)) COMMENT 'NIC that the rank uses; NULL: not announced',
    switch LowCardinality(Nullable(String)) COMMENT 'Switch behind the NIC; NULL: not announced',
    sources Array(LowCardinality(String)) COMMENT 'What the rank sends: commops, bandwidth, iterations',
    communicators Array(LowCardinality(String)) COMMENT 'Communicators that the rank is in; their members are the rows that name them',
    communicator_kinds Array(LowCardinality(String)) COMMENT 'Kind of each: world, dp, tp, pp, ep, cp, unknown',
    communicator_sizes Array(UInt32) COMMENT 'Ranks in each',
    lost_rows Nullable(Int64) COMMENT 'Rows that the exporter is known to have dropped; NULL: it does not count them',
    recorded_until Nullable(DateTime64(9, 'UTC')) COMMENT 'End of a recording; NULL: live',
    stored_at DateTime('UTC') MATERIALIZED now() COMMENT 'When the row was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree
ORDER BY (job, attempt, rank)
TTL stored_at + INTERVAL 2 YEAR
COMMENT 'One row per rank and start of a job: where it lives and what it sends';

-- 8,640 rows a day; kept 2 years. Of two judgements of one iteration, the one that knew more ranks stays.
CREATE TABLE IF NOT EXISTS iterations
(
    job LowCardinality(String) COMMENT 'Training job',
    attempt Int64 COMMENT 'Start number of the job',
    iteration Int64 COMMENT 'Number of the training iteration, the job''s own',
    started_at DateTime64(9, 'UTC') COMMENT 'Earliest start over the ranks' CODEC(Delta, ZSTD),
    elapsed_ns Int64 COMMENT 'Time of the iteration, ns: the largest of its ranks''',
    reference_ns Nullable(Float64) COMMENT 'Mean of the window before it, ns; NULL: no window yet',
    phase LowCardinality(String) COMMENT 'train, eval or checkpoint',
    is_irregular Nullable(Bool) COMMENT 'Longer than delta times the reference, and outside its noise; NULL: not judged',
    ranks_reported UInt32 COMMENT 'Ranks that sent evidence of it',
    verdict_ids Array(String) COMMENT 'Verdicts whose cause was seen in it',
    stored_at DateTime('UTC') MATERIALIZED now() COMMENT 'When the row was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree(ranks_reported)
PARTITION BY toYYYYMM(started_at)
ORDER BY (job, attempt, iteration)
TTL stored_at + INTERVAL 2 YEAR
COMMENT 'One row per judged iteration of a job';

-- 86 million rows a day, about 1 GB; kept 30 days.
CREATE TABLE IF NOT EXISTS rank_iterations
(
    job LowCardinality(String) COMMENT 'Training job',
    attempt Int64 COMMENT 'Start number of the job',
    iteration Int64 COMMENT 'Number of the training iteration' CODEC(Delta, ZSTD),
    rank UInt32 COMMENT 'Global rank' CODEC(Delta, ZSTD),
    started_at Nullable(DateTime64(9, 'UTC')) COMMENT 'Start of the iteration on this rank; its own host''s clock' CODEC(Delta, ZSTD),
    elapsed_ns Nullable(Int64) COMMENT 'Time of the iteration on this rank, ns' CODEC(T64, ZSTD),
    work_ns Nullable(Int64) COMMENT 'Time between communication operators, ns: own work, or waiting that nobody logged' CODEC(T64, ZSTD),
    operators Int64 COMMENT 'Communication operators in it' CODEC(T64, ZSTD),
    late_rows Int64 COMMENT 'Rows that came after the iteration was closed' CODEC(T64, ZSTD),
    score Nullable(Float64) COMMENT 'Largest score of the detectors, higher is stranger; NULL: no opinion',
    stored_at DateTime('UTC') MATERIALIZED now() COMMENT 'When the row was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree
PARTITION BY toMonday(ifNull(started_at, toDateTime64(0, 9, 'UTC')))
ORDER BY (job, attempt, iteration, rank)
TTL stored_at + INTERVAL 30 DAY
SETTINGS ttl_only_drop_parts = 1
COMMENT 'One row per rank and iteration';

-- Only ranks and iterations that the search for a cause reached; kept 30 days.
CREATE TABLE IF NOT EXISTS operators
(
    job LowCardinality(String) COMMENT 'Training job',
    attempt Int64 COMMENT 'Start number of the job',
    iteration Int64 COMMENT 'Number of the training iteration' CODEC(Delta, ZSTD),
    rank UInt32 COMMENT 'Global rank that issued it' CODEC(Delta, ZSTD),
    communicator LowCardinality(String) COMMENT 'Communicator that it ran on',
    operator LowCardinality(String) COMMENT 'all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, reduce, gather, scatter, barrier, send or recv',
    sequence Int64 COMMENT 'n-th operator on its communicator; send and recv: n-th from source to destination' CODEC(Delta, ZSTD),
    peer Nullable(UInt32) COMMENT 'Global rank at the other end of a send or recv; NULL: a collective',
    started_at Nullable(DateTime64(9, 'UTC')) COMMENT 'When it began to execute; its own host''s clock; NULL: not known' CODEC(Delta, ZSTD),
    elapsed_ns Nullable(Int64) COMMENT 'How long it ran, waiting included, ns; NULL: it never ended' CODEC(T64, ZSTD),
    size_bytes Nullable(Int64) COMMENT 'Payload of this rank, bytes' CODEC(T64, ZSTD),
    gap_ns Nullable(Int64) COMMENT 'Start minus the latest end of this rank''s operators before it, ns' CODEC(T64, ZSTD),
    wait_ns Nullable(Int64) COMMENT 'Elapsed minus the smallest elapsed of the collective, ns: waiting for others' CODEC(T64, ZSTD),
    transfer_ns Nullable(Int64) COMMENT 'What is left when all have arrived, ns' CODEC(T64, ZSTD),
    stored_at DateTime('UTC') MATERIALIZED now() COMMENT 'When the row was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree
PARTITION BY toMonday(ifNull(started_at, toDateTime64(0, 9, 'UTC')))
ORDER BY (job, attempt, iteration, rank, communicator, operator, ifNull(toInt64(peer), -1), sequence)
TTL stored_at + INTERVAL 30 DAY
SETTINGS ttl_only_drop_parts = 1
COMMENT 'Communication operators of irregular iterations, and of a few regular ones to compare with';

-- At one sample a second of one NIC per rank 864 million rows a day; kept 7 days.
CREATE TABLE IF NOT EXISTS bandwidth
(
    job LowCardinality(String) COMMENT 'Training job',
    attempt Int64 COMMENT 'Start number of the job',
    rank UInt32 COMMENT 'A global rank that uses the device',
    path LowCardinality(String) COMMENT 'nic, pcie or nvlink',
    device LowCardinality(String) COMMENT 'Name of the device, for example mlx5_0',
    sampled_at DateTime64(9, 'UTC') COMMENT 'End of the interval that the rates are of' CODEC(DoubleDelta, ZSTD),
    tx_bytes_per_s Nullable(Float64) COMMENT 'Mean rate sent since the device''s sample before, bytes/s' CODEC(Gorilla, ZSTD),
    rx_bytes_per_s Nullable(Float64) COMMENT 'Mean rate received since the device''s sample before, bytes/s' CODEC(Gorilla, ZSTD),
    stored_at DateTime('UTC') MATERIALIZED now() COMMENT 'When the row was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree
PARTITION BY toMonday(sampled_at)
ORDER BY (job, attempt, rank, path, device, sampled_at)
TTL stored_at + INTERVAL 7 DAY
SETTINGS ttl_only_drop_parts = 1
COMMENT 'Samples of GPU-NIC bandwidth';

-- A few rows a day; kept 3 years, without partitions.
CREATE TABLE IF NOT EXISTS verdicts
(
    job LowCardinality(String) COMMENT 'Training job',
    verdict_id String COMMENT 'Name of the verdict, the same in every run and after every restart',
    revision UInt32 COMMENT 'The newest revision stays',
    attempt Int64 COMMENT 'Start number of the job',
    state LowCardinality(String) COMMENT 'open or closed',
    event LowCardinality(String) COMMENT 'What this revision is: opened, changed, continued or closed',
    kind LowCardinality(String) COMMENT 'slow_rank, slow_nic, slow_link, slow_communicator, slow_stage, imbalance or hang',
    first_iteration Int64 COMMENT 'First iteration in which the cause was seen',
    past_last_iteration Int64 COMMENT 'One past the last iteration in which it was seen so far',
    delta Nullable(Float64) COMMENT 'Irregular over regular iteration time, a ratio; NULL: not known',
    lost_s Float64 COMMENT 'Iteration seconds lost so far; times world_size: GPU seconds',
    world_size UInt32 COMMENT 'GPUs that waited; 0: not known',
    communicator LowCardinality(Nullable(String)) COMMENT 'Communicator in which it was seen, where one stands out',
    evidence String COMMENT 'What it rests on, in words',
    last_seen_at Nullable(DateTime64(9, 'UTC')) COMMENT 'Event time of the newest iteration that this revision knows',
    close_reason LowCardinality(Nullable(String)) COMMENT 'recovered, finished, restarted or silent; NULL: open',
    stored_at DateTime('UTC') MATERIALIZED now() COMMENT 'When the row was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree(revision)
ORDER BY (job, verdict_id)
TTL stored_at + INTERVAL 3 YEAR
COMMENT 'One row per verdict, in its newest revision';

-- Every revision's, so that one can see how the suspicion moved; kept 3 years.
CREATE TABLE IF NOT EXISTS suspects
(
    job LowCardinality(String) COMMENT 'Training job',
    verdict_id String COMMENT 'Verdict that names this suspect',
    revision UInt32 COMMENT 'Revision of the verdict',
    position UInt16 COMMENT '0: the most probable one; suspects of a revision are alternatives',
    device LowCardinality(String) COMMENT 'gpu, host, nic, link, switch or stage',
    rank UInt32 COMMENT 'First of its ranks; a link: the sender',
    ranks Array(UInt32) COMMENT 'All ranks that the device carries',
    peer Nullable(UInt32) COMMENT 'Receiving rank of a link; NULL: no link',
    host LowCardinality(Nullable(String)) COMMENT 'Host name; NULL: not announced',
    gpu Nullable(Int64) COMMENT 'GPU index on its host; NULL: not announced, or not one GPU',
    nic LowCardinality(Nullable(String)) COMMENT 'NIC; NULL: not announced, or not one NIC',
    switch LowCardinality(Nullable(String)) COMMENT 'Switch; NULL: not announced',
    probability Float64 COMMENT 'Chance that this one is a true cause, 0 to 1; what is missing to 1 over a revision: none of these',
    stored_at DateTime('UTC') MATERIALIZED now() COMMENT 'When the row was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree
ORDER BY (job, verdict_id, revision, position)
TTL stored_at + INTERVAL 3 YEAR
COMMENT 'Suspects of every revision of every verdict; for the newest read the view newest_suspects';
