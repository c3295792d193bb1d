-- title: Metrics of ranks
-- theme: devices and hosts
-- description: Steps a second of each rank, and its bus bandwidth (GB/s, by nccl-tests) in the stored collectives, waiting
--     left out, over the newest iterations; from profiles TFLOP/s, issue latency and times of kernels (ms), and void. Those
--     worst against the median of their like come first: ranks, in communicators of one kind and size.
-- empty: No iterations of this job are stored.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: the newest
-- parameter: iterations UInt32 = 1000 | newest iterations, in whole hundreds
-- parameter: limit UInt32 = 100 | rows at most
WITH
    (
        SELECT ifNull(
            {attempt:Nullable(Int64)},
            (SELECT attempt FROM rank_iterations WHERE job = {job:String} ORDER BY attempt DESC LIMIT 1)
        )
    ) AS wanted,
    (SELECT max(iteration) FROM rank_iterations WHERE job = {job:String} AND attempt = wanted) AS newest,
    measured AS
    (
        SELECT
            rank,
            metric,
            communicator,
            toUInt64(round(sumMerge(count_state))) AS count,
            quantilesTDigestMerge(0.05, 0.5, 0.95)(quantiles_state) AS quantiles
        FROM rank_metrics
        WHERE job = {job:String} AND attempt = wanted AND from_iteration > newest - toInt64({iterations:UInt32})
        GROUP BY rank, metric, communicator
    ),
    -- To GB/s, TFLOP/s and ms
    multiIf(
        measured.communicator != '',
        1e-9 * if(mapContains(groups.bus_factors, measured.metric), groups.bus_factors[measured.metric], 1),
        measured.metric LIKE 'flops%', 1e-12,
        measured.metric LIKE 'kernel%' OR measured.metric LIKE 'issue%', 1e-6,
        1
    ) AS factor,
    quantileExact(quantiles[2]) OVER (PARTITION BY metric, groups.kind, groups.size) AS usual
SELECT
    measured.metric AS metric,
    measured.communicator AS communicator,
    measured.rank AS rank,
    measured.count AS count,
    round(factor * quantiles[1], 4) AS p5,
    round(factor * quantiles[2], 4) AS median,
    round(factor * quantiles[3], 4) AS p95,
    -- Of void and kernels less is better; void is a share already.
    round(multiIf(
        metric LIKE 'void%', 1 + usual - quantiles[2],
        metric LIKE 'kernel%', usual / quantiles[2],
        quantiles[2] / usual
    ), 3) AS times_its_like
FROM measured
LEFT JOIN (SELECT * FROM communicators WHERE job = {job:String} AND attempt = wanted) AS groups
    ON groups.communicator = measured.communicator
ORDER BY times_its_like, metric, communicator, rank
LIMIT {limit:UInt32}
