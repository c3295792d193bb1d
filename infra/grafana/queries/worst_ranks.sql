-- Ranks that stood out most in any iteration of the time range, by the measure of the heat map; beside it by how much a
-- rank exceeds the others usually, which shows what was slow all the time.
-- Rows that were stored twice change neither a largest value nor a median: no FINAL.
WITH
    (
        SELECT (min(iteration), max(iteration)) FROM iterations
        WHERE job = {job:String} AND attempt = {attempt:Int64} AND $__timeFilter(started_at)
    ) AS span,
    own AS
    (
        SELECT iteration, rank, assumeNotNull(work_ns) AS work_ns FROM rank_iterations
        WHERE job = {job:String} AND attempt = {attempt:Int64} AND iteration >= span.1 AND iteration <= span.2
            AND work_ns IS NOT NULL
    ),
    of_all AS
    (
        SELECT iteration, median(work_ns) AS median_ns FROM own GROUP BY iteration
    ),
    ranks AS
    (
        SELECT
            own.rank AS rank,
            groupArray((own.iteration, own.work_ns - of_all.median_ns)) AS told,
            arrayReduce('median', told.2) AS usual_ns,
            arrayMax(told.2) AS most_ns
        FROM own
        INNER JOIN of_all ON of_all.iteration = own.iteration
        GROUP BY rank
        ORDER BY most_ns - usual_ns DESC, rank
        LIMIT 20
    )
SELECT
    ranks.rank AS rank,
    places.host AS host,
    places.gpu AS gpu,
    places.nic AS nic,
    places.switch AS switch,
    (ranks.most_ns - ranks.usual_ns) / 1e9 AS most_s,
    arrayFirst(one -> one.2 = ranks.most_ns, ranks.told).1 AS in_iteration,
    ranks.usual_ns / 1e9 AS usually_beyond_others_s
FROM ranks
LEFT JOIN
(
    SELECT rank, host, gpu, nic, switch FROM jobs FINAL WHERE job = {job:String} AND attempt = {attempt:Int64}
) AS places ON places.rank = ranks.rank
ORDER BY most_s DESC, rank
