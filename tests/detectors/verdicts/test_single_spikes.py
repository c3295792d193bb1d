"""When a single iteration accuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from irregulars.detectors.blame.causes import find_causes
from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.irregular.late_rank import Latest
from irregulars.detectors.irregular.thresholds import IRREGULAR
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Place, Topology
from irregulars.detectors.verdicts.single_spikes import SpikeWatch, clear_cause
from irregulars.detectors.verdicts.tracker import VerdictTracker
from tests.detectors.observed_iterations import MS, PAIR, TOPOLOGY, late, observation, work
from tests.stored_states import stored

LATE_SIGMAS = IRREGULAR.late_sigmas
PAUSE_MS = 150.0  # more than the usual iteration of 100 ms


def spike(number: int, rank: int = 1, sigmas: float = 9.0) -> Observation:
    return replace(observation(number, late(rank, PAUSE_MS)), sigmas=sigmas, latest=Latest(rank, 50 * MS, 20.0))


def test_a_rank_that_is_late_once_is_the_cause_if_it_stands_out_of_the_noise() -> None:
    cause = clear_cause(spike(7), TOPOLOGY)
    assert cause is not None
    assert (cause.kind, cause.suspects[0][0].ranks, cause.explained_ns) == ("slow_rank", (1,), {7: PAUSE_MS * MS})
    assert clear_cause(spike(7, sigmas=7.2), TOPOLOGY) is None


def test_the_rank_must_stand_out_of_how_late_the_latest_ranks_are() -> None:
    def one(latest: Latest | None) -> Observation:
        return replace(spike(7), latest=latest)

    assert clear_cause(one(Latest(rank=2, over_ns=50 * MS, sigmas=20.0)), TOPOLOGY) is None
    assert clear_cause(one(Latest(rank=1, over_ns=50 * MS, sigmas=0.9 * LATE_SIGMAS)), TOPOLOGY) is None
    assert clear_cause(one(None), TOPOLOGY) is None


@pytest.mark.parametrize(("share", "is_clear"), [(0.9, False), (1.1, True)])
def test_what_a_single_rank_costs_once_must_be_more_than_a_pause(share: float, is_clear: bool) -> None:
    one = observation(7, late(1, 100 * share))
    one = replace(one, sigmas=9.0, latest=Latest(1, 50 * MS, 20.0))
    assert (clear_cause(one, TOPOLOGY) is not None) == is_clear


def test_causes_that_are_no_spike() -> None:
    # Rank 0 saves and logs for all and is not accused of being late once
    assert clear_cause(spike(7, rank=0), TOPOLOGY) is None
    besides = replace(observation(7, {work(0): 50.0, work(1): 49.0}), sigmas=9.0)
    assert clear_cause(besides, TOPOLOGY) is None
    latest = Latest(1, 60 * MS, 20.0)
    less = replace(observation(7, {work(0): 60.0, work(1): 160.0}), sigmas=9.0, latest=latest)
    cause = clear_cause(less, TOPOLOGY)
    assert cause is not None
    assert cause.suspects[0][0].ranks == (1,)
    # A regular iteration has no cause
    assert clear_cause(replace(observation(7), sigmas=9.0), TOPOLOGY) is None
    # An iteration that cost nothing accuses nobody
    longer = spike(7)
    assert clear_cause(longer, TOPOLOGY) is not None
    assert clear_cause(replace(longer, reference_ns=longer.elapsed_ns + MS), TOPOLOGY) is None  # after a warm-up
    # One transfer that hung is no devices fault
    assert clear_cause(replace(observation(7, {PAIR: 50.0}), sigmas=9.0), TOPOLOGY) is None
    # A cause that explains less than half is not clear
    shared = {work(rank): 25.0 for rank in (1, 2, 3)}
    assert clear_cause(replace(observation(7, shared), sigmas=9.0), TOPOLOGY) is None
    # Of a rank that lost rows it may be the loss that shows
    one = spike(7)
    assert one.attribution is not None
    holed = replace(one, attribution=replace(one.attribution, incomplete=frozenset({1})))
    assert clear_cause(holed, TOPOLOGY) is None


@pytest.mark.parametrize(("lost", "is_clear"), [((), True), ((2,), True), ((2, 3), False), ((2, 3, 4, 5), False)])
def test_a_host_is_late_if_a_majority_of_its_ranks_that_logged_all_are(lost: tuple[int, ...], is_clear: bool) -> None:
    ranks = (2, 3, 4, 5)
    places = {rank: Place("node-1" if rank in ranks else f"other-{rank}", rank) for rank in range(12)}
    topology = Topology(12, places, {0: tuple(range(12))})
    one = spike(7, rank=2)
    assert one.attribution is not None
    work_excess_ns = {rank: 50.0 * MS if rank in ranks else 0.0 for rank in range(12)}
    attribution = replace(one.attribution, work_excess_ns=work_excess_ns, incomplete=frozenset(lost))
    cause = clear_cause(replace(one, attribution=attribution), topology)
    assert (cause is not None) == is_clear
    if cause is not None:
        assert cause.suspects[0][0] == ("host", ranks)


def test_spikes_are_told_when_they_are_known() -> None:
    # A spike is due when it is known that it was one
    watch = SpikeWatch()
    for number in (3, 4):
        watch.add(spike(number), TOPOLOGY)
    assert list(watch.take_due(7)) == []
    assert [one.iteration for one in watch.take_due(8)] == [3]
    assert [one.iteration for one in watch.take_due(None)] == [4]
    # Those that show a cause are told from others
    watch = SpikeWatch()
    for number, rank in ((3, 1), (4, 2), (5, 1)):
        watch.add(spike(number, rank), TOPOLOGY)
    (cause,) = find_causes([spike(9).attribution], TOPOLOGY)  # type: ignore[list-item]
    assert [one.iteration for one in watch.showing(cause)] == [3, 5]
    # A snapshot forgets no spike
    watch = SpikeWatch()
    for number in range(3):
        watch.add(spike(number), TOPOLOGY)
    twin = SpikeWatch(stored(watch.state(), tuple[Observation, ...]))
    assert list(twin.take_due(None)) == list(watch.take_due(None))
    # A spike beside pauses of other ranks accuses nobody
    tracker = VerdictTracker("j", 1)
    steps = {2: spike(2, 3), 20: spike(20, 1)}
    said = [one for n in range(40) for one in tracker.observe(steps.get(n, observation(n)), TOPOLOGY)[0]]
    assert [one.iterations for one in said if one.event == "opened"] == [(2, 3)]


@pytest.mark.parametrize("sigmas", [9.0, 1.0])
def test_a_clear_spike_opens_a_verdict_some_iterations_later(sigmas: float) -> None:
    tracker = VerdictTracker("j", 1)
    steps = [spike(n, sigmas=sigmas) if n == 2 else observation(n) for n in range(10)]
    said = {one.iteration: tracker.observe(one, TOPOLOGY)[0] for one in steps}
    opened = {number: verdicts for number, verdicts in said.items() if verdicts}
    assert opened.keys() == ({7} if sigmas > 8 else set())
    for (verdict,) in opened.values():
        assert (verdict.verdict_id, verdict.kind, verdict.iterations) == ("j:1:2:0", "slow_rank", (2, 3))


# --- on either side of each threshold -------------------------------------------------------------------------------


def spike_of(path_ms: dict[Lane, float], sigmas: float = 9.0, transfers: float = 4.0) -> Observation:
    """An iteration of 100 ms and what its path lost; of slow pairs the excess is spread over so many transfers."""
    one = replace(observation(7, path_ms), sigmas=sigmas, latest=Latest(1, 50 * MS, 20.0))
    assert one.attribution is not None
    lanes = {
        lane: excess._replace(slow_transfers=transfers, transfers=8.0)
        for lane, excess in one.attribution.lanes.items()
    }
    return replace(one, attribution=replace(one.attribution, lanes=lanes))


@pytest.mark.parametrize(("sigmas", "is_clear"), [(7.0, False), (9.0, True)])
def test_a_spike_stands_eight_deviations_out(sigmas: float, is_clear: bool) -> None:
    assert (clear_cause(spike_of({PAIR: 50.0}, sigmas), TOPOLOGY) is not None) == is_clear


@pytest.mark.parametrize(("transfers", "is_clear"), [(2.7, False), (3.3, True)])
def test_three_transfers_were_slow(transfers: float, is_clear: bool) -> None:
    assert (clear_cause(spike_of({PAIR: 50.0}, transfers=transfers), TOPOLOGY) is not None) == is_clear


@pytest.mark.parametrize(("own_ms", "is_clear"), [(46.0, False), (54.0, True)])
def test_one_cause_explains_half(own_ms: float, is_clear: bool) -> None:
    rest = (100.0 - own_ms) / 2
    assert (clear_cause(spike_of({PAIR: own_ms, work(2): rest, work(3): rest}), TOPOLOGY) is not None) == is_clear


@pytest.mark.parametrize(("cost_ms", "is_clear"), [(9.0, False), (11.0, True)])
def test_slow_transfers_cost_a_tenth_of_an_iteration(cost_ms: float, is_clear: bool) -> None:
    assert (clear_cause(spike_of({PAIR: cost_ms}), TOPOLOGY) is not None) == is_clear
