"""The life of verdicts: when they open, change, go on and close, and that a snapshot forgets nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from irregulars.detectors.blame.causes import Cause
from irregulars.detectors.blame.observation import ExcessPause, Observation
from irregulars.detectors.irregular.late_rank import Latest
from irregulars.detectors.irregular.thresholds import IRREGULAR, LATE_SIGMAS
from irregulars.detectors.job.lanes import EVERYBODY, Lane, LaneExcess
from irregulars.detectors.job.topology import Device, Place, Topology
from irregulars.detectors.nics.steadiness import Swing
from irregulars.detectors.path.critical_path import Attribution, Piece
from irregulars.detectors.verdicts.open_verdict import History, OpenVerdict
from irregulars.detectors.verdicts.tracker import VerdictTracker
from irregulars.messages.device_events import DeviceEvent
from irregulars.messages.judgements import Verdict
from irregulars.messages.records import PAUSES
from irregulars.state_codec import encode_state
from tests.detectors.blame.test_what_if import Job
from tests.detectors.observed_iterations import MS, PAIR, TOPOLOGY, Step, late, observation, work
from tests.present import present
from tests.stored_states import stored


def lived(
    steps: Sequence[Step], tracker: VerdictTracker | None = None, first: int = 0, every: int = 1
) -> list[Verdict]:
    """What is told of iterations; `every`: one in as many numbers is judged."""
    tracker = tracker or VerdictTracker("j", 1)
    said = []
    for number, step in enumerate(steps, start=first):
        said += tracker.observe(observation(every * number, step), TOPOLOGY)[0]
    return said


def test_a_spike_of_another_rank_is_told_after_a_fault_that_was_told() -> None:
    tracker = VerdictTracker("j", 1)
    said = lived([late(1)] * 10 + [None] * 20, tracker)
    said += tracker.observe(replace(observation(30, late(2, 70.0)), sigmas=50.0), TOPOLOGY)[0]
    said += lived([None] * 20, tracker, first=31)
    assert [one.iterations for one in said if one.event == "opened"] == [(0, 3), (30, 31)]


def test_iterations_that_were_not_looked_into_belong_to_a_verdict_by_their_times() -> None:
    """A NIC costs 30 ms from the first iteration on; with noise of 15 ms some are not looked into, as after it."""
    elapsed_ms = [
        130.0,
        140.0,
        120.0,
        130.0,
        130.0,
        130.0,
        110.0,
        130.0,
        140.0,
        130.0,
        110.0,
        90.0,
        110.0,
        100.0,
        90.0,
    ]
    unseen = (0, 1, 2, 6, *range(9, 15))
    tracker, said = VerdictTracker("j", 1), list[Verdict]()
    for number, ms in enumerate(elapsed_ms):
        one = observation(number, None if number in unseen else {Lane("collective", 0): 30.0})
        said += tracker.observe(replace(one, elapsed_ns=ms * MS, spread_ns=15 * MS), TOPOLOGY)[0]
    (verdict,) = tracker.close("finished", TOPOLOGY)
    # The tenth is the last: what follows it took less than half of the 30 ms longer.
    assert (verdict.verdict_id, verdict.iterations, verdict.lost_s) == ("j:1:0:0", (0, 10), pytest.approx(0.27))


def test_a_verdict_loses_no_less_than_nothing() -> None:
    """Slow transfers beside work that was quicker by chance."""
    tracker, said = VerdictTracker("j", 1), list[Verdict]()
    for number in range(8):
        one = replace(observation(number, {Lane("collective", 0): 30.0}), elapsed_ns=80 * MS, spread_ns=15 * MS)
        said += tracker.observe(one, TOPOLOGY)[0]
    assert said[0].lost_s == 0.0


@pytest.mark.parametrize(("longer_ms", "lost_ms"), [(50.0, 500.0), (100.0, 1000.0), (200.0, 1000.0)])
def test_two_causes_cost_no_more_together_than_iterations_took_longer_that_nobody_read(
    longer_ms: float, lost_ms: float
) -> None:
    """Each costs 50 ms; of ten iterations only their times are known."""
    steps = [late(1)] * 6 + [late(1) | {PAIR: 25.0, Lane("pair", 0, 3): 25.0}] * 6
    tracker = VerdictTracker("j", 1)
    lived(steps, tracker)
    for number in range(12, 22):
        tracker.observe(replace(observation(number), elapsed_ns=(100 + longer_ms) * MS, is_unread=True), TOPOLOGY)
    said = tracker.close("finished", TOPOLOGY)
    assert [one.kind for one in said] == ["slow_rank", "slow_nic"]
    assert 1e3 * sum(one.lost_s for one in said) == pytest.approx(900.0 + lost_ms)


def test_a_verdict_begins_with_no_unread_iterations_that_another_one_has_counted() -> None:
    tracker = VerdictTracker("j", 1)
    lived([late(1)] * 6, tracker)
    for number in range(6, 16):
        tracker.observe(replace(observation(number), elapsed_ns=150 * MS, is_unread=True), TOPOLOGY)
    lived([{PAIR: 25.0, Lane("pair", 0, 3): 25.0}] * 6, tracker, first=16)
    said = tracker.close("finished", TOPOLOGY)
    assert [(one.kind, one.iterations, one.lost_s) for one in said] == [
        ("slow_rank", (0, 16), pytest.approx(0.8)), ("slow_nic", (16, 22), pytest.approx(0.3)),
    ]  # fmt: skip


@pytest.mark.parametrize("spread_ms", [0.0, 15.0])
def test_a_job_that_becomes_quicker_than_usual_takes_back_no_more_than_was_lost(spread_ms: float) -> None:
    """A rank is late by 10 ms all along; from the twentieth iteration on all work is shorter."""
    tracker = VerdictTracker("j", 1)
    for number in range(60):
        one = replace(observation(number, late(1, 10.0)), spread_ns=spread_ms * MS)
        if number >= 20:
            one = replace(one, elapsed_ns=80 * MS, is_long=False, latest=Latest(1, 10 * MS, LATE_SIGMAS))
        tracker.observe(one, TOPOLOGY)
    (verdict,) = tracker.close("finished", TOPOLOGY)
    assert verdict.lost_s == pytest.approx(0.0 if spread_ms else 0.2)  # not told from noise, or known to be none


def test_two_spikes_of_one_rank_lasted_for_the_time_between_them_too() -> None:
    """Iterations of 170, 100 and 170 ms."""
    spikes = {0: replace(observation(0, late(2, 70.0)), sigmas=50.0), 2: observation(2, late(2, 70.0))}
    tracker = VerdictTracker("j", 1)
    said = [one for n in range(6) for one in tracker.observe(spikes.get(n, observation(n)), TOPOLOGY)[0]]
    assert [(one.event, one.iterations) for one in said] == [("opened", (0, 3))]
    assert (said[0].lost_s, said[0].lasted_s) == pytest.approx((0.14, 0.44))


def test_a_spike_begins_with_the_iterations_that_led_to_it() -> None:
    steps = [observation(0, late(2, 40.0)), observation(1), replace(observation(2, late(2, 70.0)), sigmas=50.0)]
    tracker = VerdictTracker("j", 1)
    steps += [observation(n, late(1, 15.0) if n == 4 else None) for n in range(3, 8)]
    said = [one for o in steps for one in tracker.observe(o, TOPOLOGY)[0]]
    assert [(one.event, one.iterations, one.lost_s) for one in said] == [("opened", (0, 3), pytest.approx(0.11))]
    assert "in each of 2 slow iterations" in said[0].evidence  # one after it is none that led to it


def test_how_often_a_cause_must_be_seen() -> None:
    # A rank is accused when it was late three times of six
    assert lived([late(1), late(1)]) == []
    (verdict,) = lived([late(1), late(1), late(1)])
    assert (verdict.event, verdict.state, verdict.kind, verdict.iterations) == ("opened", "open", "slow_rank", (0, 3))
    assert verdict.verdict_id == "j:1:0:0"
    assert verdict.lost_s == pytest.approx(0.15)
    assert verdict.delta == 1.5


INTO_3: Step = {PAIR: 50.0, Lane("pair", 0, 3): 50.0}


def test_where_no_iteration_is_long_by_itself_the_cause_must_be_in_all_of_the_last_six() -> None:
    def said(iterations: Sequence[Observation]) -> list[Verdict]:
        tracker = VerdictTracker("j", 1)
        return [one for o in iterations for one in tracker.observe(o, TOPOLOGY)[0]]

    weak = [replace(observation(n, late(1, 8.0)), is_long=False, is_shifted=True) for n in range(6)]
    (verdict,) = said(weak)
    assert (verdict.kind, verdict.iterations) == ("slow_rank", (0, 6))
    assert said(weak[:5]) == []
    assert said([*weak[:3], observation(3), *weak[4:]]) == []


def test_a_capped_rate_vouches_for_a_nic_whose_transfers_are_hardly_beyond_their_noise() -> None:
    world, ranks = Lane("collective", 0), range(4)
    capped = {rank: (0.3, 0.9) if rank == 1 else (0.7, 0.9) for rank in ranks}
    swings = tuple(Swing(0, rank, 0.1 if rank == 1 else 0.6, 0.6, 1e7, 1e7, 0.2, 0.2) for rank in ranks)

    def weak(number: int, *, is_sampled: bool) -> Observation:
        most_ns = (20 if number % 2 else 40) * MS  # in regular iterations; now it is 30
        lanes = {world: LaneExcess(30 * MS, 10 * MS, MS, 1e6, 4.0, 4.0, most_ns)}
        pieces = {world: Piece(world, 0, 0, 0, 40 * MS, 10 * MS)}
        found = Attribution(number, {world: 30 * MS}, pieces, lanes, {}, rates=capped, swings=swings)
        found = found if is_sampled else replace(found, rates={}, swings=())
        one = Observation(number, 130 * MS, 100 * MS, number, found)
        return replace(one, is_long=False, is_shifted=True)

    def said(*, is_sampled: bool) -> list[Verdict]:
        tracker = VerdictTracker("j", 1)
        return [one for n in range(6) for one in tracker.observe(weak(n, is_sampled=is_sampled), TOPOLOGY)[0]]

    assert [(one.kind, one.suspects[0].ranks) for one in said(is_sampled=True)] == [("slow_nic", (1,))]
    assert said(is_sampled=False) == []


def test_another_rank_late_in_each_iteration_is_uneven_data_although_none_of_them_is_long() -> None:
    def said(ranks: Sequence[int]) -> list[Verdict]:
        tracker = VerdictTracker("j", 1)
        weak = [replace(observation(n, late(rank, 20.0)), is_long=False, latest=Latest(rank, 20 * MS, LATE_SIGMAS))
                for n, rank in enumerate(ranks)]  # fmt: skip
        return [one for o in weak for one in tracker.observe(o, TOPOLOGY)[0]]

    (verdict,) = said([0, 2, 1, 3, 2, 0])
    assert (verdict.kind, verdict.suspects) == ("imbalance", ())
    assert "imbalance" not in [one.kind for one in said([2, 2, 1, 2, 2, 2])]


def test_iterations_of_a_shift_in_which_no_rank_stands_out_are_no_uneven_data() -> None:
    """In each some rank is last by chance, and two pause beside them."""
    tracker = VerdictTracker("j", 1)
    weak = [replace(observation(n, late(rank, 20.0)), is_long=n in (2, 4), is_shifted=True)
            for n, rank in enumerate([0, 2, 1, 3, 2, 0, 3, 1])]  # fmt: skip
    assert [one for o in weak for one in tracker.observe(o, TOPOLOGY)[0]] == []


@pytest.mark.parametrize(("path_ms", "sigmas", "kinds"), [
    pytest.param({Lane("pair", 1, other): 80.0 for other in (0, 2, 3)}, 0.0, ["slow_nic"], id="no rank is late"),
    pytest.param(late(1, 80.0), LATE_SIGMAS, ["slow_rank"], id="later than the latest ones are"),
    pytest.param(late(1, 80.0), LATE_SIGMAS - 1, [], id="a heavy batch"),
])  # fmt: skip
def test_uneven_data_do_not_hide_a_spike(path_ms: Step, sigmas: float, kinds: list[str]) -> None:
    cause = Cause("imbalance", (), frozenset(), None, dict.fromkeys(range(5), 20 * MS))
    reviewed = [observation(n, late(n % 4, 20.0)) for n in range(5)]
    tracker = VerdictTracker("j", 1)
    tracker.review_standing([cause], reviewed, [], TOPOLOGY)
    spike = replace(observation(20, path_ms), sigmas=50.0, latest=Latest(1, 80 * MS, sigmas))
    said = [one for o in (spike, *map(observation, range(21, 30))) for one in tracker.observe(o, TOPOLOGY)[0]]
    opened = [(one.kind, one.iterations) for one in said if one.event == "opened"]
    assert opened == [(kind, (20, 21)) for kind in kinds]


@pytest.mark.parametrize(("times", "first"), [(0, 10), (5, 12)])
def test_uneven_data_begin_behind_the_iterations_that_another_verdict_explains(times: int, first: int) -> None:
    """All along another rank works 20 ms longer; `times`: of two quiet iterations between, which close the first."""
    uneven = [late(number % 4, 20.0) for number in range(10)]
    slow = [{**present(step), Lane("collective", 0): 50.0} for step in uneven]
    between = [step for at in range(times) for step in (None, None, late(at % 4, 20.0))]
    told = {one.kind: one.iterations for one in lived([*slow, *between, *uneven])}
    assert told["slow_communicator"] == (0, 10)
    assert told["imbalance"][0] == first


@pytest.mark.parametrize("is_carried", [False, True])
def test_an_iteration_that_was_taken_for_like_another_accuses_nobody_anew(is_carried: bool) -> None:
    tracker = VerdictTracker("j", 1)
    steps = [observation(0, late(1)), *(replace(observation(n, late(1)), is_carried=is_carried) for n in range(1, 6))]
    said = [one for step in steps for one in tracker.observe(step, TOPOLOGY)[0]]
    assert bool(said) is not is_carried


def test_a_heavy_stage_does_not_hide_a_rank_of_it_that_turns_slow() -> None:
    tracker = VerdictTracker("j", 1)
    reviewed = [observation(n, late(1)) for n in range(5)]
    lanes, explained = frozenset([work(0), work(1)]), dict.fromkeys(range(5), 20 * MS)
    stage = Cause("slow_stage", ((Device("stage", (0, 1)), 0.9),), lanes, None, explained)
    history: History = [(n, {}) for n in range(5)]
    (opened,) = tracker.review_standing([stage], reviewed, history, TOPOLOGY)
    assert opened.kind == "slow_stage"
    said = lived([late(1)] * 3, tracker, first=5)
    assert [one.kind for one in said if one.event == "opened"] == ["slow_rank"]


@pytest.mark.parametrize("beside", [Lane("collective", 0), EVERYBODY])
def test_a_rank_a_little_late_beside_what_costs_more_is_not_accused_and_alone_it_is(beside: Lane) -> None:
    """Slow phases of hosts cost some per cent: beside a slow communicator or longer work of all they don't count."""
    assert "slow_rank" not in {verdict.kind for verdict in lived([late(1, 5.0) | {beside: 12.0}] * 12)}
    assert [verdict.kind for verdict in lived([late(1, 5.0)] * 3)] == ["slow_rank"]
    assert "slow_rank" in {verdict.kind for verdict in lived([late(1, 12.0) | {beside: 15.0}] * 12)}


