-- title: Where its processes stood
-- theme: a verdict
-- description: What agents saw in the processes of accused ranks and of two peers when an alert came: of a job that
--     stands still the stack of each thread, the innermost frame first; of a slow rank the functions in which its main
--     thread spent its time, with their shares. The accused rank differs from its peers in the frame that matters.
-- empty: No agent has looked into a process of this job: it needs py-spy, an alert, and a process that is connected.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: days UInt32 = 30 | looks of so many days before now
-- parameter: limit UInt32 = 50 | threads at most
SELECT
    min(reported_at) AS taken_at,
    rank,
    host,
    device AS thread,
    arrayStringConcat(
        arrayMap(
            line -> if(kind = 'function', concat(toString(round(line.1 / -10)), ' % ', line.2), line.2),
            arraySort(groupArray((if(kind = 'function', -1, 1) * ifNull(code, 0), detail)))
        ),
        '\n'
    ) AS lines
FROM events FINAL
WHERE job = {job:String}
    AND kind IN ('stack', 'function')
    AND reported_at >= now64(9, 'UTC') - toIntervalDay({days:UInt32})
GROUP BY attempt, rank, host, thread, kind, toStartOfSecond(reported_at)
ORDER BY toStartOfSecond(taken_at) DESC, rank, thread != 'MainThread', thread
LIMIT {limit:UInt32}
