-- Times of a job's training iterations: an evaluation or a checkpoint takes as long as it takes. Of a stretch that is one
-- point on the screen, the longest: a mean would hide it.
SELECT
    $__timeInterval_ms(started_at) AS time,
    max(elapsed_ns) / 1e9 AS longest,
    maxOrNullIf(elapsed_ns, is_irregular) / 1e9 AS irregular,
    max(reference_ns) / 1e9 AS usual
FROM iterations FINAL
WHERE job = {job:String} AND attempt = {attempt:Int64} AND phase = 'train' AND $__timeFilter(started_at)
GROUP BY time
ORDER BY time