def working_longer(number: int, step: Step, rank: int, late_ms: float) -> Observation:
    """An iteration of which it is known how much longer each rank worked, on the path or not."""
    one = observation(number, step)
    work_ns = dict.fromkeys(range(4), 0.0) | {rank: late_ms * MS + number % 3 * MS}
    return replace(one, attribution=replace(present(one.attribution), work_excess_ns=work_ns))


@pytest.mark.parametrize("late_ms", [15.0, 50.0])
def test_slow_transfers_beside_a_rank_slow_without_them_are_none_of_its_own(late_ms: float) -> None:
    """Beside them the smaller lateness is no main cause of an iteration, and it costs no less for that."""

    def told(steps: Sequence[Step], *, waits: bool = False) -> list[tuple[str, float]]:
        tracker, said = VerdictTracker("j", 1), []
        for number, step in enumerate(steps):
            one = working_longer(number, step, 1, late_ms)
            pauses = (ExcessPause(1, PAUSES.index("cpu_wait"), late_ms * MS),)
            one = replace(one, pauses=pauses if waits else None)
            said += tracker.observe(one, TOPOLOGY, {1: late_ms * MS})[0]
        assert "changed" not in {one.event for one in said}
        return [(one.kind, one.lost_s) for one in tracker.close("finished", TOPOLOGY)]

    both = late(1, late_ms) | {Lane("collective", 0): 100.0}
    (rank, rank_lost_s), (transfers, transfers_lost_s) = told([late(1, late_ms)] * 20 + [both] * 70)
    assert (rank, transfers) == ("slow_rank", "slow_communicator")
    assert (rank_lost_s, transfers_lost_s) == (pytest.approx(90 * late_ms / 1e3), pytest.approx(70 * 0.1))
    # Both from one moment on are a lack of processor time, and so they are where it waited for one
    assert [kind for kind, _ in told([both] * 30)] == ["slow_rank"]
    assert [kind for kind, _ in told([late(1, late_ms)] * 20 + [both] * 70, waits=True)] == ["slow_rank"]


