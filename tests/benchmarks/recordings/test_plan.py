from __future__ import annotations

from collections import Counter

import pytest

from tests.benchmarks.recordings.faults import Hang, Imbalance, SlowLink, SlowNic, SlowWork, Work
from tests.benchmarks.recordings.job_shape import JobShape
from tests.benchmarks.recordings.layout import Layout
from tests.benchmarks.recordings.plan import plan
from tests.benchmarks.recordings.recording import Recording

RECORDINGS = plan()
HOSTS = [one for one in RECORDINGS if one.truth.device == "host"]
LINKS = [one for one in RECORDINGS if one.truth.kind == "slow_link"]
KINDS = {"slow_rank", "slow_nic", "slow_link", "slow_communicator", "slow_stage", "imbalance", "hang", "none"}


def test_names_are_unique_and_all_kinds_are_there() -> None:
    assert len({one.name for one in RECORDINGS}) == len(RECORDINGS) >= 48
    assert {one.truth.kind for one in RECORDINGS} == KINDS


def test_kinds_are_spread_over_jobs() -> None:
    jobs = {(one.truth.kind, one.shape.kind) for one in RECORDINGS}
    assert min(Counter(kind for kind, _ in jobs).values()) >= 2 or KINDS - {kind for kind, _ in jobs} == set()
    assert sum(one.truth.kind == "none" for one in RECORDINGS) >= 12


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda one: one.name)
def test_a_fault_sits_on_ranks_of_the_job_and_ends_with_it(recording: Recording) -> None:
    truth, world = recording.truth, range(recording.shape.world_size)
    assert set(truth.ranks) <= set(world)
    assert all(0 <= first < past <= recording.iterations for first, past in recording.faults[0].spans)
    counts = {"gpu": 1, "nic": 1, "link": 2}
    assert len(recording.label()["ranks"]) == counts.get(truth.device or "", len(truth.ranks))
    assert 8 <= recording.shape.world_size <= 16


@pytest.mark.parametrize("recording", HOSTS, ids=lambda one: one.name)
def test_a_slow_host_has_all_its_ranks_and_is_not_all_of_a_switch_or_a_stage(recording: Recording) -> None:
    layout, ranks = recording.layout, recording.truth.ranks
    assert ranks == layout.ranks_of_host(layout.host_number(ranks[0]))
    stages = [recording.shape.stage_ranks(stage) for stage in range(recording.shape.pp)]
    assert recording.shape.pp == 1 or ranks not in stages


@pytest.mark.parametrize("recording", LINKS, ids=lambda one: one.name)
def test_the_ends_of_a_slow_link_talk_to_each_other(recording: Recording) -> None:
    ends, shape = set(recording.truth.ranks), recording.shape
    assert any(ends <= set(group) for found in shape.groups().values() for group in found)


def test_groups_of_a_pipeline_hold_each_rank_once_a_kind() -> None:
    groups = JobShape("pipeline", dp=2, tp=2, pp=4).groups()
    assert groups["tp"][:2] == [[0, 1], [2, 3]]
    assert groups["dp"][:2] == [[0, 2], [1, 3]]
    assert groups["pp"][0] == [0, 4, 8, 12]
    for found in groups.values():
        assert sorted(rank for group in found for rank in group) == list(range(16))


def test_work_changes_in_the_window_alone_and_for_the_slow_rank_alone() -> None:
    layout = Layout(8)
    fault = SlowWork(((10, 12), (20, 21)), ranks=(3,), load_s=0.5, factor=2.0)
    slow = {(rank, n) for rank in range(8) for n in range(30) if fault.work(rank, n, Work(), layout) != Work()}
    assert slow == {(3, 10), (3, 11), (3, 20)}
    assert fault.work(3, 10, Work(), layout) == Work(load_s=0.5, factor=2.0)


def test_imbalance_slows_one_rank_in_each_iteration_and_many_in_all() -> None:
    layout, fault = Layout(8), Imbalance(((0, 40),), factor=3.0)
    slow = [[rank for rank in range(8) if fault.work(rank, n, Work(), layout).factor > 1] for n in range(40)]
    assert all(len(ranks) == 1 for ranks in slow)
    assert len({ranks[0] for ranks in slow}) >= 6


def test_a_nic_is_slowed_where_it_sends_or_at_its_port_where_it_receives() -> None:
    layout = Layout(8, ranks_per_host=2)
    where = {way: [one.rank for one in SlowNic(rank=3, direction=way).changes(layout, True)]  # type: ignore[union-attr]
             for way in ("send", "receive", "both")}  # fmt: skip
    assert where == {"send": [3], "receive": [None], "both": [3, None]}


def test_a_link_is_slowed_at_the_sender_towards_one_address() -> None:
    one = SlowLink(rank=3, peer=7, mbit=8).changes(Layout(8), True)
    assert [(change.rank, "classid 1:18" in change.lines[0]) for change in one] == [(3, True)]  # type: ignore[union-attr]
    assert len(SlowLink(rank=3, peer=7, is_both=True).changes(Layout(8), True)) == 2


def test_a_hang_inside_stops_no_process() -> None:
    layout = Layout(8)
    assert Hang(((4, 9),), rank=2).work(2, 4, Work(), layout).stops
    assert Hang(((4, 9),), rank=2).changes(layout, True) == ()
    inside = Hang(((4, 9),), rank=2, is_inside=True)
    assert not inside.work(2, 4, Work(), layout).stops
    assert [change.program for change in inside.changes(layout, True)] == ["ip"]  # type: ignore[union-attr]


def test_a_layout_must_fit_its_job() -> None:
    with pytest.raises(ValueError, match="world size must be that of the layout"):
        Recording("wrong", JobShape("ddp", dp=8), Layout(16))
