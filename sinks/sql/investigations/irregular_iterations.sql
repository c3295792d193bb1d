-- title: Irregular iterations of a job
-- description: Which iterations took too long, by how much, and which verdicts explain them.
-- parameter: job String | training job
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: the newest
-- parameter: limit UInt32 = 100 | iterations at most, the newest first
SELECT
    iteration,
    started_at,
    round(elapsed_ns / 1e9, 4) AS elapsed_s,
    round(reference_ns / 1e9, 4) AS usual_s,
    round(elapsed_ns / reference_ns, 2) AS delta,
    ranks_reported,
    verdict_ids
FROM iterations FINAL
WHERE job = {job:String}
    AND attempt = ifNull(
        {attempt:Nullable(Int64)},
        (SELECT attempt FROM iterations WHERE job = {job:String} ORDER BY attempt DESC LIMIT 1)
    )
    AND is_irregular
ORDER BY iteration DESC
LIMIT {limit:UInt32}