def test_verdicts_that_come_to_say_the_same_are_one() -> None:
    """Ranks 1 and 2 seem to lack processor time, one after the other; then it is their communicator."""
    world, tracker = Lane("collective", 0), VerdictTracker("j", 1)
    ranks = [1] * 12 + [2] * 12
    for number, rank in enumerate(ranks):
        step = late(rank, 15.0) | {world: 100.0}
        tracker.observe(working_longer(number, step, rank, 15.0), TOPOLOGY, {rank: 15 * MS})
    for number in range(len(ranks), 120):
        tracker.observe(working_longer(number, {world: 100.0}, 0, 0.0), TOPOLOGY, {1: 0.0, 2: 0.0})
    found = tracker.close("finished", TOPOLOGY)
    assert [(one.kind, one.iterations) for one in found] == [("slow_communicator", (0, 120))]


@pytest.mark.parametrize(("names", "quiet", "closed"), [("x xy y", 0, {"1"}), ("x xy", 9, {"0"})])
def test_a_verdict_is_told_by_one_that_goes_on_alone(names: str, quiet: int, closed: set[str]) -> None:
    verdicts = []
    for at, lanes in enumerate(names.split()):
        own = frozenset(Lane("collective", "xy".index(one)) for one in lanes)
        one = OpenVerdict(str(at), Cause("slow_communicator", (), own, None, {at: 50 * MS}), at, said=("slow", None))
        one.add(observation(at, dict.fromkeys(own, 50.0)))
        one.quiet = 0 if at else quiet
        verdicts.append(one)
    tracker = VerdictTracker.from_state(replace(VerdictTracker("j", 1).state(), open=tuple(verdicts)))
    revisions, _ = tracker.observe(observation(10), TOPOLOGY)
    over = {one.verdict_id: one for one in revisions if one.event == "closed"}
    assert over.keys() == closed
    # It has not recovered where another goes on about the same
    merged = {name: one.evidence.rpartition("; ")[2] for name, one in over.items() if one.close_reason == "merged"}
    assert merged == ({"1": "verdict 0 tells of it"} if quiet == 0 else {})


