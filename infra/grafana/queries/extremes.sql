-- A line of the heat map is a rank, a cell the most by which its own work exceeded the median over all ranks in an
-- iteration of that stretch. Shown are the 48 ranks that ever stood out most. Below the median counts as 0.
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
        SELECT iteration, rank, work_ns FROM rank_iterations
        WHERE job = {job:String} AND attempt = {attempt:Int64} AND iteration >= span.1 AND iteration <= span.2
            AND work_ns IS NOT NULL
    ),
    usual AS
    (
        SELECT iteration, median(work_ns) AS median_ns FROM own GROUP BY iteration
    ),
    cells AS
    (
        SELECT
            $__timeInterval_ms(begun_at) AS cell,
            own.rank AS rank,
            max(greatest(assumeNotNull(own.work_ns) - assumeNotNull(usual.median_ns), 0)) AS excess_ns
        FROM own
        INNER JOIN usual ON usual.iteration = own.iteration
        INNER JOIN times ON times.iteration = own.iteration
        GROUP BY cell, rank
    ),
    outstanding AS
    (
        SELECT rank FROM cells GROUP BY rank ORDER BY max(excess_ns) DESC, rank LIMIT 48
    )
SELECT cell AS time, concat('rank ', leftPad(toString(rank), 6, '0')) AS rank_name, excess_ns / 1e9 AS excess_s
FROM cells
WHERE rank IN (SELECT rank FROM outstanding)
ORDER BY time, rank_name
