-- title: Irregular iterations of a job
-- theme: an iteration
-- description: Which iterations took too long, by how much (times_usual), and which verdicts explain them.
--     Without a verdict nobody was to blame; part is what on its critical path took most beyond its usual time.
-- empty: No iteration of this job was irregular: none took longer than delta times the usual time, outside its noise.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: the newest
-- parameter: limit UInt32 = 100 | iterations at most, the newest first
SELECT
    iteration,
    started_at,
    round(elapsed_ns / 1e9, 4) AS elapsed_s,
    round(reference_ns / 1e9, 4) AS usual_s,
    round(elapsed_ns / reference_ns, 2) AS times_usual,
    ranks_reported,
    verdict_ids,
    part,
    round(part_ns / 1e9, 4) AS part_s,
    round(part_usual_ns / 1e9, 4) AS part_usual_s,
    last_rank
FROM judged_iterations
WHERE job = {job:String}
    AND attempt = ifNull(
        {attempt:Nullable(Int64)},
        (SELECT attempt FROM iterations WHERE job = {job:String} ORDER BY attempt DESC LIMIT 1)
    )
    AND is_irregular
ORDER BY iteration DESC
LIMIT {limit:UInt32}