def test_a_host_a_little_late_beside_a_slow_communicator_is_not_accused_and_alone_it_is() -> None:
    topology = replace(TOPOLOGY, places={rank: Place(f"h{rank // 2}", rank % 2) for rank in range(4)})

    def accused(beside: Step) -> set[str]:
        tracker, found = VerdictTracker("j", 1), set()
        for number in range(6):
            one = observation(number, late(1, 5.0) | (beside or {}))
            attribution = replace(present(one.attribution), work_excess_ns={0: 5 * MS, 1: 5 * MS, 2: 0.0, 3: 0.0})
            said, _ = tracker.observe(replace(one, attribution=attribution), topology)
            found |= {suspect.device for verdict in said for suspect in verdict.suspects}
        return found

    assert accused({Lane("collective", 0): 12.0}) == set()
    assert accused(None) == {"host"}


def test_iterations_that_open_a_verdict() -> None:
    # What lies within six iterations opens a verdict
    assert [one.kind for one in lived([late(1), None, None, late(1), None, late(1)])] == ["slow_rank"]
    # What lies further apart than six iterations opens nothing
    assert lived([late(1), None, None, late(1), None, None, late(1), None, None] * 3) == []
    # Ranks that are late in turn accuse nobody
    (verdict,) = lived([late(rank % 4) for rank in range(6)])
    assert (verdict.kind, verdict.suspects, verdict.iterations) == ("imbalance", (), (0, 6))
    # Uneven data are told also where iterations between are as always
    (verdict,) = lived([late(0), late(2), None, None, late(1), late(3), late(0), late(2)])
    assert (verdict.kind, verdict.suspects, verdict.iterations) == ("imbalance", (), (0, 8))


def test_when_a_verdict_begins_and_goes_on() -> None:
    # Uneven data do not hide a rank that turns slow
    said = lived([*(late(rank % 4) for rank in range(6)), *([late(1, 90.0)] * 6)])
    assert [one.kind for one in said if one.event == "opened"] == ["imbalance", "slow_rank"]
    # A verdict begins with the first iteration in which its cause was seen
    (verdict,) = lived([None, late(2), late(1), late(1), late(1)], first=40)
    assert verdict.iterations == (42, 45)
    assert verdict.verdict_id == "j:1:42:0"
    # While the accused ranks are not late their verdict is quiet
    tracker = VerdictTracker("j", 1)
    assert not tracker.is_quiet({})
    lived([late(1)] * 3, tracker)
    assert tracker.is_quiet({})
    assert tracker.is_quiet({1: 20 * MS, 2: 50 * MS})
    assert not tracker.is_quiet({1: 40 * MS})
    lived([late(1) | {PAIR: 50.0}] * 4, tracker, first=3)
    assert not tracker.is_quiet({})  # lateness does not tell of transfers
    # A verdict says that it goes on when its loss has doubled
    said = lived([late(1)] * 24)
    assert [(v.event, v.iterations[1]) for v in said] == [
        ("opened", 3),
        ("continued", 6),
        ("continued", 12),
        ("continued", 24),
    ]


