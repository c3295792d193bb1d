-- title: All ranks in an iteration
-- theme: an iteration
-- description: Who worked longest between its operators, beside the median rank, and where it lives. In a healthy
--     iteration the column times_median stays near 1; everybody elapses alike, since everybody waits for the slowest.
-- empty: No rank of this iteration is stored: it is not judged yet, or older than rows are kept.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: iteration Int64 = NEWEST | training iteration; default: the newest irregular one
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: the newest
-- parameter: limit UInt32 = 50 | ranks at most, most work first
WITH
    (
        SELECT ifNull(
            {attempt:Nullable(Int64)},
            (SELECT attempt FROM rank_iterations WHERE job = {job:String} ORDER BY attempt DESC LIMIT 1)
        )
    ) AS wanted,
    chosen AS
    (
        SELECT *
        FROM rank_iterations FINAL
        WHERE job = {job:String} AND iteration = {iteration:Int64} AND attempt = wanted
    ),
    (SELECT median(work_ns) FROM chosen) AS median_ns
SELECT
    chosen.rank AS rank,
    places.host AS host,
    places.gpu AS gpu,
    places.nic AS nic,
    round(chosen.elapsed_ns / 1e6, 3) AS elapsed_ms,
    round(chosen.work_ns / 1e6, 3) AS work_ms,
    round(chosen.work_ns / median_ns, 2) AS times_median,
    chosen.operators AS operators,
    chosen.late_rows AS late_rows,
    round(chosen.score, 3) AS score
FROM chosen
LEFT JOIN (SELECT rank, host, gpu, nic FROM jobs FINAL WHERE job = {job:String} AND attempt = wanted) AS places
    ON places.rank = chosen.rank
ORDER BY chosen.work_ns DESC NULLS LAST, chosen.rank
LIMIT {limit:UInt32}
