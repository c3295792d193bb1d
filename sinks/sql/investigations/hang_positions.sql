-- title: Hangs: who stood where
-- theme: a verdict
-- description: Where each rank stood when the job hung: inside which operator that never ended, and since when (its own
--     host's clock), or past its last operator, so that it never arrived at the next; an operator by its sequence and its
--     communicator. Suspects stand first, with their probability, then ranks that are in no operator, then those inside
--     one, the longest first: most of these only wait.
-- empty: No hang of this job is stored.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: verdict_id String = '' | verdict of kind hang; default: the job's newest
-- parameter: limit UInt32 = 100 | ranks at most
WITH
    (
        SELECT (verdict_id, attempt, first_iteration, past_last_iteration)
        FROM verdicts FINAL
        WHERE job = {job:String} AND kind IN ('hang', 'mismatch') AND ({verdict_id:String} = '' OR verdict_id = {verdict_id:String})
        ORDER BY last_seen_at DESC NULLS LAST, verdict_id
        LIMIT 1
    ) AS chosen,
    suspected AS
    (
        SELECT arrayJoin(ranks) AS rank, toNullable(max(probability)) AS probability
        FROM newest_suspects
        WHERE job = {job:String} AND verdict_id = chosen.1
        GROUP BY rank
    ),
    positions AS
    (
        SELECT
            rank,
            argMaxIf((operator, communicator, sequence), (started_at, sequence), elapsed_ns IS NOT NULL) AS ended,
            countIf(elapsed_ns IS NULL) AS open_operators,
            argMinIf(
                (operator, communicator, sequence, started_at),
                (ifNull(started_at, toDateTime64(0, 9, 'UTC')), sequence),
                elapsed_ns IS NULL
            ) AS open_one
        FROM operators FINAL
        WHERE job = {job:String} AND attempt = chosen.2 AND iteration < chosen.4
            -- the last operator that a rank ended may be of an iteration before
            AND iteration >= chosen.3 - 10
        GROUP BY rank
    ),
    places AS
    (
        SELECT rank, host, gpu FROM jobs FINAL WHERE job = {job:String} AND attempt = chosen.2 AND is_logged
    )
SELECT
    places.rank AS rank,
    places.host AS host,
    places.gpu AS gpu,
    round(suspected.probability, 2) AS suspect,
    multiIf(
        positions.open_operators > 0,
        concat('inside ', positions.open_one.1, ' ', toString(positions.open_one.3), ' of ', positions.open_one.2),
        positions.ended.1 != '',
        concat('past ', positions.ended.1, ' ', toString(positions.ended.3), ' of ', positions.ended.2),
        'nothing stored'
    ) AS position,
    if(positions.open_operators > 0, toDateTime(positions.open_one.4, 'UTC'), NULL) AS since
FROM places
LEFT JOIN positions ON positions.rank = places.rank
LEFT JOIN suspected ON suspected.rank = places.rank
ORDER BY suspect DESC NULLS LAST, positions.open_operators > 0, positions.open_one.4 NULLS LAST, rank
LIMIT {limit:UInt32}