def test_when_a_verdict_closes() -> None:
    # A verdict closes after ten quiet iterations
    assert len(lived([late(1)] * 3 + [None] * 9)) == 1
    _, closed = lived([late(1)] * 3 + [None] * 10)
    assert (closed.state, closed.event, closed.close_reason, closed.iterations) == (
        "closed",
        "closed",
        "recovered",
        (0, 3),
    )
    assert closed.revision == 2
    # Irregular iterations of another cause are quiet too
    said = lived([late(1)] * 3 + [late(2)] * 10)
    assert {(v.verdict_id, v.state) for v in said} >= {("j:1:0:0", "closed"), ("j:1:3:0", "open")}
    # Being seen again begins the quiet anew
    said = lived([late(1)] * 3 + [None] * 9 + [late(1)] + [None] * 9)
    assert [v.event for v in said] == ["opened"]
    # A cause that comes back after closing is a new verdict
    said = lived([late(1)] * 3 + [None] * 10 + [late(1)] * 3)
    assert [v.verdict_id for v in said] == ["j:1:0:0", "j:1:0:0", "j:1:13:0"]
    # Two causes that begin together have two ids
    said = lived([{work(1): 50.0, PAIR: 40.0}] * 4)
    assert {v.verdict_id: v.kind for v in said if v.event == "opened"} == {
        "j:1:0:0": "slow_rank",
        "j:1:0:1": "slow_link",
    }


def test_a_verdict_on_a_switch_goes_on_where_the_path_passes_another_of_its_groups() -> None:
    topology = Topology(
        8,
        {rank: Place(f"h{rank}", 0, "eth0", f"leaf-{rank // 4}") for rank in range(8)},
        {code: (code, 4 + code) for code in range(4)},
        ("a", "b", "c", "d"),
    )
    groups = [Lane("collective", code) for code in range(4)]

    def slow(number: int, of_path: Lane) -> Observation:
        one = observation(number, {of_path: 80.0})
        pairs = {Lane("pair", 0, 1): 80.0, Lane("pair", 2, 3): 80.0, Lane("pair", 5, 6): 0.0, Lane("pair", 7, 6): 0.0}
        lanes = {lane: LaneExcess(ms * MS, 10 * MS, 1000.0, 1e6)
                 for lane, ms in (dict.fromkeys(groups, 80.0) | pairs).items()}  # fmt: skip
        return replace(one, attribution=replace(present(one.attribution), lanes=lanes))

    tracker = VerdictTracker("j", 1)
    path = [groups[0]] * 6 + [groups[1], groups[2], groups[3]] * 8
    said = [one for n, lane in enumerate(path) for one in tracker.observe(slow(n, lane), topology)[0]]
    said += tracker.close("ended", topology)
    assert [(one.suspects[0].device, one.iterations) for one in said if one.event == "closed"] == [
        ("switch", (0, 30))
    ]
    assert said[-1].lost_s == pytest.approx(30 * 0.08)


def test_a_device_that_is_well_again_takes_over_no_lane_that_another_one_slows() -> None:
    def lanes(*slow: Lane) -> dict[Lane, LaneExcess]:
        ways = [Lane("pair", a, b) for a in range(4) for b in range(4) if a != b]
        return {one: LaneExcess(80 * MS * (one in slow), 10 * MS, 1000.0, 1e6) for one in [*ways, world]}

    def step(number: int, on_path: Lane, *slow: Lane) -> Observation:
        one = observation(number, {on_path: 80.0})
        return replace(one, attribution=replace(present(one.attribution), lanes=lanes(on_path, *slow)))

    world, tracker = Lane("collective", 0), VerdictTracker("j", 1)
    of_1, of_3 = ([Lane("pair", rank, other) for other in range(4) if other != rank] for rank in (1, 3))
    steps = [step(n, of_1[n % 3], *of_1) for n in range(9)] + [step(n, world, *of_3) for n in range(9, 30)]
    said = [one for o in steps for one in tracker.observe(o, TOPOLOGY)[0]]
    assert [(v.suspects[0].ranks, v.iterations, v.close_reason) for v in said if v.event == "closed"] == [
        ((1,), (0, 9), "recovered")
    ]


@pytest.mark.parametrize(("first", "second"), [(6, 1), (1, 6)])
def test_of_two_slow_nics_each_has_its_verdict_whatever_their_numbers(first: int, second: int) -> None:
    """A ring of pairs, and a group of all; the second NIC is twice as slow, and slow from iteration 10 on."""
    ranks = range(8)
    topology = Topology(8, {rank: Place(f"h{rank}", 0, "eth0") for rank in ranks}, {0: tuple(ranks)}, ("dp0", "pp0"))
    ring, world = [Lane("pair", rank, (rank + 1) % 8) for rank in ranks], Lane("collective", 0)

    def step(number: int) -> Observation:
        cost_ms = {first: 50.0} | ({second: 100.0} if number >= 10 else {})
        slow = {lane: max(cost_ms.get(rank, 0.0) for rank in (lane.first, lane.second)) for lane in ring}
        slow[world] = max(cost_ms.values())
        one = observation(number, {lane: ms for lane, ms in slow.items() if ms})
        lanes = {lane: LaneExcess(ms * MS, 10 * MS, 1000.0, 1e6) for lane, ms in slow.items()}
        return replace(one, attribution=replace(present(one.attribution), lanes=lanes))

    tracker = VerdictTracker("j", 1)
    said = [one for n in range(30) for one in tracker.observe(step(n), topology)[0]]
    accused = {one.verdict_id: set[tuple[str, tuple[int, ...]]]() for one in said}
    for one in said:
        accused[one.verdict_id].add((one.suspects[0].device, one.suspects[0].ranks))
    assert list(accused.values()) == [{("nic", (first,))}, {("nic", (second,))}]


