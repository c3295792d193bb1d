-- The lowest SM clock of the first suspect's ranks beside the lowest and the median of the job's other ranks.
WITH
    (
        SELECT max(ranks) FROM accused WHERE verdict_id = {verdict:String} AND position = 0
    ) AS suspected,
    lowest AS
    (
        SELECT $__timeInterval_ms(sampled_at) AS time, rank, min(sm_clock_mhz) AS clock_mhz
        FROM gpu_health
        WHERE job = {job:String} AND attempt = {attempt:Int64} AND $__timeFilter(sampled_at) AND sm_clock_mhz IS NOT NULL
        GROUP BY time, rank
    )
SELECT
    time,
    minOrNullIf(clock_mhz, has(suspected, rank)) AS suspect,
    minOrNullIf(clock_mhz, NOT has(suspected, rank)) AS lowest_of_others,
    medianOrNullIf(clock_mhz, NOT has(suspected, rank)) AS median_of_others
FROM lowest
GROUP BY time
ORDER BY time
