-- title: A rank's operators in an iteration
-- theme: an iteration
-- description: What one rank communicated in one irregular iteration, in order of time: where it worked, where it
--     waited for others, what the transfer itself took, and how many times as long it took as it would have without
--     what was slow in the iteration (above 1.1: abnormal). Operators are stored where the search for a cause went.
-- empty: No operators of this rank in this iteration are stored: the search for a cause did not get there.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: rank UInt32 | global rank
-- parameter: iteration Int64 = NEWEST | training iteration; default: the newest irregular one
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: the newest
-- parameter: limit UInt32 = 1000 | operators at most
SELECT
    started_at,
    operator,
    communicator,
    sequence,
    peer,
    round(gap_ns / 1e6, 3) AS gap_ms,
    round(elapsed_ns / 1e6, 3) AS elapsed_ms,
    round(wait_ns / 1e6, 3) AS wait_ms,
    round(transfer_ns / 1e6, 3) AS transfer_ms,
    round(abnormal_ratio, 2) AS times_as_long,
    size_bytes,
    round(size_bytes / transfer_ns, 3) AS algbw_gbytes_per_s
FROM operators FINAL
WHERE job = {job:String}
    AND rank = {rank:UInt32}
    AND iteration = {iteration:Int64}
    AND attempt = ifNull(
        {attempt:Nullable(Int64)},
        (SELECT attempt FROM operators WHERE job = {job:String} ORDER BY attempt DESC LIMIT 1)
    )
ORDER BY started_at NULLS LAST, communicator, sequence
LIMIT {limit:UInt32}