def test_what_revisions_hold() -> None:
    # No more is lost than the iteration took longer: two pieces of a path may overlap what was hidden before: the
    # excess of the iteration bounds the loss.
    one = observation(0, late(1))
    bounded = [Observation(n, 110 * MS, 100 * MS, n, observation(n, late(1)).attribution) for n in range(3)]
    tracker = VerdictTracker("j", 1)
    said = [v for o in bounded for v in tracker.observe(o, TOPOLOGY)[0]]
    assert one.attribution is not None
    assert said[0].lost_s == pytest.approx(0.03)
    # The end of the job closes what is open with its reason
    tracker = VerdictTracker("j", 1)
    lived([late(1)] * 3, tracker)
    (closed,) = tracker.close("restarted", TOPOLOGY)
    assert (closed.state, closed.close_reason, closed.revision) == ("closed", "restarted", 2)
    assert tracker.close("restarted", TOPOLOGY) == []
    assert not tracker.has_open
    # The iterations in which a cause was seen are named
    tracker = VerdictTracker("j", 1)
    named = [
        tracker.observe(observation(n, step), TOPOLOGY)[1] for n, step in enumerate([late(1)] * 4 + [None, late(2)])
    ]
    assert named == [(), (), ("j:1:0:0",), ("j:1:0:0",), (), ()]
    # A verdict that finds a better suspect says changed: first one pair seems slow; then all that rank 1 sends is.
    slow = {Lane("pair", 1, other): 50.0 for other in (0, 2, 3)}
    steps: list[Step] = [{PAIR: 50.0}] * 4 + [slow] * 20
    said = lived(steps)
    assert said[0].kind == "slow_link"
    changed = [v for v in said if v.event == "changed"]
    assert [(v.kind, v.suspects[0].ranks) for v in changed][-1:] == [("slow_nic", (1,))]


def test_an_iteration_without_excess_on_its_path_is_no_error() -> None:
    assert lived([{work(1): -5.0}] * 10) == []


# --- what comes back without the suspect ----------------------------------------------------------------------------

ALONE, BESIDE_A_PAUSE = Job({0: 30}), Job({0: 30, 2: 37})
"""Without slow rank 0 all comes back; and hardly anything, where another rank pauses as well."""


def run_again(tracker: VerdictTracker, number: int, job: Job, late_ms: Mapping[int, float]) -> list[Verdict]:
    """Judge an iteration of which the path saw rank 0 alone, and that can be run again."""
    path, late_ns = {work(0): 30.0 * MS}, {rank: ms * MS for rank, ms in late_ms.items()}
    attribution = Attribution(number, path, {work(0): Piece(work(0), 0, 0, 0, 40.0 * MS, 10.0 * MS)}, {}, late_ns)
    one = replace(job.observation, iteration=number, attribution=attribution)
    return tracker.observe(one, TOPOLOGY, what_if=job.what_if)[0]


def accused(*jobs: Job, late_ms: Sequence[Mapping[int, float]] = ()) -> list[int]:
    """Iterations in which verdicts open; `late_ms`: by how much the ranks of each work longer, on the path or not."""
    tracker = VerdictTracker("j", 1)
    late = late_ms or [{}] * len(jobs)
    said = [run_again(tracker, number, *one) for number, one in enumerate(zip(jobs, late, strict=True))]
    return [number for number, some in enumerate(said) if any(one.event == "opened" for one in some)]


def test_what_comes_back_decides() -> None:
    # One iteration in which another rank pauses as well does not keep a verdict from opening
    assert accused(ALONE, ALONE, ALONE) == [2]
    assert accused(ALONE, ALONE, BESIDE_A_PAUSE) == [2]
    assert accused(ALONE, BESIDE_A_PAUSE, ALONE) == [2]
    # A device without which typically nothing comes back is not accused
    assert accused(*[BESIDE_A_PAUSE] * 8) == []
    assert accused(BESIDE_A_PAUSE, BESIDE_A_PAUSE, BESIDE_A_PAUSE, ALONE) == []
    # Unless it is late with another one that is, over all of them, at least half as late: of these each costs time
    both, paused = {0: 30.0, 1: 0.0, 2: 22.0}, {0: 30.0, 1: 0.0, 2: 14.0}
    assert accused(*[Job({0: 30, 2: 34})] * 6, late_ms=[both] * 6) == [2]
    assert accused(*[Job({0: 30, 2: 34})] * 6, late_ms=[paused] * 6) == []


@pytest.mark.parametrize(("beside_ms", "is_accused"), [(25, False), (22, True)])
def test_half_of_what_a_device_is_said_to_have_cost_must_come_back(beside_ms: int, is_accused: bool) -> None:
    """Rank 0 works 30 ms longer, of which 14 or 17 ms come back without it, as rank 2 is late as well."""
    assert bool(accused(*[Job({0: 30, 2: beside_ms})] * 4)) == is_accused


def test_what_came_back_is_remembered() -> None:
    # A device is accused once more comes back in most of the newest iterations
    assert accused(*[BESIDE_A_PAUSE] * 3, ALONE, ALONE, ALONE) == [4]
    # A restored tracker knows what came back before
    tracker = VerdictTracker("j", 1)
    assert not [one for n in range(3) for one in run_again(tracker, n, BESIDE_A_PAUSE, {})]
    twin = VerdictTracker.from_state(stored(tracker.state()))
    assert encode_state(twin.state(), 1) == encode_state(tracker.state(), 1)
    assert run_again(twin, 3, ALONE, {}) == []
    assert [one.event for one in run_again(twin, 4, ALONE, {})] == ["opened"]


STEPS = st.lists(
    st.sampled_from(
        [None, None, late(1), late(2), {PAIR: 40.0}, {work(1): 30.0, PAIR: 30.0}, {Lane("collective", 0): 40.0}]
    ),
    max_size=40,
)


