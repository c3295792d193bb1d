-- title: Slowest iterations of a job
-- theme: an iteration
-- description: The iterations that took longest, beside the usual time before them (times_usual), and whether they
--     count as irregular. A slow one that is not irregular was an evaluation or a checkpoint (see phase), came before
--     there was a usual time, or lies within the noise of the job.
-- empty: No iteration of this job is judged yet.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: the newest
-- parameter: limit UInt32 = 20 | iterations at most
SELECT
    iteration,
    started_at,
    phase,
    round(elapsed_ns / 1e9, 4) AS elapsed_s,
    round(reference_ns / 1e9, 4) AS usual_s,
    round(elapsed_ns / reference_ns, 2) AS times_usual,
    is_irregular,
    ranks_reported,
    verdict_ids
FROM judged_iterations
WHERE job = {job:String}
    AND attempt = ifNull(
        {attempt:Nullable(Int64)},
        (SELECT attempt FROM iterations WHERE job = {job:String} ORDER BY attempt DESC LIMIT 1)
    )
ORDER BY elapsed_ns DESC, iteration
LIMIT {limit:UInt32}
