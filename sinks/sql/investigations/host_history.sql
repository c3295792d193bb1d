-- title: One host's history
-- theme: devices and hosts
-- description: Every start of a job that had ranks on the host, the newest first, with the verdicts that accuse the
--     host or a device on it (a link: also where it ends there), the highest probability, and the GPU-hours that are
--     its part (loss times probability). Many clean starts and one verdict point at the job; verdicts in several jobs
--     at the host.
-- empty: No job announced a rank on this host; `SELECT DISTINCT host FROM jobs` shows the names that are known.
-- parameter: host String | host name, as jobs announce it
-- parameter: limit UInt32 = 50 | starts of jobs at most
WITH
    starts AS
    (
        SELECT job, attempt, any(world_size) AS world_size, arraySort(groupArray(rank)) AS ranks
        FROM jobs FINAL
        WHERE host = {host:String}
        GROUP BY job, attempt
    ),
    ends AS
    (
        SELECT job, attempt, minOrNull(started_at) AS begun_at, maxOrNull(started_at) AS newest_at FROM iterations
        WHERE (job, attempt) IN (SELECT job, attempt FROM starts)
        GROUP BY job, attempt
    ),
    blame AS
    (
        SELECT
            job,
            attempt,
            uniqExact(verdict_id) AS verdicts,
            arraySort(groupUniqArray(toString(kind))) AS kinds,
            arraySort(groupUniqArray(name)) AS devices,
            toNullable(max(probability)) AS highest,
            toNullable(sum(gpu_hours_lost * probability)) AS gpu_hours
        FROM accused
        WHERE host = {host:String} OR peer_host = {host:String}
        GROUP BY job, attempt
    )
SELECT
    starts.job AS job,
    starts.attempt AS attempt,
    ends.begun_at AS begun_at,
    ends.newest_at AS newest_at,
    starts.world_size AS world_size,
    starts.ranks AS ranks,
    blame.verdicts AS verdicts,
    blame.kinds AS kinds,
    blame.devices AS devices,
    round(blame.highest, 2) AS highest_probability,
    round(blame.gpu_hours, 3) AS expected_gpu_hours_lost
FROM starts
LEFT JOIN ends USING (job, attempt)
LEFT JOIN blame USING (job, attempt)
ORDER BY newest_at DESC NULLS LAST, job, attempt DESC
LIMIT {limit:UInt32}
