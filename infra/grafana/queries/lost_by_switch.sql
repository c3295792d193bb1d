-- GPU-hours lost on the devices behind each switch: a rack, where each has one.
SELECT switch, sum(gpu_hours_lost * probability) AS gpu_hours
FROM accused
WHERE switch IS NOT NULL AND $__timeFilter(last_seen_at)
GROUP BY switch
ORDER BY gpu_hours DESC, switch
LIMIT 20
