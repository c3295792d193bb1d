-- title: Bandwidth of a rank
-- theme: devices and hosts
-- description: Rates of the devices that a rank uses, beside the median peak of all other devices of the job meanwhile,
--     per ten seconds, the newest first. A sick NIC's peak is capped; its victims' means fall, and their peaks do not.
-- empty: No samples of this rank are stored: its NICs are not sampled, or the rows are older than they are kept.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: rank UInt32 | global rank
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: the newest
-- parameter: seconds UInt32 = 10 | length of a line, seconds
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
        SELECT min(line_began)
        FROM
        (
            SELECT DISTINCT toStartOfInterval(sampled_at, INTERVAL {seconds:UInt32} SECOND) AS line_began, path, device FROM bandwidth
            WHERE job = {job:String} AND rank = {rank:UInt32} AND attempt = wanted
            ORDER BY line_began DESC, path, device
            LIMIT {limit:UInt32}
        )
    ) AS oldest,
    own AS
    (
        SELECT
            toStartOfInterval(sampled_at, INTERVAL {seconds:UInt32} SECOND) AS began,
            path,
            device,
            count() AS samples,
            avg(tx_bytes_per_s) AS tx_mean,
            max(tx_bytes_per_s) AS tx_peak,
            avg(rx_bytes_per_s) AS rx_mean,
            max(rx_bytes_per_s) AS rx_peak
        FROM bandwidth FINAL
        WHERE job = {job:String} AND rank = {rank:UInt32} AND attempt = wanted AND sampled_at >= oldest
        GROUP BY began, path, device
        ORDER BY began DESC, path, device
        LIMIT {limit:UInt32}
    ),
    others AS
    (
        SELECT began, path, toNullable(median(tx_peak)) AS tx_peak, toNullable(median(rx_peak)) AS rx_peak
        FROM
        (
            SELECT
                toStartOfInterval(sampled_at, INTERVAL {seconds:UInt32} SECOND) AS began, path, rank, device,
                max(tx_bytes_per_s) AS tx_peak,
                max(rx_bytes_per_s) AS rx_peak
            FROM bandwidth FINAL
            WHERE job = {job:String} AND rank != {rank:UInt32} AND attempt = wanted AND sampled_at >= oldest
            GROUP BY began, path, rank, device
        )
        GROUP BY began, path
    )
SELECT
    own.began AS began,
    own.path AS path,
    own.device AS device,
    own.samples AS samples,
    round(own.tx_mean / 1e9, 4) AS tx_mean_gbytes_per_s,
    round(own.tx_peak / 1e9, 4) AS tx_peak_gbytes_per_s,
    round(others.tx_peak / 1e9, 4) AS others_tx_peak_gbytes_per_s,
    round(own.rx_mean / 1e9, 4) AS rx_mean_gbytes_per_s,
    round(own.rx_peak / 1e9, 4) AS rx_peak_gbytes_per_s,
    round(others.rx_peak / 1e9, 4) AS others_rx_peak_gbytes_per_s
FROM own
LEFT JOIN others ON others.began = own.began AND others.path = own.path
ORDER BY began DESC, path, device
LIMIT {limit:UInt32}
