-- title: How NICs moved in an iteration
-- theme: an iteration
-- description: Behaviour patterns of the ranks while each class of operators ran, the steadiest first: where others
--     burst and idle, who moves steadily at a low rate drives the slow NIC or link. An empty communicator: the whole
--     iteration.
-- empty: No patterns of this iteration are stored: nobody looked into it, or its NICs are not sampled. Without
--     iteration=… the newest one with patterns is shown.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: iteration Nullable(Int64) = NULL | training iteration; default: the newest one with patterns
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: the newest
-- parameter: limit UInt32 = 50 | lines at most
WITH
    ifNull(
        {attempt:Nullable(Int64)},
        (SELECT attempt FROM behaviour_patterns WHERE job = {job:String} ORDER BY attempt DESC LIMIT 1)
    ) AS wanted
SELECT
    iteration,
    communicator,
    operator,
    rank,
    round(share, 3) AS iteration_share,
    round(tx_mean / 1e9, 4) AS tx_mean_gbytes_per_s,
    round(tx_deviation / nullIf(tx_mean, 0), 3) AS tx_swing,
    round(rx_mean / 1e9, 4) AS rx_mean_gbytes_per_s,
    round(rx_deviation / nullIf(rx_mean, 0), 3) AS rx_swing,
    round(differential, 3) AS far_from_others,
    round(unexpected, 3) AS far_from_expected,
    is_abnormal
FROM behaviour_patterns FINAL
WHERE job = {job:String}
    AND attempt = wanted
    AND iteration = ifNull(
        {iteration:Nullable(Int64)},
        (SELECT max(iteration) FROM behaviour_patterns WHERE job = {job:String} AND attempt = wanted)
    )
ORDER BY communicator, operator, least(ifNull(tx_swing, inf), ifNull(rx_swing, inf)), rank
LIMIT {limit:UInt32}
