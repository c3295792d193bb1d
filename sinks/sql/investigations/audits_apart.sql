-- title: Audits that did not agree
-- theme: devices and hosts
-- description: In an audit several ranks compute the micro-batch of one rank (of_rank) again, and must all get the same
--     gradients. Of each audit in which they did not, a line for each rank that differs from most others; where no side
--     is the larger one (is_decided is false), a line for every rank. A rank that differs again and again, or from
--     itself while all others agree, computes wrong.
-- empty: All audits agreed; or the job makes none.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: the newest
-- parameter: limit UInt32 = 50 | lines at most, the newest audits first
WITH
    (
        SELECT ifNull(
            {attempt:Nullable(Int64)},
            (SELECT attempt FROM audits WHERE job = {job:String} ORDER BY attempt DESC LIMIT 1)
        )
    ) AS wanted
SELECT
    odd.iteration AS iteration,
    odd.of_rank AS of_rank,
    odd.rank AS rank,
    places.host AS host,
    places.gpu AS gpu,
    odd.voters AS voters,
    odd.most AS agreed,
    toBool(odd.is_decided) AS is_decided
FROM
(
    SELECT iteration, of_rank, voters, most, is_decided, arrayJoin(arrayFlatten(apart)) AS rank
    FROM
    (
        SELECT
            iteration,
            of_rank,
            sum(length(side)) AS voters,
            max(length(side)) AS most,
            2 * most > voters AS is_decided,
            arrayFilter(one -> length(one) < most OR NOT is_decided, groupArray(side)) AS apart
        FROM
        (
            SELECT iteration, of_rank, checksum, groupArray(rank) AS side
            FROM audits FINAL
            WHERE job = {job:String} AND attempt = wanted
            GROUP BY iteration, of_rank, checksum
        )
        GROUP BY iteration, of_rank
        HAVING count() > 1
    )
) AS odd
LEFT JOIN (SELECT rank, host, gpu FROM jobs FINAL WHERE job = {job:String} AND attempt = wanted) AS places
    ON places.rank = odd.rank
ORDER BY iteration DESC, of_rank, rank
LIMIT {limit:UInt32}
