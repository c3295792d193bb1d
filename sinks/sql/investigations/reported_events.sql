-- title: What devices reported
-- theme: devices and hosts
-- description: XIDs, memory errors, links, PCIe, lack of memory and ended processes that nodes reported, by device, those
--     that reported most lately first: those of a week ago count half. Of 584 faults of 400 nodes in a public record
--     the first tenth of such a list held 23 % of the next 30 days' faults.
-- empty: No agent has reported anything in these days.
-- parameter: days UInt32 = 30 | events of so many days before now
-- parameter: host String = '' | host; default: all
-- parameter: limit UInt32 = 30 | devices at most
SELECT
    host,
    device,
    count() AS events,
    arraySort(groupUniqArray(concat(kind, if(kind = 'xid', concat(' ', toString(ifNull(code, 0))), '')))) AS kinds,
    uniqExact(job) AS jobs,
    max(reported_at) AS last_reported_at,
    argMax(detail, reported_at) AS last_detail,
    round(sum(exp2(-age('second', reported_at, now64(9, 'UTC')) / 604800)), 3) AS recent
FROM events FINAL
WHERE kind NOT IN ('stack', 'function', 'metric') AND reported_at >= now64(9, 'UTC') - toIntervalDay({days:UInt32})
    AND ({host:String} = '' OR events.host = {host:String})
GROUP BY host, device
ORDER BY recent DESC, events DESC, host, device
LIMIT {limit:UInt32}
