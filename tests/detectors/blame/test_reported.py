"""What devices reported moves the suspects of a verdict, and is named in it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from irregulars.detectors.blame.likelihoods import LIKELIHOODS
from irregulars.detectors.blame.reported import EventLog, score_metrics, with_events
from irregulars.detectors.job.topology import Topology
from irregulars.messages.device_events import DeviceEvent, Summary, metric_event
from irregulars.messages.judgements import Suspect, Verdict
from irregulars.messages.reasons import Reasons
from irregulars.sinks.advice import plan_of
from tests.present import present

S = 10**9
ONSET_NS, SEEN_NS = 1_000 * S, 1_020 * S  # first and last seen
RANK_1, RANK_2 = (Suspect("gpu", rank, (rank,), 0.4, host="node-0", gpu=rank, nic=f"eth{rank}") for rank in (1, 2))
NIC_1, NIC_2 = (replace(one, device="nic") for one in (RANK_1, RANK_2))
HOST = Suspect("host", 0, (0, 1, 2, 3), 0.6, host="node-0")


def verdict(*suspects: Suspect, kind: str = "slow_rank") -> Verdict:
    reasons = Reasons(10, 1.0, 1.0, "past")
    return Verdict(
        "v", 1, "open", "job", kind, (10, 20), 1.5, 2.0, None, suspects, "it was slow", time_ns=SEEN_NS,
        lasted_s=20.0, explanation=reasons,
    )  # fmt: skip


def event(at_s: float = -5.0, rank: int = 2, kind: str = "xid", code: int | None = 79, **others: Any) -> DeviceEvent:
    """An event some seconds after the onset."""
    others = {"host": "node-0", "device": f"gpu{rank}"} | others
    return DeviceEvent(ONSET_NS + int(at_s * S), rank, kind, code=code, **others)


def probabilities(found: Verdict) -> dict[int, float]:
    return {one.rank: one.probability for one in found.suspects}


def test_an_error_of_a_suspect_s_device_makes_it_ten_times_as_likely() -> None:
    found = with_events(verdict(RANK_1, RANK_2), [event()])
    whole = 0.4 + 10 * 0.4 + 0.2
    assert probabilities(found) == pytest.approx({2: 4 / whole, 1: 0.4 / whole}, abs=1e-4)
    assert found.suspects[0].rank == 2
    assert found.evidence == "it was slow; gpu2 of rank 2 reported XID 79 (bus or device), 5 s before it began"
    assert [(one.kind, one.code, one.device) for one in present(found.explanation).reported] == [("xid", 79, "gpu2")]


@pytest.mark.parametrize(("one", "times"), [
    pytest.param(event(kind="throttle", code=None, detail="thermal"), LIKELIHOODS.reported_degraded, id="throttled"),
    pytest.param(event(kind="ecc", code=2), LIKELIHOODS.reported_error, id="memory"),
    pytest.param(event(code=13), 1.0, id="an error of the application"),
    pytest.param(event(kind="process_exit", code=1), 1.0, id="what follows from the fault"),
    pytest.param(event(at_s=15.0), 1.0, id="after the onset"),
])  # fmt: skip
def test_what_weighs_how_much(one: DeviceEvent, times: float) -> None:
    found = with_events(verdict(RANK_1, RANK_2), [one])
    assert probabilities(found)[2] == pytest.approx(0.4 * times / (0.6 + 0.4 * times), abs=1e-4)
    assert ("rank 2 reported" in found.evidence) == (found.suspects[0].rank == 2)


@pytest.mark.parametrize("one", [
    pytest.param(event(at_s=-700), id="too old"), pytest.param(event(at_s=40), id="long after it was last seen"),
    pytest.param(event(rank=3), id="of a rank that is no suspect"),
    pytest.param(event(kind="link_down", code=None, device="eth2"), id="of a NIC, and no work waits for that"),
    pytest.param(event(device="", host="node-1", rank=9, kind="out_of_memory"), id="of another host"),
])  # fmt: skip
def test_what_is_of_no_suspect_changes_nothing(one: DeviceEvent) -> None:
    given = verdict(RANK_1, RANK_2)
    assert with_events(given, [one]) == given


def test_a_hang_names_how_the_process_ended_that_is_waited_for() -> None:
    ended = event(at_s=700.0, kind="process_exit", code=137, detail="Slurm's task 2 exited. Killed by signal 9")
    node = event(at_s=701.0, kind="node_state", device="", rank=0, code=None, detail="DOWN*: Not responding")
    found = with_events(verdict(RANK_2, kind="hang"), [ended, node])
    assert "gpu2 of rank 2 reported a process that ended (Slurm's task 2 exited. Killed by" in found.evidence
    assert "another state of the node (DOWN*: Not responding)" in found.evidence
    assert found.suspects == verdict(RANK_2).suspects


def test_metrics_of_a_profile_are_no_reports() -> None:
    given = verdict(RANK_2, kind="hang")
    assert with_events(given, [event(kind="metric", device="kernel_ns.gemm", detail="9 9 1")]) == given


def test_of_ranks_whose_metrics_are_not_kept_or_not_understood_nothing_is_known() -> None:
    log, topology = EventLog(), Topology(9000, {}, {})
    one = Summary(1e6, np.full(11, 1e6), 90, 90.0)
    log.add(metric_event(5, rank, "flops_per_s.mm", 0, one) for rank in range(9000))
    log.add([DeviceEvent(5, 8999, "metric", device="new", detail="?")])
    log.add([DeviceEvent(6, 9000, "metric", device="new", detail="?")])
    scores = present(score_metrics(log.until(10), log.past, np.arange(9001), topology))
    assert np.isnan(scores[[0, 700, 9000]]).all()
    assert scores[[5000, 8999]].tolist() == [0.0, 0.0]
    assert score_metrics([DeviceEvent(6, 9000, "metric", detail="?")], log.past, np.arange(9001), topology) is None


def test_metrics_of_a_fault_that_lasts_do_not_become_the_usual_ones() -> None:
    log, scores = EventLog(), []
    for window in range(60):
        value = 5e7 * (1 + 0.01 * (window % 3)) if not 15 <= window < 50 else 2e4
        one = Summary(value, np.full(11, value), 90, 90.0)
        log.add(metric_event(window * 10, rank, "issue_latency_ns", window, one) for rank in range(2))
        since_ns = 150 if window > 18 else math.inf
        new = log.until(window * 10)
        scores.append(present(score_metrics(new, log.past, np.arange(2), Topology(2, {}, {}), since_ns)) >= 1)
    assert [bool(one.all()) for one in scores] == [15 <= window < 50 for window in range(60)]


def test_links_are_evidence_on_nics_and_errors_of_gpus_are_not() -> None:
    down = event(kind="link_down", code=None, device="eth2", detail="1: DOWN")
    found = with_events(verdict(NIC_1, NIC_2, kind="slow_nic"), [down, event(rank=1)])
    assert found.suspects[0].rank == 2
    assert found.evidence.endswith("eth2 of rank 2 reported link down (1: DOWN), 5 s before it began")
    bus = event(kind="pcie", code=None, device="eth2")
    assert with_events(verdict(NIC_1, NIC_2, kind="slow_nic"), [bus]).suspects[0].rank == 2


@pytest.mark.parametrize("device", ["stage", "program"])
@pytest.mark.parametrize("one", [event(), event(kind="link_down", device="eth2"), event(kind="throttle", device="")])
def test_nothing_is_reported_of_what_is_no_device(device: str, one: DeviceEvent) -> None:
    accused = verdict(replace(RANK_2, device=device))
    assert with_events(accused, [one]) == accused


def test_what_a_host_reports_is_of_all_its_ranks() -> None:
    out = event(rank=0, kind="out_of_memory", device="", code=4711, detail="process (python)")
    assert with_events(verdict(HOST), [out]).suspects[0].probability == pytest.approx(6 / 6.4, abs=1e-4)
    assert "the host of rank 0 reported out of memory" in with_events(verdict(RANK_2), [out]).evidence


def test_xids_that_follow_are_told_with_the_first_one() -> None:
    storm = [event(at_s, code=code) for at_s, code in ((-5.0, 45), (-4.9, 79), (-4.8, 43), (-4.7, 79), (-300.0, 63))]
    found = with_events(verdict(RANK_2), storm)
    assert sorted((one.code, one.times) for one in present(found.explanation).reported) == [(63, 1), (79, 2)]
    assert "XID 79 (bus or device) 2 times, followed by 45, 43" in found.evidence


def test_an_event_opens_no_verdict_and_names_nobody_where_nobody_is_accused() -> None:
    nobody = verdict(kind="slow_communicator")
    assert with_events(nobody, [event()]) == nobody


def test_events_count_once_and_from_when_they_happened() -> None:
    log = EventLog()
    log.add([event(5.0), event(-5.0), event(-5.0)])
    log.add([event(5.0)])
    assert log.until(ONSET_NS) == (event(-5.0),)
    assert log.past == (event(-5.0),)
    restored = EventLog(*log.state())
    assert restored.until(SEEN_NS) == (event(5.0),)
    restored.add([event(5.0), event(-5.0)])
    assert restored.until(SEEN_NS) == ()


def test_a_storm_stays_bounded() -> None:
    log = EventLog()
    log.add(event(number / 1000) for number in range(100_000))
    log.until(SEEN_NS * 2)
    assert len(log.past) <= 512


def test_a_storm_of_one_kind_does_not_push_out_another() -> None:
    log = EventLog()
    xid = event(-20.0)
    log.add([xid, *(event(number / 1000, kind="link_errors", code=number) for number in range(2_000))])
    log.until(SEEN_NS * 2)
    assert xid in log.past
    restored = EventLog(*log.state())
    assert restored.state() == log.state()
    restored.add([xid])
    assert restored.until(SEEN_NS * 2) == ()


def test_events_that_come_one_by_one_are_not_gone_through_for_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    hash_of, hashes = DeviceEvent.__hash__, count()
    events = [event(number / 1000) for number in range(1_000)]
    monkeypatch.setattr(DeviceEvent, "__hash__", lambda one: hash_of(one) + 0 * next(hashes))
    log = EventLog()
    for one in events:
        log.add([one])
    assert log.until(SEEN_NS * 2) == tuple(events)
    assert next(hashes) < 10 * len(events)


def test_of_two_events_at_once_one_may_have_no_code() -> None:
    events = [event(code=79), event(code=None), event(code=13)]
    log = EventLog()
    log.add(events)
    assert log.until(SEEN_NS) == (events[1], events[2], events[0])
    assert with_events(verdict(RANK_1, RANK_2), events).suspects[0].rank == 2


@pytest.mark.parametrize(("one", "layer"), [
    (event(), "hardware"),
    (event(kind="throttle", code=None, detail="thermal"), "hardware"),
    (event(code=13), "unknown"),  # an error of the application
    (event(at_s=15.0), "unknown"),  # it may follow from the fault, or from people
    (event(rank=1), "unknown"),  # of another suspect
])  # fmt: skip
def test_work_of_a_device_that_reported_a_fault_is_the_hardware_s(one: DeviceEvent, layer: str) -> None:
    others = (replace(RANK_1, probability=0.01),) if one.rank == 1 else ()
    assert with_events(verdict(RANK_2, *others), [one]).layer == layer
    software = replace(verdict(RANK_2), cause="garbage_collection", cause_share=0.9, layer="software")
    assert with_events(software, [one]).layer == "software"


@pytest.mark.parametrize(("accused", "one"), [
    pytest.param(RANK_2, event(kind="pcie", code=None, device="eth2"), id="its NIC's bus, and work is slow"),
    pytest.param(NIC_2, event(kind="pcie", code=None, device="gpu2"), id="its GPU's bus, and a NIC is slow"),
    pytest.param(RANK_2, event(device="gpu7"), id="another GPU of the host"),
    pytest.param(NIC_2, event(kind="link_errors", code=9, device="eth7"), id="another NIC of the host"),
    pytest.param(replace(RANK_2, device="switch"), event(kind="link_down", code=None, device=""), id="one host"),
])  # fmt: skip
def test_what_another_device_of_the_rank_or_its_host_reported_is_none(accused: Suspect, one: DeviceEvent) -> None:
    assert with_events(verdict(accused), [one]) == verdict(accused)


def test_a_host_out_of_memory_is_no_broken_device() -> None:
    out = event(kind="out_of_memory", device="", code=4711, detail="process (python)")
    assert with_events(verdict(RANK_2), [out]).layer == "host"
    found = plan_of(replace(with_events(verdict(RANK_2), [out]), severity="ticket"))
    assert (found.actions, "node-0 is short of memory" in found.sentence) == ((), True)
    assert with_events(verdict(RANK_2), [out, event()]).layer == "hardware"


def test_of_ranks_on_several_hosts_an_error_elsewhere_cordons_not_the_first_one_s_host() -> None:
    hung = replace(verdict(replace(RANK_1, ranks=(1, 12), probability=0.9), kind="hang"), severity="page")
    found = with_events(hung, [event(rank=12, host="node-9", device="gpu0")])
    assert (found.layer, plan_of(found).actions) == ("unknown", ("test_device",))
    assert "gpu0 of rank 12 reported XID 79" in found.evidence
    assert with_events(hung, [event(rank=1)]).layer == "hardware"


def test_an_error_of_the_application_does_not_hide_the_device_s_own_behind_it() -> None:
    found = with_events(verdict(RANK_2), [event(-5.0, code=31), event(-4.0, code=79), event(-3.0, code=45)])
    assert found.layer == "hardware"
    assert "reported XID 79 (bus or device), followed by 31, 45, 4 s before it began" in found.evidence


def test_long_iterations_began_no_sooner_for_that() -> None:
    """Slow from 1,000 s on, in five iterations of 40 s of which the newest began at 1,160 s."""
    reasons = Reasons(12, 40e9, 25e9, "past")
    slow = replace(verdict(RANK_1, RANK_2), time_ns=1_160 * S, lasted_s=200.0, explanation=reasons)
    found = with_events(slow, [event(1.0)])
    assert found.suspects[0].rank == 2
    assert found.evidence.endswith("XID 79 (bus or device), 1 s after it began")
