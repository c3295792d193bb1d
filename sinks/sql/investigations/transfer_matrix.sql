-- title: Senders and receivers of a job
-- theme: devices and hosts
-- description: A matrix of sender and receiver over time: latency (the quickest tenth) and rate of the transfers between
--     two ranks in the stored iterations, cut into slices of equally many iterations. A column that is slow is a
--     receiver, a row a sender, a cell a link; what changes from slice to slice began then.
-- empty: No transfers between two ranks are stored: no iteration was looked into, or the job has no send and recv.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: the newest
-- parameter: slices UInt32 = 1 | how many slices the iterations are cut into
-- parameter: limit UInt32 = 1000 | rows at most, by sender, receiver and slice
WITH
    (
        SELECT ifNull(
            {attempt:Nullable(Int64)},
            (SELECT attempt FROM operators WHERE job = {job:String} ORDER BY attempt DESC LIMIT 1)
        )
    ) AS wanted,
    (SELECT min(iteration) FROM transfers WHERE job = {job:String} AND attempt = wanted) AS first,
    (SELECT max(iteration) FROM transfers WHERE job = {job:String} AND attempt = wanted) AS last,
    intDiv(last - first, greatest({slices:UInt32}, 1)) + 1 AS width
SELECT
    peer AS sender,
    rank AS receiver,
    first + width * intDiv(iteration - first, width) AS from_iteration,
    count() AS transfers,
    round(quantile(0.1)(transfer_ns) / 1e6, 3) AS latency_ms,
    round(median(transfer_ns) / 1e6, 3) AS median_ms,
    round(median(size_bytes / transfer_ns), 3) AS median_gbytes_per_s
FROM transfers FINAL
WHERE job = {job:String} AND attempt = wanted AND transfer_ns > 0
GROUP BY sender, receiver, from_iteration
ORDER BY sender, receiver, from_iteration
LIMIT {limit:UInt32}