@given(steps=STEPS, cut=st.integers(0, 40))
def test_a_restored_tracker_says_the_same(steps: list[Step], cut: int) -> None:
    whole = VerdictTracker("j", 1)
    expected = lived(steps, whole) + whole.close("finished", TOPOLOGY)
    part = VerdictTracker("j", 1)
    said = lived(steps[:cut], part)
    twin = VerdictTracker.from_state(stored(part.state()))
    assert (twin.has_open, twin.has_standing) == (part.has_open, part.has_standing)
    said += lived(steps[cut:], twin, first=len(steps[:cut]))
    assert said + twin.close("finished", TOPOLOGY) == expected


@given(steps=STEPS)
@example(steps=[INTO_3] * 3)  # in a row
@example(steps=[late(rank) for rank in (0, 2, 1, 3, 0, 2)])  # uneven data
@example(steps=[late(2), *[None] * 8, late(1), late(1), late(1)])  # rivals
def test_numbers_of_iterations_are_names_and_count_nothing(steps: list[Step]) -> None:
    """A job of which every tenth iteration is profiled."""

    def told(every: int) -> list[tuple[object, ...]]:
        tracker = VerdictTracker("j", 1)
        said = lived(steps, tracker, every=every) + tracker.close("finished", TOPOLOGY)
        return [
            (v.event, v.kind, v.suspects, v.iterations[0] // every, (v.iterations[1] - 1) // every,
             v.severity, v.delta, v.lost_s, v.lasted_s)
            for v in said
        ]  # fmt: skip

    assert told(10) == told(1)


@given(steps=STEPS)
def test_each_life_is_whole(steps: list[Step]) -> None:
    """Opened once, closed once, revisions without holes, loss and range that only grow."""
    tracker = VerdictTracker("j", 1)
    said = lived(steps, tracker) + tracker.close("finished", TOPOLOGY)
    lives: dict[str, list[Verdict]] = {}
    for verdict in said:
        lives.setdefault(verdict.verdict_id, []).append(verdict)
    for life in lives.values():
        assert [v.revision for v in life] == list(range(1, len(life) + 1))
        assert [v.event for v in life].count("opened") == [v.event for v in life].count("closed") == 1
        assert (life[0].event, life[-1].event, life[-1].state) == ("opened", "closed", "closed")
        assert len({v.iterations[0] for v in life}) == 1
        assert [v.lost_s for v in life] == sorted(v.lost_s for v in life)
        assert [v.iterations[1] for v in life] == sorted(v.iterations[1] for v in life)
        assert all(v.iterations[1] > v.iterations[0] for v in life)
        assert all(0 <= s.probability <= 1 for v in life for s in v.suspects)


def test_verdicts_on_nobody() -> None:
    # A verdict that accuses nobody is open and has blamed nobody
    tracker = VerdictTracker("j", 1)
    lived([late(rank % 4) for rank in range(6)], tracker)
    assert (tracker.has_open, tracker.has_blamed) == (True, False)
    lived([late(1, 90.0)] * 6, tracker, first=6)
    assert (tracker.has_open, tracker.has_blamed) == (True, True)
    # Uneven data are told in the iteration that shows them and once: what follows in the same window, other causes
    # among it, is no reason to tell the same iterations again.
    turns = [late(rank) for rank in (0, 1, 2, 3, 0, 2)]
    for after in ([None] * 10 + [late(1)], [None] * 60 + [{EVERYBODY: 50.0}]):
        said = lived([*turns, *after])
        assert [one.event for one in said if one.kind == "imbalance"] == ["opened", "closed"]
    again = VerdictTracker("j", 1)
    lived([*turns, *[None] * 10], again)
    restored = VerdictTracker.from_state(stored(again.state()))
    assert lived([late(1)], restored, first=16) == []


@pytest.mark.parametrize("every", [2, 4])
def test_iterations_that_cannot_tell_of_a_standing_fault_neither_extend_nor_close_it(every: int) -> None:
    tracker = VerdictTracker("j", 1)
    history: History = [(n, {1: 50 * MS}) for n in range(5)]
    cause = Cause(
        "slow_rank", ((Device("gpu", (1,)), 0.9),), frozenset([work(1)]), None, dict.fromkeys(range(5), 50 * MS)
    )
    tracker.review_standing([cause], [observation(n, late(1)) for n in range(5)], history, TOPOLOGY)
    said = []
    for number in range(5, 5 + every * 10):
        late_ns = {1: 0.0 if number % every == 0 else math.nan}
        said += tracker.observe(observation(number), TOPOLOGY, late_ns)[0]
    assert [(one.event, one.iterations) for one in said] == [("closed", (0, 5))]


@pytest.mark.parametrize(("late_ms", "past"), [([50.0, math.nan], 7), ([0.0, math.nan], 5), ([math.nan] * 5, 5)])
def test_a_job_that_ends_while_a_standing_fault_could_not_be_told_had_it_to_the_end(
    late_ms: list[float], past: int
) -> None:
    """Unless it was gone before, or its ranks sent no more rows."""
    tracker = VerdictTracker("j", 1)
    history: History = [(n, {1: 50 * MS}) for n in range(5)]
    suspects = ((Device("gpu", (1,)), 0.9),)
    cause = Cause("slow_rank", suspects, frozenset([work(1)]), None, dict.fromkeys(range(5), 50 * MS))
    tracker.review_standing([cause], [observation(n, late(1)) for n in range(5)], history, TOPOLOGY)
    for number, late_ms_now in enumerate(late_ms, start=5):
        tracker.observe(observation(number), TOPOLOGY, {1: late_ms_now * MS})
    (closed,) = tracker.close("finished", TOPOLOGY)
    assert (closed.iterations, closed.lost_s) == ((0, past), pytest.approx(0.05 * past))


