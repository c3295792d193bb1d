-- The tables that the sink fills, and the views over them. Rules of this folder: numbered, forward only, never edited once released; each
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
-- A merge that meets a full disk may leave a broken part behind, and its rows are lost (ClickHouse 26.9, with our own
-- inserts or any others). So no table takes rows while less than 256 MiB are free: merges go on, and the sink waits.
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
    replicas_of Nullable(UInt32) COMMENT 'First of the ranks that hold the same parameters, itself included: those of a set of replicas have the same; NULL: not announced',
    stored_at DateTime('UTC') MATERIALIZED now() COMMENT 'When the row was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree
ORDER BY (job, attempt, rank)
TTL stored_at + INTERVAL 2 YEAR
SETTINGS min_free_disk_bytes_to_perform_insert = 268435456
COMMENT 'One row per rank and start of a job: where it lives and what it sends';

-- One row per start of a job that is over; kept 2 years.
CREATE TABLE IF NOT EXISTS attempt_ends
(
    job LowCardinality(String) COMMENT 'Training job',
    attempt Int64 COMMENT 'Start number of the job',
    reason LowCardinality(String) COMMENT 'finished, restarted or stopped, by the word of its ranks; a start that only fell silent has no row',
    ended_at Nullable(DateTime64(9, 'UTC')) COMMENT 'Start of its newest iteration; NULL: it had none',
    stored_at DateTime('UTC') MATERIALIZED now() COMMENT 'When the row was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree
ORDER BY (job, attempt)
TTL stored_at + INTERVAL 2 YEAR
SETTINGS min_free_disk_bytes_to_perform_insert = 268435456
COMMENT 'Starts of jobs that are over, and why';

-- 8,640 rows a day; kept 2 years. Of two judgements of one iteration, the one that knew more ranks stays.
CREATE TABLE IF NOT EXISTS iterations
(
    job LowCardinality(String) COMMENT 'Training job',
    attempt Int64 COMMENT 'Start number of the job',
    iteration Int64 COMMENT 'Number of the training iteration, the job''s own',
    started_at DateTime64(9, 'UTC') COMMENT 'Earliest start over the ranks' CODEC(Delta, ZSTD),
    elapsed_ns Int64 COMMENT 'Time of the iteration, ns: the largest of its ranks''',
    reference_ns Nullable(Float64) COMMENT 'Mean of the window before it, ns; while a verdict is open, of the window before that opened; NULL: no window yet',
    phase LowCardinality(String) COMMENT 'train, eval or checkpoint',
    is_irregular Nullable(Bool) COMMENT 'Longer than delta times the reference, and outside its noise; NULL: not judged',
    ranks_reported UInt32 COMMENT 'Ranks that sent evidence of it',
    verdict_ids Array(String) COMMENT 'Verdicts whose cause was seen in it',
    part Nullable(String) COMMENT 'If irregular, what on its critical path took most beyond its usual time, in words; NULL: no single one did, or not looked into',
    part_rank Nullable(UInt32) COMMENT 'The rank that worked, or that sent; NULL: a collective',
    part_ns Nullable(Float64) COMMENT 'How long that took, ns',
    part_usual_ns Nullable(Float64) COMMENT 'Its usual time, ns',
    last_rank Nullable(UInt32) COMMENT 'Rank that worked longest beyond the others of its stage; NULL: not known',
    last_ns Nullable(Float64) COMMENT 'How much longer it worked, ns',
    stored_at DateTime('UTC') MATERIALIZED now() COMMENT 'When the row was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree(ranks_reported)
PARTITION BY toYYYYMM(started_at)
ORDER BY (job, attempt, iteration)
TTL stored_at + INTERVAL 2 YEAR
SETTINGS min_free_disk_bytes_to_perform_insert = 268435456
COMMENT 'One row per judged iteration of a job';

-- 86 million rows a day, about 1 GB, where ranks send all numbers 2.2 GB; kept 30 days.
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
    lost_rows Int64 COMMENT 'Rows of this start that are known to be lost so far' CODEC(T64, ZSTD),
    score Nullable(Float64) COMMENT 'Largest score of the detectors: from 1 on strange; NULL: no opinion',
    loss Nullable(Float64) COMMENT 'Loss that the rank computed; inf: not finite; NULL: not reported' CODEC(ZSTD),
    grad_norm Nullable(Float64) COMMENT 'Global norm of the gradient before clipping, as the rank sees it after the reduction; inf: not finite; NULL: not reported' CODEC(ZSTD),
    local_grad_norm Nullable(Float64) COMMENT 'Norm of the rank''s own gradient before any reduction; inf: not finite; NULL: not reported' CODEC(ZSTD),
    update_rms Nullable(Float64) COMMENT 'Largest RMS of the update over the parameters; inf: not finite; NULL: not reported' CODEC(ZSTD),
    attention_logit Nullable(Float64) COMMENT 'Largest attention logit of the step, before the softmax; inf: not finite; NULL: not reported' CODEC(ZSTD),
    not_finite Nullable(Int64) COMMENT 'Elements of loss and gradients that are NaN or infinite; NULL: not reported' CODEC(T64, ZSTD),
    parameters_checksum Nullable(Int64) COMMENT 'Of the rank''s parameters after the step; equal within a set of replicas (jobs.replicas_of); NULL: not taken' CODEC(ZSTD),
    stored_at DateTime('UTC') MATERIALIZED now() COMMENT 'When the row was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree
PARTITION BY toMonday(ifNull(started_at, toDateTime64(0, 9, 'UTC')))
ORDER BY (job, attempt, iteration, rank)
TTL stored_at + INTERVAL 30 DAY
SETTINGS ttl_only_drop_parts = 1, min_free_disk_bytes_to_perform_insert = 268435456
COMMENT 'One row per rank and iteration';

-- With an audit each 50 steps and sets of 4 replicas 1.7 million rows a day; kept 30 days.
CREATE TABLE IF NOT EXISTS audits
(
    job LowCardinality(String) COMMENT 'Training job',
    attempt Int64 COMMENT 'Start number of the job',
    iteration Int64 COMMENT 'Number of the training iteration in which it was made' CODEC(Delta, ZSTD),
    of_rank UInt32 COMMENT 'Global rank whose micro-batch was computed again' CODEC(Delta, ZSTD),
    rank UInt32 COMMENT 'Global rank that computed it' CODEC(Delta, ZSTD),
    checksum Int64 COMMENT 'Of the gradients; all ranks of one iteration and of_rank must agree' CODEC(ZSTD),
    started_at Nullable(DateTime64(9, 'UTC')) COMMENT 'Start of the iteration on the rank that computed; its own host''s clock; NULL: not known' CODEC(Delta, ZSTD),
    stored_at DateTime('UTC') MATERIALIZED now() COMMENT 'When the row was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree
PARTITION BY toMonday(ifNull(started_at, toDateTime64(0, 9, 'UTC')))
ORDER BY (job, attempt, iteration, of_rank, rank)
TTL stored_at + INTERVAL 30 DAY
SETTINGS ttl_only_drop_parts = 1, min_free_disk_bytes_to_perform_insert = 268435456
COMMENT 'Votes of audits: one row per audit and rank that computed it';

-- Of pauses that torch_comms tells of, from 0.1 ms on: with one an iteration and rank 86 million rows a day; kept 30 days.
CREATE TABLE IF NOT EXISTS pauses
(
    job LowCardinality(String) COMMENT 'Training job',
    attempt Int64 COMMENT 'Start number of the job',
    iteration Int64 COMMENT 'Number of the training iteration that it was in' CODEC(Delta, ZSTD),
    rank UInt32 COMMENT 'Global rank' CODEC(Delta, ZSTD),
    cause LowCardinality(String) COMMENT 'garbage_collection, data_loader, checkpoint_write, host_to_device, synchronization, compilation, cpu_throttled, cpu_wait, memory_pressure, io_wait, python, other, gpu_kernels or gpu_idle',
    started_at DateTime64(9, 'UTC') COMMENT 'When it began; its own host''s clock. Of cpu_ and io_wait and memory_pressure, which are sums: the iteration' CODEC(Delta, ZSTD),
    elapsed_ns Int64 COMMENT 'How long it took, ns' CODEC(T64, ZSTD),
    stored_at DateTime('UTC') MATERIALIZED now() COMMENT 'When the row was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree
PARTITION BY toMonday(started_at)
ORDER BY (job, attempt, iteration, rank, cause, started_at)
TTL stored_at + INTERVAL 30 DAY
SETTINGS ttl_only_drop_parts = 1, min_free_disk_bytes_to_perform_insert = 268435456
COMMENT 'What ranks did, or waited for, in their own time: one row per pause';

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
    wait_ns Nullable(Int64) COMMENT 'From this rank''s start to the last partner''s, ns: waiting for others' CODEC(T64, ZSTD),
    transfer_ns Nullable(Int64) COMMENT 'What is left when all have arrived, ns' CODEC(T64, ZSTD),
    abnormal_ratio Nullable(Float64) COMMENT 'Elapsed over what it would have been without what was slow in the iteration; above 1.1: abnormal; NULL: not judged',
    stored_at DateTime('UTC') MATERIALIZED now() COMMENT 'When the row was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree
PARTITION BY toMonday(ifNull(started_at, toDateTime64(0, 9, 'UTC')))
ORDER BY (job, attempt, iteration, rank, communicator, operator, ifNull(toInt64(peer), -1), sequence)
TTL stored_at + INTERVAL 30 DAY
SETTINGS ttl_only_drop_parts = 1, min_free_disk_bytes_to_perform_insert = 268435456
COMMENT 'Communication operators of suspect iterations that were read, and of hangs; not those of regular ones';

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
SETTINGS ttl_only_drop_parts = 1, min_free_disk_bytes_to_perform_insert = 268435456
COMMENT 'Samples of GPU-NIC bandwidth';

-- A few rows a day; kept 3 years, without partitions.
CREATE TABLE IF NOT EXISTS verdicts
(
    job LowCardinality(String) COMMENT 'Training job',
    verdict_id String COMMENT 'Name of the verdict, the same in every run and after every restart',
    revision UInt32 COMMENT 'The newest revision stays',
    attempt Int64 COMMENT 'Start number of the job',
    state LowCardinality(String) COMMENT 'open or closed',
    event LowCardinality(String) COMMENT 'What this revision is: opened, changed, raised, continued or closed',
    kind LowCardinality(String) COMMENT 'slow_rank, slow_nic, slow_link, slow_communicator, slow_stage, imbalance, hang, corruption, loss_spike or custom',
    first_iteration Int64 COMMENT 'First iteration in which the cause was seen',
    past_last_iteration Int64 COMMENT 'One past the last iteration in which it was seen so far',
    delta Nullable(Float64) COMMENT 'Irregular over regular iteration time, a ratio; NULL: not known',
    lost_s Float64 COMMENT 'Iteration seconds lost so far; times world_size: GPU seconds',
    world_size UInt32 COMMENT 'GPUs that waited; 0: not known',
    communicator LowCardinality(Nullable(String)) COMMENT 'Communicator in which it was seen, where one stands out',
    evidence String COMMENT 'What it rests on, in words',
    last_seen_at Nullable(DateTime64(9, 'UTC')) COMMENT 'Event time of the newest iteration that this revision knows',
    close_reason LowCardinality(Nullable(String)) COMMENT 'recovered, finished, restarted, silent, stopped or merged; NULL: open',
    severity LowCardinality(Nullable(String)) COMMENT 'How urgent, by what is lost, the worst so far: note, ticket or page; NULL: nobody said',
    recovers_ratio Nullable(Float64) COMMENT 'Share of what the iterations took longer that would come back with the first suspect as usual, 0 to 1; NULL: not known',
    detector LowCardinality(Nullable(String)) COMMENT 'Name of the detector that opened a verdict of kind custom; NULL: of all other kinds',
    lasted_s Nullable(Float64) COMMENT 'Seconds of the job''s time from the first to the newest iteration in which the cause was seen; NULL: a hang, or nobody said',
    explanation Nullable(String) COMMENT 'Reasons, as JSON (verdict-json.md): who waited for whom, what was ruled out, what is usual, delta in force; NULL: none',
    layer LowCardinality(String) COMMENT 'Where the cause lies: hardware, host, network, software, data or unknown',
    cause LowCardinality(Nullable(String)) COMMENT 'What the time went to, as in pauses; NULL: nothing that is known covers enough of it',
    cause_share Nullable(Float64) COMMENT 'Share of what took longer that the cause covers, 0.8 to 1; NULL: no cause',
    stored_at DateTime('UTC') MATERIALIZED now() COMMENT 'When the row was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree(revision)
ORDER BY (job, verdict_id)
TTL stored_at + INTERVAL 3 YEAR
SETTINGS min_free_disk_bytes_to_perform_insert = 268435456
COMMENT 'One row per verdict, in its newest revision';

-- Every revision's, so that one can see how the suspicion moved; kept 3 years.
CREATE TABLE IF NOT EXISTS suspects
(
    job LowCardinality(String) COMMENT 'Training job',
    verdict_id String COMMENT 'Verdict that names this suspect',
    revision UInt32 COMMENT 'Revision of the verdict',
    position UInt16 COMMENT '0: the most probable one; suspects of a revision are alternatives',
    device LowCardinality(String) COMMENT 'Kind of device',
    rank UInt32 COMMENT 'First of its ranks; a link: the sender',
    ranks Array(UInt32) COMMENT 'All ranks that the device carries',
    peer Nullable(UInt32) COMMENT 'Receiving rank of a link; NULL: no link',
    peer_host LowCardinality(Nullable(String)) COMMENT 'Host of the receiving rank of a link; NULL: no link, or not announced',
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
SETTINGS min_free_disk_bytes_to_perform_insert = 268435456
COMMENT 'Suspects of every revision of every verdict; for the newest read the view newest_suspects';

-- Suspects of every revision, each with the attempt of its verdict, the columns that name the device (`named_by`, itself
-- last), and its `name`: as alerts name it, short. Columns beside these are empty, but for the switch above a host: nobody
-- accuses what else its first rank uses. The two lines with lists of kinds are made (`tests.infra.docs.made_parts`).
CREATE VIEW IF NOT EXISTS named_suspects AS
WITH
    transform(suspects.device, ['gpu', 'host', 'nic', 'link', 'switch', 'stage', 'program'],
        ['GPU', 'host', 'NIC', 'link', 'switch', 'pipeline stage', 'program'], suspects.device) AS noun,
    transform(suspects.device, ['gpu', 'host', 'nic', 'link', 'switch', 'stage', 'program'],
        ['host gpu', 'host', 'host nic', 'host nic', 'switch', '', ''], concat('host ', suspects.device)) AS names
SELECT
    suspects.job AS job,
    known.attempt AS attempt,
    suspects.verdict_id AS verdict_id,
    suspects.revision AS revision,
    suspects.revision = known.revision AS is_newest,
    suspects.position AS position,
    suspects.device AS device,
    suspects.rank AS rank,
    suspects.ranks AS ranks,
    suspects.peer AS peer,
    splitByWhitespace(names) AS named_by,
    if(has(named_by, 'host'), suspects.host, NULL) AS host,
    suspects.peer_host AS peer_host,
    if(has(named_by, 'gpu') AND length(suspects.ranks) = 1, suspects.gpu, NULL) AS gpu,
    if(has(named_by, 'nic'), suspects.nic, NULL) AS nic,
    if(empty(named_by), NULL, suspects.switch) AS switch,
    suspects.probability AS probability,
    multiIf(named_by[-1] = 'gpu', toString(gpu), named_by[-1] = 'nic', nic, named_by[-1] = 'switch', switch,
        named_by[-1] = 'host', host, NULL) AS own_name,
    concat(
        multiIf(
            peer IS NOT NULL, concat(noun, ' from ', ifNull(concat(nic, ' on ', host), concat('rank ', toString(rank))),
                ' to ', ifNull(peer_host, concat('rank ', toString(assumeNotNull(peer))))),
            own_name IS NOT NULL, concat(noun, ' ', assumeNotNull(own_name)),
            concat(if(has(named_by, 'gpu'), '', concat(noun, ' of ')), 'rank ', toString(rank))
        ),
        if(peer IS NULL AND length(named_by) > 1, ifNull(concat(' on ', host), ''), ''),
        -- The others may live on other hosts
        if(has(named_by, 'gpu') AND length(ranks) > 1, concat(' and ', toString(length(ranks) - 1), ' more'), '')
    ) AS name
FROM suspects FINAL
INNER JOIN (SELECT job, attempt, verdict_id, revision FROM verdicts FINAL) AS known
    ON known.job = suspects.job AND known.verdict_id = suspects.verdict_id;

-- Suspects of the newest revision of each verdict. A newest revision that names nobody has no rows here: the suspects of
-- older revisions were taken back.
CREATE VIEW IF NOT EXISTS newest_suspects AS
SELECT * EXCEPT (attempt, is_newest) FROM named_suspects WHERE is_newest;

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
SETTINGS ttl_only_drop_parts = 1, min_free_disk_bytes_to_perform_insert = 268435456
COMMENT 'State of GPUs: clocks, throttling, power, errors';

-- What nodes and devices reported: a few rows a day of each host; kept 30 days.
CREATE TABLE IF NOT EXISTS events
(
    job LowCardinality(String) COMMENT 'Training job',
    attempt Int64 COMMENT 'Start number of the job',
    rank UInt32 COMMENT 'Global rank that uses the device, or one on the host',
    host LowCardinality(String) COMMENT 'Host; empty: not known',
    device LowCardinality(String) COMMENT 'Name on its host, for example gpu3 or mlx5_0; empty: the host itself',
    kind LowCardinality(String) COMMENT 'xid, ecc, throttle, link_down, link_up, link_errors, pcie, out_of_memory, process_exit, node_state, stack (a frame), function or metric',
    code Nullable(Int64) COMMENT 'Number of an XID, growth of a counter, exit status, depth of a frame, share in thousandths, iteration of a metric; NULL: none' CODEC(T64, ZSTD),
    detail String COMMENT 'What more is known' CODEC(ZSTD),
    reported_at DateTime64(9, 'UTC') COMMENT 'When it was reported' CODEC(DoubleDelta, ZSTD),
    stored_at DateTime('UTC') MATERIALIZED now() COMMENT 'When the row was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree
PARTITION BY toStartOfMonth(reported_at)
ORDER BY (job, attempt, rank, host, device, kind, reported_at, detail)
TTL stored_at + INTERVAL 30 DAY
SETTINGS ttl_only_drop_parts = 1, min_free_disk_bytes_to_perform_insert = 268435456
COMMENT 'What nodes and devices reported: XIDs, memory errors, links, PCIe, lack of memory, ended processes';

-- How the NICs were used while operators ran, of iterations that were looked into: see infra/docs/judgement.md#bandwidth-of-nics. Some
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
SETTINGS ttl_only_drop_parts = 1, min_free_disk_bytes_to_perform_insert = 268435456
COMMENT 'Behaviour patterns: how steadily NICs moved while operators ran';

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
SETTINGS ttl_only_drop_parts = 1, min_free_disk_bytes_to_perform_insert = 268435456
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

-- What questions about verdicts share. Every revision of a verdict, by itself: `verdicts` keeps the newest one only, and
-- how a suspicion grew, and at what cost, is asked afterwards. The view copies what is inserted.
CREATE TABLE IF NOT EXISTS verdict_revisions
(
    job LowCardinality(String) COMMENT 'Training job',
    verdict_id String COMMENT 'Name of the verdict',
    revision UInt32 COMMENT 'Number of the revision, from 1 on',
    event LowCardinality(String) COMMENT 'What this revision is: opened, changed, raised, continued or closed',
    past_last_iteration Int64 COMMENT 'One past the last iteration in which the cause was seen until then',
    lost_s Float64 COMMENT 'Iteration seconds lost until then; times world_size: GPU seconds',
    world_size UInt32 COMMENT 'GPUs that waited; 0: not known',
    severity LowCardinality(Nullable(String)) COMMENT 'How urgent it was: note, ticket or page; NULL: nobody said',
    last_seen_at Nullable(DateTime64(9, 'UTC')) COMMENT 'Event time of the newest iteration that the revision knows',
    stored_at DateTime('UTC') COMMENT 'When the row of verdicts was stored; retention counts from it'
)
ENGINE = ReplacingMergeTree
ORDER BY (job, verdict_id, revision)
TTL stored_at + INTERVAL 3 YEAR
SETTINGS min_free_disk_bytes_to_perform_insert = 268435456
COMMENT 'When each revision of a verdict came, and what was lost until then';

CREATE MATERIALIZED VIEW IF NOT EXISTS revisions_of_verdicts TO verdict_revisions AS
SELECT job, verdict_id, revision, event, past_last_iteration, lost_s, world_size, severity, last_seen_at, stored_at
FROM verdicts;

-- Verdicts in their newest revision, and what each costs, as sinks/advice.py has it for Python: `gpu_hours_per_hour` is the
-- share of the job's time that is lost while the cause is there, times its GPUs. Of verdicts that do not say how long that
-- was, as if all iterations took as long as the irregular ones; of a hang, all GPUs.
--
-- A worker publishes a revision only when the loss has doubled. Of an open verdict `lost_s`, `lasted_s`,
-- `past_last_iteration` and `last_seen_at` therefore go on with the iterations that are stored since with its cause: at the
-- share that was lost until then. A hang that is open has lost all of the time since its iteration began.
CREATE VIEW IF NOT EXISTS incidents AS
WITH
    newest AS (SELECT * FROM verdicts FINAL),
    open_ones AS (SELECT job, attempt, verdict_id, first_iteration FROM newest WHERE state = 'open'),
    seen AS
    (
        SELECT
            open_ones.job AS job,
            open_ones.verdict_id AS verdict_id,
            max(times.iteration) + 1 AS past_last_iteration,
            maxIf(toNullable(times.started_at), has(times.verdict_ids, open_ones.verdict_id)) AS last_seen_at,
            minIf(toNullable(times.started_at), times.iteration = open_ones.first_iteration) AS began_at
        FROM open_ones
        INNER JOIN
        (
            -- Where no source gives start times, they are stored as one long before 1970: that is none.
            SELECT
                job, attempt, iteration, verdict_ids,
                if(iterations.started_at > toDateTime64(0, 9, 'UTC'), iterations.started_at, NULL) AS started_at
            FROM iterations FINAL
            WHERE (job, attempt) IN (SELECT job, attempt FROM open_ones)
        ) AS times ON times.job = open_ones.job AND times.attempt = open_ones.attempt
        WHERE has(times.verdict_ids, open_ones.verdict_id) OR times.iteration = open_ones.first_iteration
        GROUP BY job, verdict_id
    ),
    opened AS
    (
        SELECT job, verdict_id, min(last_seen_at) AS opened_at FROM verdict_revisions GROUP BY job, verdict_id
    )
SELECT
    known.job AS job,
    known.attempt AS attempt,
    known.verdict_id AS verdict_id,
    known.revision AS revision,
    known.state AS state,
    known.event AS event,
    known.kind AS kind,
    known.first_iteration AS first_iteration,
    greatest(known.past_last_iteration, seen.past_last_iteration) AS past_last_iteration,
    if(known.kind IN ('hang', 'mismatch'), NULL, known.delta) AS delta, -- one iteration that never ends is no multiple of the others
    -- Seconds of the job since the newest revision in which the cause went on
    ifNull(greatest(toUnixTimestamp64Nano(seen.last_seen_at) - toUnixTimestamp64Nano(known.last_seen_at), 0) / 1e9, 0)
        AS since_revision_s,
    multiIf(
        known.kind IN ('hang', 'mismatch') AND known.state = 'open',
        greatest(known.lost_s, ifNull(dateDiff('millisecond', seen.began_at, now64(3, 'UTC')) / 1e3, 0)),
        ifNull(known.lasted_s, 0) > 0, known.lost_s * (1 + since_revision_s / known.lasted_s),
        known.lost_s
    ) AS lost_s,
    known.lasted_s + since_revision_s AS lasted_s,
    known.world_size AS world_size,
    known.communicator AS communicator,
    known.evidence AS evidence,
    greatest(known.last_seen_at, ifNull(seen.last_seen_at, known.last_seen_at)) AS last_seen_at,
    known.close_reason AS close_reason,
    known.severity AS severity,
    known.recovers_ratio AS recovers_ratio,
    known.detector AS detector,
    known.explanation AS explanation,
    known.layer AS layer,
    known.cause AS cause,
    known.cause_share AS cause_share,
    opened.opened_at AS opened_at,
    if(known.state = 'closed', known.last_seen_at, NULL) AS closed_at,
    lost_s * nullIf(known.world_size, 0) / 3600 AS gpu_hours_lost,
    multiIf(
        known.world_size = 0, NULL,
        known.kind IN ('hang', 'mismatch'), toFloat64(known.world_size),
        ifNull(known.lasted_s, 0) > 0, least(known.lost_s / known.lasted_s, 1) * known.world_size,
        ifNull(known.delta, 0) >= 1, (1 - 1 / known.delta) * known.world_size,
        NULL
    ) AS gpu_hours_per_hour
FROM newest AS known
LEFT JOIN seen ON seen.job = known.job AND seen.verdict_id = known.verdict_id
LEFT JOIN opened ON opened.job = known.job AND opened.verdict_id = known.verdict_id;

ALTER TABLE incidents
    MODIFY COMMENT 'Verdicts in their newest revision, as they stand now; columns without a comment are those of verdicts',
    COMMENT COLUMN since_revision_s 'Seconds in which the cause went on since the newest revision',
    COMMENT COLUMN lost_s 'Iteration seconds lost so far, also since the newest revision',
    COMMENT COLUMN lasted_s 'Seconds that the cause has lasted, also since the newest revision; NULL: not known',
    COMMENT COLUMN opened_at 'Event time of its first revision',
    COMMENT COLUMN closed_at 'Event time of its last revision; NULL: it is open',
    COMMENT COLUMN gpu_hours_lost 'GPU-hours lost so far: lost_s times world_size; NULL: its GPUs are not known',
    COMMENT COLUMN gpu_hours_per_hour 'GPU-hours lost an hour while the cause is there; NULL: not known';

-- Iterations as they were judged last. `verdict_ids` also holds verdicts that opened from an irregular iteration, or began with
-- it: it was stored when they had no name yet, and their first revision spans it. A detector's verdict, or one that peers show,
-- opens from regular ones as well, a hang from one that is not judged. For recordings `with_first_names` in irregulars/messages/judgements.py does it.
-- Joined by iteration: all spans of a job beside each of its iterations would take gigabytes.
CREATE VIEW IF NOT EXISTS judged_iterations AS
SELECT
    times.* EXCEPT (verdict_ids),
    arrayDistinct(arrayConcat(
        times.verdict_ids,
        arrayMap(one -> one.1, arrayFilter(one -> ifNull(is_irregular, false) OR one.2, opened.by))
    )) AS verdict_ids
FROM (SELECT *, stored_at FROM iterations FINAL) AS times
LEFT JOIN
(
    SELECT
        known.job AS job,
        known.attempt AS attempt,
        -- A job may count in large steps: so much is looked at, at most
        arrayJoin(range(known.first_iteration, least(first.past_last_iteration, known.first_iteration + 100000))) AS iteration,
        groupArray((
            known.verdict_id,
            iteration = known.first_iteration OR known.kind IN ('custom', 'hang', 'mismatch')
                OR JSONExtractString(ifNull(known.explanation, ''), 'against') NOT IN ('', 'past')
        )) AS by
    FROM (SELECT * FROM verdicts FINAL) AS known
    INNER JOIN verdict_revisions AS first
        ON first.job = known.job AND first.verdict_id = known.verdict_id AND first.revision = 1
    GROUP BY job, attempt, iteration
) AS opened ON opened.job = times.job AND opened.attempt = times.attempt AND opened.iteration = times.iteration;

-- Verdicts in their newest revision, each with whom it accuses now, a row per suspect; verdicts that accuse nobody have
-- none.
CREATE VIEW IF NOT EXISTS accused AS
SELECT
    known.job AS job,
    known.attempt AS attempt,
    known.verdict_id AS verdict_id,
    known.state AS state,
    known.kind AS kind,
    known.severity AS severity,
    known.first_iteration AS first_iteration,
    known.past_last_iteration AS past_last_iteration,
    known.delta AS delta,
    known.lost_s AS lost_s,
    known.gpu_hours_lost AS gpu_hours_lost,
    known.recovers_ratio AS recovers_ratio,
    known.layer AS layer,
    known.cause AS cause,
    known.last_seen_at AS last_seen_at,
    known.close_reason AS close_reason,
    named.position AS position,
    named.device AS device,
    named.rank AS rank,
    named.ranks AS ranks,
    named.peer AS peer,
    named.named_by AS named_by,
    named.host AS host,
    named.peer_host AS peer_host,
    named.gpu AS gpu,
    named.nic AS nic,
    named.switch AS switch,
    named.probability AS probability,
    named.name AS name,
    -- Name among all jobs: a device that only its ranks name is one of its job
    if(
        multiIf(has(named.named_by, 'host'), named.host, has(named.named_by, 'switch'), named.switch, NULL) IS NULL,
        concat(named.name, ' in ', named.job),
        named.name
    ) AS fleet_name
FROM incidents AS known
INNER JOIN newest_suspects AS named ON named.job = known.job AND named.verdict_id = known.verdict_id;

ALTER TABLE accused
    MODIFY COMMENT 'Verdicts with whom they accuse now, a row per suspect; columns without a comment are those of incidents and suspects',
    COMMENT COLUMN named_by 'Columns that name the device, itself last; the others of its place are empty',
    COMMENT COLUMN name 'The device as alerts name it, short',
    COMMENT COLUMN fleet_name 'Its name among all jobs: with the job where only ranks name it';

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
SETTINGS min_free_disk_bytes_to_perform_insert = 268435456
COMMENT 'Feedback: right or wrong, by verdict and person';

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
SETTINGS ttl_only_drop_parts = 1, min_free_disk_bytes_to_perform_insert = 268435456
COMMENT 'Notable scores by detector, rank and iteration';

-- Communicators of jobs, and of each the bus bandwidth over payload and time, by nccl-tests. Of an all_gather it counts what
-- a rank has in the end; its payload is the part that the rank gives. An operator that is not there has 1.
CREATE VIEW IF NOT EXISTS communicators AS
SELECT
    job,
    attempt,
    one.1 AS communicator,
    any(one.2) AS kind,
    any(one.3) AS size,
    map(
        'all_reduce', 2 * (size - 1) / size, 'all_gather', toFloat64(size - 1),
        'reduce_scatter', (size - 1) / size, 'all_to_all', (size - 1) / size
    ) AS bus_factors
FROM jobs FINAL
ARRAY JOIN arrayZip(communicators, communicator_kinds, communicator_sizes) AS one
GROUP BY job, attempt, communicator;

-- Metrics of ranks as states that merge, by hundreds of iterations: quantiles (5, 50 and 95%) of steps a second, of the rate
-- of each kind of collective once all ranks were there (payload over transfer; its factor is a constant, and may come
-- later), and of the distributions that profiles give. A view, and no table that a materialized view fills: input comes
-- at least once, and a state counts a row twice that came twice.
CREATE VIEW IF NOT EXISTS rank_metrics AS
SELECT
    job,
    attempt,
    rank,
    100 * intDiv(iteration, 100) AS from_iteration,
    'steps_per_s' AS metric,
    '' AS communicator,
    quantilesTDigestState(0.05, 0.5, 0.95)(toFloat64(1e9 / assumeNotNull(elapsed_ns))) AS quantiles_state,
    sumState(1.) AS count_state
FROM rank_iterations FINAL
WHERE elapsed_ns > 0
GROUP BY job, attempt, rank, from_iteration
UNION ALL
SELECT
    job,
    attempt,
    rank,
    100 * intDiv(iteration, 100) AS from_iteration,
    toString(operator) AS metric,
    toString(communicator) AS communicator,
    quantilesTDigestState(0.05, 0.5, 0.95)(toFloat64(1e9 * assumeNotNull(size_bytes) / assumeNotNull(transfer_ns))) AS quantiles_state,
    sumState(1.) AS count_state
FROM operators FINAL
WHERE peer IS NULL AND transfer_ns > 0 AND size_bytes > 0
GROUP BY job, attempt, rank, from_iteration, metric, communicator
UNION ALL
SELECT
    job,
    attempt,
    rank,
    100 * intDiv(assumeNotNull(code), 100) AS from_iteration,
    toString(device) AS metric,
    '' AS communicator,
    quantilesTDigestState(0.05, 0.5, 0.95)(number) AS quantiles_state,
    sumState(numbers[1] / (length(numbers) - 3)) AS count_state
FROM
(
    -- Number of values, weight, value, and quantiles of equal distance
    SELECT *, arrayMap(text -> toFloat64OrZero(text), splitByChar(' ', detail)) AS numbers
    FROM events FINAL
    WHERE kind = 'metric' AND device != 'steps_per_s' AND code IS NOT NULL
)
ARRAY JOIN arraySlice(numbers, 4) AS number
GROUP BY job, attempt, rank, from_iteration, metric, communicator;
