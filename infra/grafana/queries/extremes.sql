-- A line of the heat map is a rank, a cell the most by which it stood out in an iteration of that stretch: its own work,
-- beyond the median of all ranks in that iteration, and beyond what is usual for that rank in the time range (stages of
-- a pipeline differ always). Shown are the 48 ranks that ever stood out most. Below the usual counts as 0.
-- Rows that were stored twice change neither a largest value nor a median: no FINAL.
WITH
    times AS
    (
        SELECT iteration, min(started_at) AS begun_at FROM iterations
        WHERE job = {job:String} AND attempt = {attempt:Int64} AND $__timeFilter(started_at)
        GROUP BY iteration
    ),
    (SELECT (min(iteration), max(iteration)) FROM times) AS span,
    own AS
    (
        SELECT iteration, rank, assumeNotNull(work_ns) AS work_ns FROM rank_iterations
        WHERE job = {job:String} AND attempt = {attempt:Int64} AND iteration >= span.1 AND iteration <= span.2
            AND work_ns IS NOT NULL
    ),
    of_all AS
    (
        SELECT own.iteration AS iteration, any(times.begun_at) AS begun_at, median(own.work_ns) AS median_ns
        FROM own
        INNER JOIN times ON times.iteration = own.iteration
        GROUP BY iteration
    ),
    ranks AS
    (
        SELECT
            own.rank AS rank,
            groupArray((of_all.begun_at, own.work_ns - of_all.median_ns)) AS told,
            arrayReduce('median', told.2) AS usual_ns
        FROM own
        INNER JOIN of_all ON of_all.iteration = own.iteration
        GROUP BY rank
        ORDER BY arrayMax(told.2) - usual_ns DESC, rank
        LIMIT 48
    )
SELECT
    $__timeInterval_ms(begun_at) AS time,
    concat('rank ', leftPad(toString(rank), 6, '0')) AS rank_name,
    max(greatest(beyond_ns - usual_ns, 0)) / 1e9 AS excess_s
FROM
(
    SELECT rank, usual_ns, arrayJoin(told) AS one, one.1 AS begun_at, one.2 AS beyond_ns FROM ranks
)
GROUP BY time, rank_name
ORDER BY time, rank_name
