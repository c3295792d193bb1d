-- title: What detectors say of ranks
-- theme: devices and hosts
-- description: Which ranks each detector finds strange, how often and in which iterations; 1 is where strange begins.
--     A rank that is not listed never came near it.
-- empty: No detector came near calling a rank strange, or none runs (setting detectors).
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: rank Nullable(Int64) = NULL | only this rank; default: all
-- parameter: detector String = '' | only this detector, by its name; default: all
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: the newest
-- parameter: limit UInt32 = 50 | lines at most, most often strange first
WITH
    (
        SELECT ifNull(
            {attempt:Nullable(Int64)},
            (SELECT attempt FROM detector_scores WHERE job = {job:String} ORDER BY attempt DESC LIMIT 1)
        )
    ) AS wanted
SELECT
    scores.detector AS detector,
    scores.rank AS rank,
    any(places.host) AS host,
    any(places.gpu) AS gpu,
    countIf(scores.score >= 1) AS strange_in,
    minIf(scores.iteration, scores.score >= 1) AS first_strange,
    maxIf(scores.iteration, scores.score >= 1) AS last_strange,
    round(max(scores.score), 2) AS highest,
    argMax(scores.iteration, scores.score) AS highest_in
FROM
(
    SELECT detector, rank, iteration, score
    FROM detector_scores FINAL
    WHERE job = {job:String} AND attempt = wanted
        AND ({detector:String} = '' OR detector = {detector:String})
        AND rank = ifNull({rank:Nullable(Int64)}, rank)
) AS scores
LEFT JOIN (SELECT rank, host, gpu FROM jobs FINAL WHERE job = {job:String} AND attempt = wanted) AS places
    ON places.rank = scores.rank
GROUP BY detector, rank
ORDER BY strange_in DESC, highest DESC, detector, rank
LIMIT {limit:UInt32}
