-- title: Is the pipeline healthy?
-- theme: the pipeline
-- description: For the newest attempt of each job: when its newest iteration began and when it was stored, and of the
--     newest iterations how many lack ranks that should log, how many rows came late, how many ranks are silent, and
--     how many rows of the attempt are known to be lost. A silent rank sent nothing of the newest 20. From
--     iterations_without_all_ranks on all is 0 in a healthy pipeline. behind_s: from the begin of the newest stored
--     iteration to now; much more than an iteration takes: the job has ended or hangs, or agents, brokers or workers
--     are behind.
-- empty: No job has announced itself: no agent sends, or no worker stores.
-- parameter: iterations UInt32 = 100 | newest iterations of each job that are looked at
-- parameter: limit UInt32 = 50 | jobs at most, the most recently seen first
WITH
    announced AS
    (
        SELECT job, attempt, countIf(is_logged) AS logged
        FROM jobs FINAL
        WHERE (job, attempt) IN (SELECT job, max(attempt) FROM jobs FINAL GROUP BY job)
        GROUP BY job, attempt
    ),
    newest AS
    (
        SELECT job, attempt, iteration, started_at, ranks_reported, stored_at
        FROM iterations FINAL
        WHERE (job, attempt) IN (SELECT job, attempt FROM announced)
        ORDER BY job, attempt, iteration DESC
        LIMIT {iterations:UInt32} BY job, attempt
    ),
    judged AS
    (
        SELECT
            newest.job AS job,
            newest.attempt AS attempt,
            count() AS iterations,
            max(newest.iteration) AS last_iteration,
            maxOrNullIf(newest.started_at, newest.started_at > toDateTime64(0, 9, 'UTC')) AS newest_at, -- earlier ones: not known
            toNullable(max(newest.stored_at)) AS newest_stored_at,
            countIf(newest.ranks_reported < announced.logged) AS missing
        FROM newest
        INNER JOIN announced ON announced.job = newest.job AND announced.attempt = newest.attempt
        GROUP BY job, attempt
    ),
    heard AS
    (
        SELECT job, attempt, groupArray(last_iteration) AS last_iterations, sum(late) AS late_rows, sum(lost) AS lost_rows
        FROM
        (
            SELECT job, attempt, rank, max(iteration) AS last_iteration, sum(late_rows) AS late, max(lost_rows) AS lost
            FROM rank_iterations FINAL
            WHERE (job, attempt, iteration) IN (SELECT job, attempt, iteration FROM newest)
            GROUP BY job, attempt, rank
        )
        GROUP BY job, attempt
    )
SELECT
    announced.job AS job,
    announced.attempt AS attempt,
    judged.newest_at AS newest_at,
    judged.newest_stored_at AS newest_stored_at,
    dateDiff('second', judged.newest_at, now64(9, 'UTC')) AS behind_s,
    judged.iterations AS iterations,
    judged.missing AS iterations_without_all_ranks,
    heard.late_rows AS late_rows,
    -- In as many iterations as silent_ranks looks at
    if(
        judged.iterations = 0,
        NULL,
        greatest(
            toInt64(announced.logged)
                - toInt64(arrayCount(one -> one > judged.last_iteration - 20, heard.last_iterations)),
            0
        )
    ) AS silent_ranks,
    heard.lost_rows AS lost_rows
FROM announced
LEFT JOIN judged ON judged.job = announced.job AND judged.attempt = announced.attempt
LEFT JOIN heard ON heard.job = announced.job AND heard.attempt = announced.attempt
ORDER BY newest_at DESC NULLS LAST, job
LIMIT {limit:UInt32}
