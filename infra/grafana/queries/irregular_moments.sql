-- Annotations: iterations that took too long, at most 500, those that took longest for their usual time.
SELECT time, title, text, tags
FROM
(
    SELECT
        started_at AS time,
        concat('iteration ', toString(iteration)) AS title,
        concat(toString(round(elapsed_ns / reference_ns, 2)), ' times the usual') AS text,
        if(empty(verdict_ids), 'no verdict', arrayStringConcat(verdict_ids, ',')) AS tags,
        elapsed_ns / reference_ns AS times_usual
    FROM judged_iterations
    WHERE job = {job:String} AND attempt = {attempt:Int64} AND is_irregular AND $__timeFilter(started_at)
    ORDER BY times_usual DESC
    LIMIT 500
)
ORDER BY time
