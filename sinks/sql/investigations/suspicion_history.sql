-- title: How a suspicion moved
-- description: The suspects of every stored revision of one verdict: did it waver, or did evidence add up?
-- parameter: verdict_id String | the verdict, as alerts name it
-- parameter: limit UInt32 = 200 | lines at most
SELECT
    revision,
    position,
    device,
    host,
    gpu,
    nic,
    rank,
    peer,
    round(probability, 3) AS probability
FROM suspects FINAL
WHERE verdict_id = {verdict_id:String}
ORDER BY revision, position
LIMIT {limit:UInt32}
