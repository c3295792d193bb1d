-- title: How often were verdicts right?
-- theme: jobs and cost
-- description: What people said of verdicts, by kind: how many were judged, how many of them were right, and how sure the
--     verdicts had been of it on average. A share far below that says what to be wary of here. The newest word on a
--     verdict counts.
-- empty: Nobody has judged a verdict: irregulars feedback VERDICT right, or wrong.
-- parameter: job String = '' | training job; default: all
-- parameter: days UInt32 = 365 | said in the days before the newest word
-- parameter: limit UInt32 = 50 | kinds at most
WITH newest AS
(
    SELECT
        job,
        verdict_id,
        argMax(is_right, said_at) AS was_right,
        argMax(kind, said_at) AS of_kind,
        argMax(device, said_at) AS of_device,
        argMax(probability, said_at) AS told,
        max(said_at) AS last_said_at
    FROM feedback FINAL
    WHERE is_right IS NOT NULL AND ({job:String} = '' OR job = {job:String})
    GROUP BY job, verdict_id
)
SELECT
    of_kind AS kind,
    count() AS judged,
    countIf(was_right) AS right,
    countIf(NOT was_right) AS wrong,
    round(right / judged, 3) AS right_share,
    round(avg(told), 3) AS told_probability,
    arraySort(groupUniqArrayIf(assumeNotNull(of_device), NOT was_right AND of_device IS NOT NULL)) AS wrong_devices,
    max(last_said_at) AS newest_word_at
FROM newest
WHERE last_said_at >= (SELECT max(last_said_at) FROM newest) - toIntervalDay({days:UInt32})
GROUP BY kind
ORDER BY judged DESC, kind
LIMIT {limit:UInt32}
