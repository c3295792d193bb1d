-- GPU-hours by the day on which a verdict's cause was seen last, on the ten costliest devices of the time range.
WITH
    costliest AS
    (
        SELECT fleet_name FROM accused
        WHERE ({host:String} = '*' OR host = {host:String}) AND $__timeFilter(last_seen_at)
        GROUP BY fleet_name
        ORDER BY sum(gpu_hours_lost * probability) DESC, fleet_name
        LIMIT 10
    )
SELECT
    toStartOfDay(assumeNotNull(last_seen_at), 'UTC') AS time,
    fleet_name AS device_name,
    sum(gpu_hours_lost * probability) AS gpu_hours
FROM accused
WHERE last_seen_at IS NOT NULL AND $__timeFilter(last_seen_at) AND fleet_name IN (SELECT fleet_name FROM costliest)
GROUP BY time, device_name
ORDER BY time, device_name
