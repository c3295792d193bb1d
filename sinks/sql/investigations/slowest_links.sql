-- title: Slowest links of a job
-- theme: devices and hosts
-- description: Transfers between pairs of ranks in the stored iterations: how long they took when both ends were
--     there. One slow pair is a link; all pairs of one rank are its NIC. Counted are iterations from first_iteration
--     up to before past_last_iteration (half-open).
-- empty: No transfers between two ranks are stored: no iteration was looked into, or the job has no send and recv.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: the newest
-- parameter: first_iteration Int64 = 0 | from this iteration on
-- parameter: past_last_iteration Nullable(Int64) = NULL | up to before this iteration; default: to the end
-- parameter: limit UInt32 = 30 | pairs at most, the slowest first
WITH
    (
        SELECT ifNull(
            {attempt:Nullable(Int64)},
            (SELECT attempt FROM operators WHERE job = {job:String} ORDER BY attempt DESC LIMIT 1)
        )
    ) AS wanted,
    places AS
    (
        SELECT rank, host, nic FROM jobs FINAL WHERE job = {job:String} AND attempt = wanted
    )
SELECT
    transfers.source AS source,
    transfers.destination AS destination,
    sources.host AS source_host,
    sources.nic AS source_nic,
    destinations.host AS destination_host,
    destinations.nic AS destination_nic,
    transfers.transfers AS transfers,
    round(transfers.median_ns / 1e6, 3) AS median_ms,
    round(transfers.longest_ns / 1e6, 3) AS longest_ms,
    round(transfers.rate, 3) AS median_gbytes_per_s
FROM
(
    SELECT
        peer AS source,
        rank AS destination,
        count() AS transfers,
        median(transfer_ns) AS median_ns,
        max(transfer_ns) AS longest_ns,
        median(size_bytes / transfer_ns) AS rate
    FROM transfers FINAL
    WHERE job = {job:String}
        AND attempt = wanted
        AND transfer_ns > 0
        AND iteration >= {first_iteration:Int64}
        AND ({past_last_iteration:Nullable(Int64)} IS NULL OR iteration < {past_last_iteration:Nullable(Int64)})
    GROUP BY source, destination
) AS transfers
LEFT JOIN places AS sources ON sources.rank = transfers.source
LEFT JOIN places AS destinations ON destinations.rank = transfers.destination
ORDER BY median_ms DESC, source, destination
LIMIT {limit:UInt32}
