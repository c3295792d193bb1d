-- title: How a suspicion moved
-- theme: a verdict
-- description: The suspects of every stored revision of one verdict, the newest first, with when that revision came
--     (UTC; `stored_at` tells it of a hang), how urgent it was then, and what had been lost until then: did it waver, or
--     did evidence add up? A revision that accuses nobody has one line without a device.
-- empty: No such verdict is stored; `irregulars sql blamed` lists them.
-- parameter: verdict_id String = NEWEST | the verdict, as alerts name it; default: the newest
-- parameter: limit UInt32 = 200 | lines at most
WITH
    history AS
    (
        SELECT * FROM verdict_revisions FINAL WHERE verdict_id = {verdict_id:String}
    ),
    named AS
    (
        SELECT
            job, revision, toNullable(position) AS position, toNullable(name) AS name, host, toNullable(rank) AS rank, peer,
            toNullable(probability) AS probability
        FROM named_suspects
        WHERE verdict_id = {verdict_id:String}
    )
SELECT
    if(history.revision = 0, named.revision, history.revision) AS revision,
    history.last_seen_at AS seen_at,
    nullIf(history.event, '') AS event,
    history.severity AS severity,
    if(history.revision = 0, NULL, round(history.lost_s * history.world_size / 3600, 4)) AS gpu_hours_lost,
    named.name AS device,
    named.host AS host,
    named.rank AS rank,
    named.peer AS peer,
    round(named.probability, 3) AS probability,
    if(history.revision = 0, NULL, history.stored_at) AS stored_at
FROM history
FULL OUTER JOIN named ON named.job = history.job AND named.revision = history.revision
ORDER BY revision DESC, named.position
LIMIT {limit:UInt32}
