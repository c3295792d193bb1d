-- Devices that two or more verdicts accuse with at least even odds. One that comes back in several jobs is broken; one
-- that comes back in a single job may be what that job asks of it.
SELECT
    name AS device,
    uniqExact(job, verdict_id) AS verdicts,
    uniqExact(job) AS jobs,
    uniqExactIf((job, verdict_id), (job, verdict_id) IN (SELECT job, verdict_id FROM incidents WHERE state = 'open')) AS open_verdicts,
    min(accused.last_seen_at) AS first_seen_at,
    max(accused.last_seen_at) AS newest_at,
    sum(gpu_hours_lost * probability) AS gpu_hours,
    arrayStringConcat(arraySort(groupUniqArray(toString(kind))), ', ') AS kinds
FROM accused
WHERE (host IS NOT NULL OR switch IS NOT NULL)
    AND probability >= 0.5
    AND $__timeFilter(last_seen_at)
GROUP BY name
HAVING verdicts >= 2
ORDER BY verdicts DESC, gpu_hours DESC, device
LIMIT 50
