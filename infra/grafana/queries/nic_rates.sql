-- Peaks of the first suspect's NICs (of a link: its sender's) beside the highest and the lowest peak of the job's others. A
-- sick NIC's peak is capped; its victims send less, and their peaks are not.
WITH
    (
        -- An array: the largest of no rows would be rank 0, which nobody accuses
        SELECT max(if(peer IS NULL, ranks, [rank])) FROM accused WHERE verdict_id = {verdict:String} AND position = 0
    ) AS suspected,
    peaks AS
    (
        SELECT
            $__timeInterval_ms(sampled_at) AS time,
            rank,
            max(greatest(ifNull(tx_bytes_per_s, 0), ifNull(rx_bytes_per_s, 0))) AS peak
        FROM bandwidth
        WHERE job = {job:String} AND attempt = {attempt:Int64} AND path = 'nic' AND $__timeFilter(sampled_at)
        GROUP BY time, rank
    )
SELECT
    time,
    maxOrNullIf(peak, has(suspected, rank)) AS suspect,
    maxOrNullIf(peak, NOT has(suspected, rank)) AS highest_of_others,
    minOrNullIf(peak, NOT has(suspected, rank)) AS lowest_of_others
FROM peaks
GROUP BY time
ORDER BY time
