-- GPU-hours that verdicts say were lost, of verdicts whose cause was seen last within the time range.
SELECT sum(lost_s * world_size) / 3600 AS gpu_hours_lost
FROM incidents
WHERE $__timeFilter(last_seen_at)
