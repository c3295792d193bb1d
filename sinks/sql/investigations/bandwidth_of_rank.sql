-- title: Bandwidth of a rank
-- theme: devices and hosts
-- description: Rates of the devices that a rank uses, per minute, the newest first. A sick NIC's peak is capped; its
--     victims' means fall, and their peaks do not.
-- empty: No samples of this rank are stored: its NICs are not sampled, or the rows are older than they are kept.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: rank UInt32 | global rank
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: the newest
-- parameter: limit UInt32 = 60 | lines at most
WITH
    (
        SELECT ifNull(
            {attempt:Nullable(Int64)},
            (SELECT attempt FROM bandwidth WHERE job = {job:String} ORDER BY attempt DESC LIMIT 1)
        )
    ) AS wanted,
    -- From where on all lines are that are shown. It takes no merging to know, and a day has millions of samples.
    (
        SELECT min(line_minute)
        FROM
        (
            SELECT DISTINCT toStartOfMinute(sampled_at) AS line_minute, path, device FROM bandwidth
            WHERE job = {job:String} AND rank = {rank:UInt32} AND attempt = wanted
            ORDER BY line_minute DESC, path, device
            LIMIT {limit:UInt32}
        )
    ) AS oldest
SELECT
    toStartOfMinute(sampled_at) AS minute,
    path,
    device,
    count() AS samples,
    round(avg(tx_bytes_per_s) / 1e9, 4) AS tx_mean_gbytes_per_s,
    round(max(tx_bytes_per_s) / 1e9, 4) AS tx_peak_gbytes_per_s,
    round(avg(rx_bytes_per_s) / 1e9, 4) AS rx_mean_gbytes_per_s,
    round(max(rx_bytes_per_s) / 1e9, 4) AS rx_peak_gbytes_per_s
FROM bandwidth FINAL
WHERE job = {job:String}
    AND rank = {rank:UInt32}
    AND attempt = wanted
    AND sampled_at >= oldest
GROUP BY minute, path, device
ORDER BY minute DESC, path, device
LIMIT {limit:UInt32}
