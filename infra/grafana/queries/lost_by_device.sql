-- GPU-hours lost on each device: a verdict's loss is shared out by the probability of its suspects.
SELECT
    fleet_name AS device,
    any(accused.device) AS sort,
    any(accused.host) AS host,
    any(accused.switch) AS switch,
    uniqExact(job, verdict_id) AS verdicts,
    uniqExact(job) AS jobs,
    uniqExactIf((job, verdict_id), (job, verdict_id) IN (SELECT job, verdict_id FROM incidents WHERE state = 'open')) AS open_verdicts,
    sum(gpu_hours_lost * probability) AS gpu_hours,
    max(last_seen_at) AS newest_at
FROM accused
WHERE ({host:String} = '*' OR accused.host = {host:String}) AND $__timeFilter(last_seen_at)
GROUP BY fleet_name
ORDER BY gpu_hours DESC, device
LIMIT 50
