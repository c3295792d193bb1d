-- By how much the rank that worked longest in an iteration exceeded the median over all ranks. A series is a rank; ranks
-- beyond the eight that stood out most share one.
-- Rows that were stored twice change neither a largest value nor a median: no FINAL.
WITH
    times AS
    (
        SELECT iteration, min(started_at) AS begun_at FROM iterations
        WHERE job = {job:String} AND attempt = {attempt:Int64} AND $__timeFilter(started_at)
        GROUP BY iteration
    ),
    (SELECT (min(iteration), max(iteration)) FROM times) AS span,
    spreads AS
    (
        SELECT iteration, max(work_ns) - median(work_ns) AS spread_ns, argMax(rank, work_ns) AS rank
        FROM rank_iterations
        WHERE job = {job:String} AND attempt = {attempt:Int64} AND iteration >= span.1 AND iteration <= span.2
        GROUP BY iteration
    ),
    outstanding AS
    (
        SELECT rank FROM spreads GROUP BY rank ORDER BY sum(spread_ns) DESC, rank LIMIT 8
    ),
    places AS
    (
        SELECT rank, any(host) AS host FROM jobs WHERE job = {job:String} AND attempt = {attempt:Int64} GROUP BY rank
    )
SELECT
    $__timeInterval_ms(begun_at) AS time,
    if(
        spreads.rank IN (SELECT rank FROM outstanding),
        concat('rank ', toString(spreads.rank), ifNull(concat(' on ', places.host), '')),
        'any other rank'
    ) AS rank_name,
    max(spreads.spread_ns) / 1e9 AS spread_s
FROM spreads
INNER JOIN times ON times.iteration = spreads.iteration
LEFT JOIN places ON places.rank = spreads.rank
GROUP BY time, rank_name
ORDER BY time, rank_name
