-- title: Who was late, and who waited
-- theme: an iteration
-- description: The operators of one iteration for which others waited longest: for which rank (the last to arrive, or
--     the other end of a send or recv), how many ranks waited, the longest wait, and how long the operator took once
--     all were there. A rank that many lines name was late itself, or waited for somebody before; the topmost line
--     with little waiting before it is where it began. Operators are stored where the search for a cause went.
-- empty: No operators of this iteration are stored: the search for a cause did not get there, or rows were not kept.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: iteration Int64 = NEWEST | training iteration; default: the newest irregular one
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: the newest
-- parameter: limit UInt32 = 20 | operators at most
WITH
    (
        SELECT ifNull(
            {attempt:Nullable(Int64)},
            (SELECT attempt FROM operators WHERE job = {job:String} ORDER BY attempt DESC LIMIT 1)
        )
    ) AS wanted,
    waits AS
    (
        SELECT
            communicator,
            operator,
            sequence,
            if(isNull(any(peer)), argMin(rank, wait_ns), any(peer)) AS late_rank,
            min(started_at) AS begun_at,
            countIf(wait_ns > 0) AS waiting_ranks,
            max(wait_ns) AS longest_ns,
            sum(wait_ns) AS waited_ns,
            max(transfer_ns) AS transfer_ns,
            max(abnormal_ratio) AS abnormal_ratio
        FROM operators FINAL
        WHERE job = {job:String} AND iteration = {iteration:Int64} AND attempt = wanted AND wait_ns IS NOT NULL
        -- a collective is one operator of all its ranks, a send or recv one of each
        GROUP BY communicator, operator, sequence, if(isNull(peer), NULL, (rank, ifNull(peer, 0)))
    )
SELECT
    waits.late_rank AS late_rank,
    places.host AS host,
    places.gpu AS gpu,
    waits.operator AS operator,
    waits.communicator AS communicator,
    waits.sequence AS sequence,
    waits.begun_at AS begun_at,
    waits.waiting_ranks AS waiting_ranks,
    round(waits.longest_ns / 1e6, 3) AS longest_wait_ms,
    round(waits.waited_ns / 1e6, 3) AS waited_rank_ms,
    round(waits.transfer_ns / 1e6, 3) AS transfer_ms,
    round(waits.abnormal_ratio, 2) AS times_as_long
FROM waits
LEFT JOIN
(
    SELECT toNullable(rank) AS rank, host, gpu FROM jobs FINAL WHERE job = {job:String} AND attempt = wanted
) AS places ON places.rank = waits.late_rank
ORDER BY waits.longest_ns DESC, waits.communicator, waits.sequence, waits.late_rank
LIMIT {limit:UInt32}
