-- title: Metrics of ranks
-- theme: devices and hosts
-- description: Steps a second of each rank, and its bus bandwidth (GB/s, by nccl-tests) in the stored collectives, waiting
--     left out, over the newest iterations. Those furthest below the median of their like come first: ranks, in
--     communicators of one kind and size.
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
    groups AS
    (
        SELECT one.1 AS communicator, any(one.2) AS kind, any(one.3) AS size
        FROM jobs FINAL
        ARRAY JOIN arrayZip(communicators, communicator_kinds, communicator_sizes) AS one
        WHERE job = {job:String} AND attempt = wanted
        GROUP BY communicator
    ),
    measured AS
    (
        SELECT
            rank,
            metric,
            communicator,
            countMerge(count_state) AS count,
            quantilesTDigestMerge(0.05, 0.5, 0.95)(quantiles_state) AS quantiles
        FROM rank_metrics
        WHERE job = {job:String} AND attempt = wanted AND from_iteration > newest - toInt64({iterations:UInt32})
        GROUP BY rank, metric, communicator
    ),
    -- From payload over time to GB/s, as in slowest_communicators
    multiIf(
        measured.metric = 'steps_per_s', 1,
        measured.metric = 'all_reduce', 2e-9 * (groups.size - 1) / groups.size,
        measured.metric = 'all_gather', 1e-9 * (groups.size - 1),
        measured.metric IN ('reduce_scatter', 'all_to_all'), 1e-9 * (groups.size - 1) / groups.size,
        1e-9
    ) AS factor
SELECT
    measured.metric AS metric,
    measured.communicator AS communicator,
    measured.rank AS rank,
    measured.count AS count,
    round(factor * quantiles[1], 4) AS p5,
    round(factor * quantiles[2], 4) AS median,
    round(factor * quantiles[3], 4) AS p95,
    round(quantiles[2] / quantileExact(quantiles[2]) OVER (PARTITION BY metric, groups.kind, groups.size), 3) AS times_its_like
FROM measured
LEFT JOIN groups ON groups.communicator = measured.communicator
ORDER BY times_its_like, metric, communicator, rank
LIMIT {limit:UInt32}
