-- What questions about verdicts share. Every revision of a verdict, by itself: `verdicts` keeps the newest one only, and
-- how a suspicion grew, and at what cost, is asked afterwards. The view copies what is inserted; of revisions that came
-- before this table the newest is known.
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
COMMENT 'When each revision of a verdict came, and what was lost until then';

CREATE MATERIALIZED VIEW IF NOT EXISTS revisions_of_verdicts TO verdict_revisions AS
SELECT job, verdict_id, revision, event, past_last_iteration, lost_s, world_size, severity, last_seen_at, stored_at
FROM verdicts;

INSERT INTO verdict_revisions
    (job, verdict_id, revision, event, past_last_iteration, lost_s, world_size, severity, last_seen_at, stored_at)
SELECT job, verdict_id, revision, event, past_last_iteration, lost_s, world_size, severity, last_seen_at, stored_at
FROM verdicts FINAL;

-- Verdicts in their newest revision, each with whom it accuses now, a row per suspect; verdicts that accuse nobody have
-- none. `name` names the device as alerts do, short: NIC mlx5_1 on node-2.
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
    known.lost_s * known.world_size / 3600 AS gpu_hours_lost,
    known.recovers_ratio AS recovers_ratio,
    known.last_seen_at AS last_seen_at,
    known.close_reason AS close_reason,
    named.position AS position,
    named.device AS device,
    named.rank AS rank,
    named.ranks AS ranks,
    named.peer AS peer,
    named.host AS host,
    peers.host AS peer_host,
    named.gpu AS gpu,
    named.nic AS nic,
    named.switch AS switch,
    named.probability AS probability,
    concat(
        multiIf(
            named.device = 'gpu', ifNull(concat('GPU ', toString(named.gpu)), concat('rank ', toString(named.rank))),
            named.device = 'host', ifNull(concat('host ', named.host), concat('host of rank ', toString(named.rank))),
            named.device = 'nic', ifNull(concat('NIC ', named.nic), concat('NIC of rank ', toString(named.rank))),
            named.device = 'link', concat('link from ', ifNull(concat(named.nic, ' on ', named.host),
                concat('rank ', toString(named.rank))), ' to ',
                ifNull(peers.host, concat('rank ', toString(ifNull(named.peer, 0))))),
            named.device = 'switch', ifNull(concat('switch ', named.switch),
                concat('switch of rank ', toString(named.rank))),
            concat('pipeline stage of rank ', toString(named.rank))
        ),
        if(named.device IN ('gpu', 'nic'), ifNull(concat(' on ', named.host), ''), '')
    ) AS name
FROM (SELECT * FROM verdicts FINAL) AS known
INNER JOIN newest_suspects AS named ON named.job = known.job AND named.verdict_id = known.verdict_id
LEFT JOIN
(
    SELECT job, attempt, toNullable(rank) AS rank, host
    FROM jobs FINAL
    WHERE (job, rank) IN (SELECT job, assumeNotNull(suspects.peer) FROM suspects WHERE suspects.peer IS NOT NULL)
) AS peers ON peers.job = known.job AND peers.attempt = known.attempt AND peers.rank = named.peer;
