-- title: Ranks that are silent
-- theme: the pipeline
-- description: Ranks that announced to log and sent nothing of the newest iterations of their job, with where they
--     live and the last iteration that they sent (none: not within the last thousand). Whole hosts: the agent is down
--     or cut off. Single ranks: the hook does not run there, or the rank is gone.
-- empty: Every rank that logs has sent in the newest iterations.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: the newest
-- parameter: iterations UInt32 = 20 | newest iterations in which a rank must have sent
-- parameter: limit UInt32 = 100 | ranks at most
WITH
    (
        SELECT ifNull(
            {attempt:Nullable(Int64)},
            (SELECT attempt FROM iterations WHERE job = {job:String} ORDER BY attempt DESC LIMIT 1)
        )
    ) AS wanted,
    (
        SELECT max(iteration) FROM iterations WHERE job = {job:String} AND attempt = wanted
    ) AS newest,
    silent AS
    (
        SELECT rank, host, gpu
        FROM jobs FINAL
        WHERE job = {job:String}
            AND attempt = wanted
            AND is_logged
            AND rank NOT IN
            (
                SELECT DISTINCT rank FROM rank_iterations
                WHERE job = {job:String} AND attempt = wanted AND iteration > newest - {iterations:UInt32}
            )
    ),
    before AS
    (
        SELECT rank, toNullable(max(iteration)) AS last_iteration
        FROM rank_iterations FINAL
        WHERE job = {job:String} AND attempt = wanted AND iteration > newest - 1000 AND rank IN (SELECT rank FROM silent)
        GROUP BY rank
    )
SELECT
    silent.rank AS rank,
    silent.host AS host,
    silent.gpu AS gpu,
    before.last_iteration AS last_iteration,
    newest AS newest_iteration_of_job
FROM silent
LEFT JOIN before ON before.rank = silent.rank
ORDER BY silent.host, silent.rank
LIMIT {limit:UInt32}
