-- GPU-hours lost on the devices of each host; pipeline stages and switches live on none.
SELECT host, sum(gpu_hours_lost * probability) AS gpu_hours
FROM accused
WHERE host IS NOT NULL AND $__timeFilter(last_seen_at)
GROUP BY host
ORDER BY gpu_hours DESC, host
LIMIT 20
