-- title: State of the GPUs in a verdict's iterations
-- theme: a verdict
-- description: Clocks, throttling and errors of each rank's GPU while the cause was seen, suspects first, then those
--     that were held back most. A GPU that was throttled while its peers were not is a reason for a slow rank.
-- empty: No state of a GPU is stored of that time: the agent does not sample GPUs there, or the rows are older than
--     they are kept.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: verdict_id String = '' | verdict; default: the job's newest
-- parameter: limit UInt32 = 30 | ranks at most
WITH
    (
        SELECT (verdict_id, attempt, first_iteration, past_last_iteration)
        FROM incidents
        WHERE job = {job:String} AND ({verdict_id:String} = '' OR verdict_id = {verdict_id:String})
        ORDER BY last_seen_at DESC, verdict_id
        LIMIT 1
    ) AS chosen,
    (
        SELECT (min(started_at), max(addNanoseconds(started_at, elapsed_ns)))
        FROM iterations FINAL
        WHERE job = {job:String} AND attempt = chosen.2 AND iteration >= chosen.3 AND iteration < chosen.4
    ) AS span,
    accused AS
    (
        SELECT arrayJoin(ranks) AS rank, toNullable(max(probability)) AS probability
        FROM newest_suspects
        WHERE job = {job:String} AND verdict_id = chosen.1
        GROUP BY rank
    ),
    states AS
    (
        SELECT
            rank,
            device,
            countIf(xid IS NULL) AS samples,
            avg(sm_clock_mhz) AS sm_clock_mhz,
            avg(if(throttle_reasons IS NULL, NULL, throttle_reasons NOT IN ('', 'gpu_idle'))) AS throttled_ratio,
            arrayStringConcat(
                arraySort(groupUniqArrayIf(assumeNotNull(throttle_reasons), throttle_reasons NOT IN ('', 'gpu_idle'))),
                '; '
            ) AS reasons,
            max(temperature_c) AS hottest_c,
            avg(power_w) AS power_w,
            avg(sm_active_ratio) AS sm_active_ratio,
            sum(ecc_uncorrected) AS ecc_uncorrected,
            arraySort(groupUniqArray(xid)) AS xids
        FROM gpu_health FINAL
        WHERE job = {job:String} AND attempt = chosen.2 AND sampled_at >= span.1 AND sampled_at <= span.2
        GROUP BY rank, device
    )
SELECT
    states.rank AS rank,
    places.host AS host,
    states.device AS device,
    round(accused.probability, 3) AS suspect_probability,
    round(states.throttled_ratio, 3) AS throttled_ratio,
    states.reasons AS reasons,
    round(states.sm_clock_mhz, 1) AS sm_clock_mhz,
    round(median(states.sm_clock_mhz) OVER (), 1) AS median_sm_clock_mhz,
    states.hottest_c AS hottest_c,
    round(states.power_w, 1) AS power_w,
    round(states.sm_active_ratio, 3) AS sm_active_ratio,
    states.ecc_uncorrected AS ecc_uncorrected,
    states.xids AS xids,
    states.samples AS samples
FROM states
LEFT JOIN accused ON accused.rank = states.rank
LEFT JOIN (SELECT rank, host FROM jobs FINAL WHERE job = {job:String} AND attempt = chosen.2) AS places
    ON places.rank = states.rank
ORDER BY suspect_probability DESC NULLS LAST, throttled_ratio DESC NULLS LAST, sm_clock_mhz, rank
LIMIT {limit:UInt32}