def test_a_standing_fault_of_a_rank_that_sends_no_more_rows_is_over_once_a_review_does_not_find_it() -> None:
    tracker = VerdictTracker("j", 1)
    cause = Cause(
        "slow_rank", ((Device("gpu", (1,)), 0.9),), frozenset([work(1)]), None, dict.fromkeys(range(5), 50 * MS)
    )
    reviewed = [observation(n, late(1)) for n in range(5)]
    tracker.review_standing([cause], reviewed, [(n, {1: 50 * MS}) for n in range(5)], TOPOLOGY)
    unknown, count = math.nan, IRREGULAR.shift_iterations
    said = [
        one
        for late_ns in [unknown] * (count - 1) + [50 * MS] + [unknown] * (count - 1)
        for one in tracker.observe(observation(5), TOPOLOGY, {1: late_ns})[0]
    ]
    # It was there before and after the four that could not tell: so it cost as much in them.
    assert [(one.event, one.lost_s) for one in said] == [("continued", pytest.approx(0.5))]
    assert tracker.review_standing([], reviewed, [], TOPOLOGY) == []
    tracker.observe(observation(6), TOPOLOGY, {1: unknown})
    assert tracker.review_standing([cause], reviewed, [], TOPOLOGY) == []
    (closed,) = VerdictTracker.from_state(stored(tracker.state())).review_standing([], reviewed, [], TOPOLOGY)
    assert (closed.event, closed.iterations, closed.close_reason) == ("closed", (0, 6), "stopped")


def test_a_cause_that_becomes_known_is_told_at_once_and_once() -> None:
    """Not with the next doubling: those who were alerted would test the GPU meanwhile."""
    tracker, told = VerdictTracker("j", 1), []
    for number in range(20):
        one, loads_ms = observation(number, late(1)), 50.0 if number >= 4 else 20.0
        attribution = replace(present(one.attribution), work_excess_ns=dict.fromkeys(range(4), 0.0) | {1: 50 * MS})
        pauses = (ExcessPause(1, PAUSES.index("data_loader"), loads_ms * MS),)
        told += tracker.observe(replace(one, attribution=attribution, pauses=pauses), TOPOLOGY)[0]
        tracker = VerdictTracker.from_state(stored(tracker.state()))
    assert [(one.iterations[1], one.cause) for one in told if one.event == "changed"] == [(12, "data_loader")]
    assert {one.cause for one in told if one.iterations[1] < 12} == {None}


def test_what_a_device_reports_again_and_again_is_news_once() -> None:
    tracker = VerdictTracker("j", 1)
    lived([late(1)] * 3, tracker)
    two_hosts = Topology(4, {rank: Place(f"h{rank // 2}") for rank in range(4)}, {})

    def changes(*events: DeviceEvent) -> int:
        found = 0
        for _ in range(5):
            tracker.note_events(events, two_hosts)
            found += [one.event for one in tracker.observe(observation(9, late(1)), TOPOLOGY)[0]].count("changed")
        return found

    assert changes(DeviceEvent(1, 1, "link_errors", device="eth0", code=7)) == 1
    assert changes(DeviceEvent(1, 1, "link_errors", device="eth0", code=8)) == 0
    assert changes(DeviceEvent(1, 1, "xid", device="gpu0", code=79)) == 1
    assert changes(DeviceEvent(1, 1, "xid", device="gpu0", code=63)) == 1  # of another class
    assert changes(DeviceEvent(1, 0, "xid", device="gpu0", code=79)) == 0  # of another rank
    assert changes(DeviceEvent(1, 0, "out_of_memory")) == 1  # of its host
    assert changes(DeviceEvent(1, 2, "out_of_memory")) == 0


@pytest.mark.parametrize(("silent", "reasons"), [((), ["recovered"]), ((1,), ["stopped"])])
def test_a_rank_whose_rows_are_missing_has_not_recovered(silent: tuple[int, ...], reasons: list[str]) -> None:
    """Its source died, and the others still wait: that is no quiet iteration. Where none waits it may have left."""
    tracker = VerdictTracker("j", 1)
    lived([late(1)] * 3, tracker)
    waiting = [observation(number, {EVERYBODY: 50.0}) for number in range(3, 23)]
    said = [one for o in waiting for one in tracker.observe(o, TOPOLOGY, silent=silent)[0]]
    assert [one.close_reason for one in said] == ([] if silent else reasons)
    tracker = VerdictTracker.from_state(stored(tracker.state()))
    regular = [observation(number) for number in range(23, 43)]
    said += [one for o in regular for one in tracker.observe(o, TOPOLOGY, silent=silent)[0]]
    assert [one.close_reason for one in said] == reasons


def test_a_standing_fault_that_a_review_does_not_find_again_counts_up_to_the_last_that_did() -> None:
    """What a review alone can see stands until the next one: what was counted since is taken back at its end."""
    tracker = VerdictTracker("j", 1)
    lanes, explained = frozenset([work(0), work(1)]), dict.fromkeys(range(5), 20 * MS)
    stage = Cause("slow_stage", ((Device("stage", (0, 1)), 0.9),), lanes, None, explained)
    reviewed = [observation(n, late(1)) for n in range(5)]
    tracker.review_standing([stage], reviewed, [(n, {}) for n in range(5)], TOPOLOGY)
    for number in range(5, 10):
        tracker.observe(observation(number), TOPOLOGY)
    tracker.review_standing([stage], reviewed, [], TOPOLOGY)
    for number in range(10, 20):
        tracker.observe(observation(number), TOPOLOGY)
    (closed,) = VerdictTracker.from_state(stored(tracker.state())).review_standing([], [], [], TOPOLOGY)
    assert (closed.event, closed.iterations, closed.time_ns) == ("closed", (0, 10), observation(9).time_ns)
    assert closed.lost_s == pytest.approx(10 * 0.02)
    assert closed.lasted_s == pytest.approx(
        (5 * observation(0, late(1)).elapsed_ns + 5 * observation(5).elapsed_ns) / 1e9
    )
