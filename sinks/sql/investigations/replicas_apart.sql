-- title: Replicas whose parameters differ
-- theme: devices and hosts
-- description: Ranks whose parameters had another checksum than most of their replicas (apart_in iterations), or than
--     some where no side is the larger one (undecided_in): one of them is wrong then, and which is not known. Replicas
--     are the ranks that announced each other; in a job that announces none, those with equal checksums in the attempt's
--     first eight iterations. All others, such as shards, differ by nature, and are compared with nobody. Ranks stay
--     apart until their state is copied or loaded: the first iteration tells most.
-- empty: No replicas were apart in these iterations; or there are none, or they send no checksums.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: iteration Nullable(Int64) = NULL | the last iteration to look at; default: the newest
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: the newest
-- parameter: window UInt32 = 1000 | iterations up to that one
-- parameter: limit UInt32 = 50 | ranks at most, those apart first, then the earliest
WITH
    (
        SELECT ifNull(
            {attempt:Nullable(Int64)},
            (SELECT attempt FROM rank_iterations WHERE job = {job:String} ORDER BY attempt DESC LIMIT 1)
        )
    ) AS wanted,
    (
        SELECT ifNull(
            {iteration:Nullable(Int64)},
            (SELECT max(iteration) FROM iterations WHERE job = {job:String} AND attempt = wanted)
        )
    ) AS newest,
    sets AS
    (
        SELECT rank, assumeNotNull(replicas_of) AS replicas_of
        FROM jobs FINAL
        WHERE job = {job:String} AND attempt = wanted AND jobs.replicas_of IS NOT NULL
    ),
    alike AS
    (
        SELECT groupArray(rank) AS ranks
        FROM
        (
            SELECT rank, arraySort(groupArray((iteration, assumeNotNull(parameters_checksum)))) AS first_ones
            FROM rank_iterations FINAL
            WHERE job = {job:String} AND attempt = wanted AND parameters_checksum IS NOT NULL AND iteration <
                (SELECT min(iteration) FROM iterations WHERE job = {job:String} AND attempt = wanted) + 8
                AND (SELECT count() FROM sets) = 0
            GROUP BY rank
        )
        GROUP BY first_ones
    ),
    places AS
    (
        SELECT own.rank AS rank, own.replicas_of AS replicas_of, known.host AS host, known.gpu AS gpu
        FROM
        (
            SELECT rank, replicas_of FROM sets
            UNION ALL
            SELECT arrayJoin(ranks) AS rank, arrayMin(ranks) AS replicas_of FROM alike
        ) AS own
        LEFT JOIN
        (SELECT rank, host, gpu FROM jobs FINAL WHERE job = {job:String} AND attempt = wanted) AS known
            ON known.rank = own.rank
    ),
    sides AS
    (
        SELECT known.iteration AS iteration, places.replicas_of AS replicas_of, groupArray(known.rank) AS side
        FROM
        (
            SELECT iteration, rank, parameters_checksum
            FROM rank_iterations FINAL
            WHERE job = {job:String} AND attempt = wanted
                AND iteration > newest - {window:UInt32} AND iteration <= newest
                AND parameters_checksum IS NOT NULL
        ) AS known
        INNER JOIN places ON places.rank = known.rank
        GROUP BY iteration, replicas_of, known.parameters_checksum
    )
SELECT
    odd.rank AS rank,
    any(places.host) AS host,
    any(places.gpu) AS gpu,
    min(odd.iteration) AS first_iteration,
    max(odd.iteration) AS last_iteration,
    countIf(odd.is_decided) AS apart_in,
    countIf(NOT odd.is_decided) AS undecided_in,
    max(odd.voters) AS replicas
FROM
(
    SELECT iteration, voters, is_decided, arrayJoin(arrayFlatten(apart)) AS rank
    FROM
    (
        SELECT
            iteration,
            sum(length(side)) AS voters,
            max(length(side)) AS most,
            2 * most > voters AS is_decided,
            arrayFilter(one -> length(one) < most OR NOT is_decided, groupArray(side)) AS apart
        FROM sides
        GROUP BY iteration, replicas_of
        HAVING count() > 1
    )
) AS odd
INNER JOIN places ON places.rank = odd.rank
GROUP BY rank
ORDER BY apart_in > 0 DESC, first_iteration, rank
LIMIT {limit:UInt32}
