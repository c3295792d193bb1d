-- title: What irregular iterations consist of
-- theme: an iteration
-- description: Irregular iterations in groups, by what on their critical path took most beyond its usual time: a rank's
--     work, a transfer, or a collective. Without part, no single one took longer, or none was looked into.
-- empty: No iteration of this job was irregular: none took longer than delta times the usual time, outside its noise.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: the newest
-- parameter: limit UInt32 = 50 | groups at most
SELECT
    part,
    count() AS iterations,
    countIf(empty(verdict_ids)) AS without_verdict,
    round(min(part_ns) / 1e9, 4) AS shortest_s,
    round(max(part_ns) / 1e9, 4) AS longest_s,
    round(median(part_usual_ns) / 1e9, 4) AS usual_s,
    round(sum(elapsed_ns - reference_ns) / 1e9, 3) AS lost_s
FROM judged_iterations
WHERE job = {job:String}
    AND attempt = ifNull(
        {attempt:Nullable(Int64)},
        (SELECT attempt FROM iterations WHERE job = {job:String} ORDER BY attempt DESC LIMIT 1)
    )
    AND is_irregular
GROUP BY part
ORDER BY lost_s DESC, iterations DESC
LIMIT {limit:UInt32}
