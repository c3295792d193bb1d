-- GPU-hours lost by the day on which a verdict's cause was seen last, by what was wrong.
SELECT
    toStartOfDay(assumeNotNull(last_seen_at), 'UTC') AS time,
    replaceAll(toString(kind), '_', ' ') AS kind_name,
    sum(lost_s * world_size) / 3600 AS gpu_hours_lost
FROM incidents
WHERE last_seen_at IS NOT NULL AND $__timeFilter(last_seen_at)
GROUP BY time, kind_name
ORDER BY time, kind_name
