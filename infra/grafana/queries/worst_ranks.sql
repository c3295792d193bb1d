-- Ranks whose own work exceeded the median over all ranks the most in any iteration of the time range.
-- Rows that were stored twice change neither a largest value nor a median: no FINAL.
WITH
    (
        SELECT (min(iteration), max(iteration)) FROM iterations
        WHERE job = {job:String} AND attempt = {attempt:Int64} AND $__timeFilter(started_at)
    ) AS span,
    own AS
    (
        SELECT iteration, rank, work_ns FROM rank_iterations
        WHERE job = {job:String} AND attempt = {attempt:Int64} AND iteration >= span.1 AND iteration <= span.2
            AND work_ns IS NOT NULL
    ),
    usual AS
    (
        SELECT iteration, median(work_ns) AS median_ns, argMax(rank, work_ns) AS longest FROM own GROUP BY iteration
    )
SELECT
    own.rank AS rank,
    any(places.host) AS host,
    any(places.gpu) AS gpu,
    any(places.nic) AS nic,
    any(places.switch) AS switch,
    max(own.work_ns - usual.median_ns) / 1e9 AS most_s,
    argMax(own.iteration, own.work_ns - usual.median_ns) AS in_iteration,
    countIf(usual.longest = own.rank) AS iterations_longest,
    uniqExact(own.iteration) AS iterations
FROM own
INNER JOIN usual ON usual.iteration = own.iteration
LEFT JOIN
(
    SELECT rank, host, gpu, nic, switch FROM jobs FINAL WHERE job = {job:String} AND attempt = {attempt:Int64}
) AS places ON places.rank = own.rank
GROUP BY rank
ORDER BY iterations_longest DESC, most_s DESC, rank
LIMIT 20
