-- The longest training iteration of a stretch as a multiple of the job's usual time, by job: the twenty jobs with the
-- largest.
WITH
    worst AS
    (
        SELECT job FROM iterations
        WHERE $__timeFilter(started_at) AND phase = 'train' AND reference_ns > 0
        GROUP BY job
        ORDER BY max(elapsed_ns / reference_ns) DESC, job
        LIMIT 20
    )
SELECT $__timeInterval(started_at) AS time, job, max(elapsed_ns / reference_ns) AS times_usual
FROM iterations
WHERE $__timeFilter(started_at) AND phase = 'train' AND reference_ns > 0 AND job IN (SELECT job FROM worst)
GROUP BY time, job
ORDER BY time, job
