-- title: One device's history
-- theme: devices and hosts
-- description: Every verdict that accuses a GPU, a NIC or a switch, or a link that begins at that NIC, the newest
--     first. Give host with gpu or with nic, or a switch; a host alone shows all its devices, and links that
--     end there; nothing shows all. A probability below 0.5 says that another suspect was as likely. The cause was seen
--     in iterations first_iteration up to before past_last_iteration (half-open).
-- empty: No verdict accuses that device; `irregulars sql host_history host=…` shows whether any job ran there.
-- parameter: host String = '' | host name; default: all
-- parameter: gpu Nullable(Int64) = NULL | index of the GPU on its host
-- parameter: nic String = '' | name of the NIC on its host
-- parameter: switch String = '' | name of the switch
-- parameter: limit UInt32 = 50 | verdicts at most
SELECT
    last_seen_at,
    name AS device,
    job,
    kind,
    state,
    severity,
    round(probability, 2) AS probability,
    first_iteration,
    past_last_iteration,
    round(delta, 2) AS times_usual,
    round(gpu_hours_lost * probability, 3) AS expected_gpu_hours_lost,
    close_reason,
    verdict_id
FROM accused
-- A link ends at no NIC that is known, but at a host
WHERE ({host:String} = '' OR host = {host:String} OR (peer_host = {host:String} AND {nic:String} = ''))
    AND ({switch:String} = '' OR (has(named_by, 'switch') AND switch = {switch:String}))
    AND ({gpu:Nullable(Int64)} IS NULL OR gpu = {gpu:Nullable(Int64)})
    AND ({nic:String} = '' OR nic = {nic:String})
ORDER BY last_seen_at DESC NULLS LAST, verdict_id, position
LIMIT {limit:UInt32}
