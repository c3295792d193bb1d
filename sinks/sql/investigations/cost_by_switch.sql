-- title: Cost per rack
-- theme: jobs and cost
-- description: GPU-hours that verdicts lay on the devices behind each switch (a rack, where each has one), over all
--     jobs: a verdict's loss shared out by the probability of its suspects. A rack that stands out over weeks has a
--     cause of its own: power, cooling, an uplink. Under none stand jobs that announce no switch, and
--     stages and programs.
-- empty: No verdict of these days names a device; days=3650 looks further back.
-- parameter: days UInt32 = 30 | verdicts seen in so many days before now
-- parameter: limit UInt32 = 50 | switches at most, the costliest first
SELECT
    switch,
    uniqExact(job, verdict_id) AS verdicts,
    uniqExact(job) AS jobs,
    uniqExact(host) AS hosts,
    round(sum(gpu_hours_lost * probability), 3) AS expected_gpu_hours_lost,
    argMax(fleet_name, gpu_hours_lost * probability) AS costliest_device,
    max(accused.last_seen_at) AS last_seen_at
FROM accused
WHERE accused.last_seen_at IS NULL
    OR accused.last_seen_at >= now64(9, 'UTC') - toIntervalDay({days:UInt32})
GROUP BY switch
ORDER BY expected_gpu_hours_lost DESC, switch
LIMIT {limit:UInt32}
