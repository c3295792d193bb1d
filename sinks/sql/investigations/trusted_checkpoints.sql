-- title: Checkpoints that can be trusted
-- theme: jobs and cost
-- description: Checkpoints of a job, and whether they were written before the first doubtful iteration: before any
--     verdict of corruption, or of a loss spike that names a rank, unless feedback calls it wrong. An error may have
--     waited for a while: doubt begins after the last checksum and the last audit before the verdict, or with the attempt
--     where there is none, and one round of checksums (checksum_steps) before it. It lasts over later attempts until one
--     begins at or before that iteration, by the job's own numbers: it went back. is_trusted is NULL where the attempt
--     sent nothing to judge by (checked_by is empty); without audits it says nothing of small errors before the reduction.
-- empty: No checkpoint of this job is stored: the trainer must name the phase checkpoint of its iterations.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: checksum_steps UInt32 = 64 | iterations in which all parameters are summed once (watch_numerics)
-- parameter: limit UInt32 = 50 | checkpoints at most, the newest first
WITH
    starts AS
    (
        SELECT attempt, min(iteration) AS first, max(iteration) AS last FROM iterations
        WHERE job = {job:String}
        GROUP BY attempt
    ),
    accusing AS
    (
        SELECT attempt, min(first_iteration) AS seen_in, argMin(verdict_id, first_iteration) AS accuser,
            argMin(kind, first_iteration) AS accused_of
        FROM verdicts FINAL
        WHERE job = {job:String}
            AND (kind = 'corruption' OR kind = 'loss_spike' AND verdict_id IN
                (SELECT verdict_id FROM newest_suspects WHERE job = {job:String}))
            AND verdict_id NOT IN (SELECT verdict_id FROM feedback FINAL WHERE job = {job:String} AND NOT is_right)
        GROUP BY attempt
    ),
    -- The newest checks before each verdict, among the thousand iterations before it.
    checked AS
    (
        SELECT attempt, toNullable(max(iteration)) AS passed
        FROM rank_iterations FINAL
        WHERE job = {job:String} AND parameters_checksum IS NOT NULL
            AND (attempt, iteration) IN (SELECT attempt, arrayJoin(range(seen_in - 1000, seen_in)) FROM accusing)
        GROUP BY attempt
        UNION ALL
        SELECT attempt, toNullable(max(iteration)) AS passed
        FROM audits FINAL
        WHERE job = {job:String}
            AND (attempt, iteration) IN (SELECT attempt, arrayJoin(range(seen_in - 1000, seen_in)) FROM accusing)
        GROUP BY attempt
    ),
    watched AS
    (
        SELECT attempt, concat('norms', if(count(parameters_checksum) > 0, ', checksums', '')) AS sensors
        FROM rank_iterations FINAL
        WHERE job = {job:String}
            AND (attempt, iteration) IN (SELECT attempt, arrayJoin(range(last - 200, last + 1)) FROM starts)
            AND (loss IS NOT NULL OR grad_norm IS NOT NULL OR parameters_checksum IS NOT NULL)
        GROUP BY attempt
        UNION ALL
        SELECT DISTINCT attempt, 'audits' AS sensors FROM audits WHERE job = {job:String}
    ),
    (SELECT groupArray((attempt, first)) FROM starts WHERE first > (SELECT min(first) FROM starts)) AS begun,
    (
        SELECT arraySort(groupArray((attempt, since, accuser, accused_of)))
        FROM
        (
            SELECT accusing.attempt AS attempt, any(accuser) AS accuser, any(accused_of) AS accused_of,
                least(
                    any(seen_in) - greatest({checksum_steps:UInt32}, 1) + 1,
                    -- Where nothing was checked before it, the error may be as old as the attempt.
                    ifNull(min(checked.passed) + 1, any(starts.first))
                ) AS since
            FROM accusing
            LEFT JOIN starts ON starts.attempt = accusing.attempt
            LEFT JOIN checked ON checked.attempt = accusing.attempt
            GROUP BY accusing.attempt
        )
    ) AS doubts
SELECT
    known.attempt AS attempt,
    known.iteration AS iteration,
    known.started_at AS started_at,
    if(empty(checked_by), NULL, toBool(empty(against))) AS is_trusted,
    nullIf(against[1].3, '') AS verdict_id,
    nullIf(toString(against[1].4), '') AS kind,
    if(empty(against), NULL, against[1].1) AS doubtful_attempt,
    if(empty(against), NULL, against[1].2) AS doubtful_from,
    watch.checked_by AS checked_by
FROM
(
    SELECT
        attempt,
        iteration,
        started_at,
        arrayFilter(
            one -> one.1 = attempt AND one.2 <= iteration
                OR one.1 < attempt
                    AND NOT arrayExists(start -> start.1 > one.1 AND start.1 <= attempt AND start.2 <= one.2, begun),
            doubts
        ) AS against
    FROM iterations FINAL
    WHERE job = {job:String} AND phase = 'checkpoint'
) AS known
LEFT JOIN
(
    SELECT attempt, arrayStringConcat(arraySort(groupArray(sensors)), ', ') AS checked_by
    FROM watched
    GROUP BY attempt
) AS watch ON watch.attempt = known.attempt
ORDER BY attempt DESC, iteration DESC
LIMIT {limit:UInt32}
