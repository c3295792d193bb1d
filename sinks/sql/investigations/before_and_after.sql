-- title: Before and after a moment
-- theme: an iteration
-- description: What changed at an iteration: the median time of an iteration, and of each rank's own work, in the
--     window of iterations before it and in that from it on, the ranks that changed most first. If one rank's work
--     grew by as much as the iteration, it is that rank; if the iteration grew and nobody's work did, look at
--     transfers. The window before is [iteration - window, iteration), that after [iteration, iteration + window).
-- empty: No ranks are stored around that iteration: it is not judged yet, or older than rows are kept.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: iteration Nullable(Int64) = NULL | the moment; default: where the job's newest verdict begins
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: the newest
-- parameter: window UInt32 = 50 | iterations on either side
-- parameter: limit UInt32 = 20 | lines at most
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
            (
                SELECT first_iteration FROM verdicts FINAL
                WHERE job = {job:String} AND attempt = wanted
                ORDER BY last_seen_at DESC NULLS LAST, verdict_id
                LIMIT 1
            )
        )
    ) AS moment,
    lines AS
    (
        SELECT
            0 AS position,
            CAST(NULL AS Nullable(UInt32)) AS rank,
            medianOrNullIf(elapsed_ns, iteration < moment) AS before_ns,
            medianOrNullIf(elapsed_ns, iteration >= moment) AS after_ns
        FROM iterations FINAL
        WHERE job = {job:String}
            AND attempt = wanted
            AND iteration >= moment - {window:UInt32}
            AND iteration < moment + {window:UInt32}
        HAVING count() > 0
        UNION ALL
        SELECT
            1 AS position,
            toNullable(rank) AS rank,
            medianOrNullIf(work_ns, iteration < moment) AS before_ns,
            medianOrNullIf(work_ns, iteration >= moment) AS after_ns
        FROM rank_iterations FINAL
        WHERE job = {job:String}
            AND attempt = wanted
            AND iteration >= moment - {window:UInt32}
            AND iteration < moment + {window:UInt32}
        GROUP BY rank
    )
SELECT
    if(lines.position = 0, concat('iteration ', toString(moment)), concat('own work of rank ', toString(lines.rank)))
        AS what,
    places.host AS host,
    places.gpu AS gpu,
    round(lines.before_ns / 1e6, 3) AS before_ms,
    round(lines.after_ns / 1e6, 3) AS after_ms,
    round((lines.after_ns - lines.before_ns) / 1e6, 3) AS grown_ms,
    round(lines.after_ns / nullIf(lines.before_ns, 0), 2) AS times_before
FROM lines
LEFT JOIN
(
    SELECT toNullable(rank) AS rank, host, gpu FROM jobs FINAL WHERE job = {job:String} AND attempt = wanted
) AS places ON places.rank = lines.rank
ORDER BY lines.position, grown_ms DESC NULLS LAST, lines.rank
LIMIT {limit:UInt32}
