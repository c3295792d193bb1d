-- title: Slowest communicators of a job
-- theme: devices and hosts
-- description: Collectives of each communicator in the stored iterations over time, waiting left out: how long they took
--     once all had arrived, and the bus bandwidth by nccl-tests, cut into slices of equally many iterations. The
--     slowest against its like come first: those of one kind, size and operator should be equal.
-- empty: No collectives are stored: no iteration was looked into, or their members were not read.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: the newest
-- parameter: slices UInt32 = 1 | how many slices the iterations are cut into
-- parameter: limit UInt32 = 100 | rows at most
WITH
    (
        SELECT ifNull(
            {attempt:Nullable(Int64)},
            (SELECT attempt FROM operators WHERE job = {job:String} ORDER BY attempt DESC LIMIT 1)
        )
    ) AS wanted,
    (SELECT min(iteration) FROM operators WHERE job = {job:String} AND attempt = wanted) AS first,
    (SELECT max(iteration) FROM operators WHERE job = {job:String} AND attempt = wanted) AS last,
    intDiv(last - first, greatest({slices:UInt32}, 1)) + 1 AS width,
    collectives AS
    (
        SELECT communicator, operator, iteration, median(transfer_ns) AS took_ns, max(size_bytes) AS bytes
        FROM operators FINAL
        WHERE job = {job:String} AND attempt = wanted AND peer IS NULL AND transfer_ns > 0
        GROUP BY communicator, operator, iteration, sequence
    ),
    measured AS
    (
        SELECT
            communicator,
            operator,
            groups.kind AS kind,
            groups.size AS size,
            any(if(mapContains(groups.bus_factors, operator), groups.bus_factors[operator], 1)) AS factor,
            first + width * intDiv(iteration - first, width) AS from_iteration,
            count() AS collectives,
            median(took_ns) AS median_ns,
            median(bytes / took_ns) AS rate
        FROM collectives
        LEFT JOIN (SELECT * FROM communicators WHERE job = {job:String} AND attempt = wanted) AS groups
            ON groups.communicator = collectives.communicator
        GROUP BY communicator, operator, kind, size, from_iteration
    )
SELECT
    communicator,
    operator,
    kind,
    size,
    from_iteration,
    collectives,
    round(median_ns / 1e6, 3) AS median_ms,
    round(median_ns / median(median_ns) OVER (PARTITION BY kind, size, operator), 3) AS times_its_like,
    round(if(size = 0, NULL, rate * factor), 3) AS bus_gbytes_per_s
FROM measured
ORDER BY times_its_like DESC, median_ms DESC, communicator, operator, from_iteration
LIMIT {limit:UInt32}
