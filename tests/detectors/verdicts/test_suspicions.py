"""What made suspect iterations long: who else did, and whether data are uneven."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.blame.work_causes import is_by_chance
from irregulars.detectors.irregular.late_rank import Latest
from irregulars.detectors.job.lanes import EVERYBODY, Lane, LaneExcess
from irregulars.detectors.job.topology import Device, Place, Topology
from irregulars.detectors.path.critical_path import Attribution
from irregulars.detectors.verdicts.single_spikes import SpikeWatch, clear_cause
from irregulars.detectors.verdicts.suspicions import Suspicion, Suspicions
from irregulars.detectors.verdicts.tracker import VerdictTracker
from tests.detectors.observed_iterations import MS, PAIR, TOPOLOGY, late, observation, work
from tests.present import present
from tests.stored_states import stored

RANKS = range(8)
PAIRED = Topology(8, {rank: Place(f"h{rank // 4}", rank % 4, "eth0") for rank in RANKS}, {0: tuple(RANKS)})
"""Two hosts of four ranks."""
STAGED = Topology(
    8, {rank: Place(f"h{rank}", 0, "eth0") for rank in RANKS}, {}, stage_of={rank: rank % 2 for rank in RANKS}
)
"""Even ranks are the first stage, odd ones the second; each has a host for itself."""
ONE_HOST = Topology(4, {rank: Place("h0", rank, "eth0") for rank in range(4)}, {0: (0, 1, 2, 3)})


def lost(number: int, **ms: float) -> Attribution:
    """An iteration whose path lost so many ms to work of ranks (``r1``), everybody (``all``) or the `PAIR`."""
    lanes = {"all": EVERYBODY, "pair": PAIR}
    path = {lanes[name] if name in lanes else work(int(name[1:])): value * MS for name, value in ms.items()}
    return Attribution(number, path, {}, {}, {})


def seen_in(attribution: Attribution, spread_ms: float = 0.0) -> Observation:
    elapsed_ns = 100 * MS + sum(attribution.path_excess_ns.values())
    return Observation(attribution.iteration, elapsed_ns, 100 * MS, 0, attribution, spread_ns=spread_ms * MS)


def noted(*attributions: Attribution, topology: Topology = TOPOLOGY) -> Suspicions:
    suspicions = Suspicions()
    for one in attributions:
        suspicions.note(seen_in(one), topology)
    return suspicions


def late_in_turn(ranks: list[int], *, every: int = 2) -> Suspicions:
    """Suspect iterations, one in so many, each lost to the work of the next of these ranks."""
    return noted(*(lost(every * at, **{f"r{rank}": 50.0}) for at, rank in enumerate(ranks)))


def late_with_stage(ranks: list[int], late_ms: dict[int, float]) -> Suspicions:
    """The same of a job with two stages, in which ranks work so much longer while each of these comes last."""
    late_ns = {rank: ms * MS for rank, ms in late_ms.items()}
    return noted(
        *(replace(lost(2 * at, **{f"r{rank}": 50.0}), work_excess_ns=late_ns | {rank: 50.0 * MS})
          for at, rank in enumerate(ranks)),
        topology=STAGED,
    )  # fmt: skip


# --- note -----------------------------------------------------------------------------------------------------------


def test_suspicions_are_noted() -> None:
    # An iteration is noted with the lanes that it lost most to, those that lost next to nothing left out
    (one,) = noted(lost(3, r1=20.0, pair=30.0, r2=5.0, r3=1.0)).state()
    assert one.losses == ((PAIR, 30 * MS), (work(1), 20 * MS), (work(2), 5 * MS))
    assert (one.iteration, one.lane, one.lost_ns, one.work_ns, one.total_ns) == (3, PAIR, 30 * MS, 26 * MS, 56 * MS)
    # What nobody or everybody lost is not noted
    assert noted(lost(0), lost(1, r1=-3.0), lost(2, all=50.0), lost(3, all=50.0, r1=-1.0)).state() == ()
    # Everybodys part is never the lane and counts in the total
    (one,) = noted(lost(0, all=50.0, r1=20.0)).state()
    assert (one.losses, one.work_ns, one.total_ns) == (((work(1), 20 * MS),), 20 * MS, 70 * MS)
    # Ranks that were quicker take away from what work lost
    (one,) = noted(lost(0, r1=20.0, r2=-15.0, pair=-9.0)).state()
    assert (one.work_ns, one.total_ns) == (5 * MS, 20 * MS)
    # Of lanes that cost the same always the same is noted
    assert noted(lost(0, r1=20.0, r2=20.0)).state() == noted(lost(0, r2=20.0, r1=20.0)).state()
    # Memory is bounded
    suspicions = Suspicions()
    for number in range(10_000):
        suspicions.note(seen_in(lost(number, r1=20.0)), TOPOLOGY)
        assert len(suspicions.state()) <= 100
    assert [number for number, *_ in suspicions.state()] == list(range(10_000 - 100, 10_000))


# --- rivals ---------------------------------------------------------------------------------------------------------


def test_rivals() -> None:
    # Rivals are other lanes that lost as much
    suspicions = noted(
        lost(10, r1=60.0), lost(12, r2=50.0), lost(14, r3=30.0), lost(16, pair=29.0), lost(18, r1=60.0)
    )
    assert suspicions.rivals([work(1)], [10], 60 * MS) == 2
    assert suspicions.rivals([work(1), work(2)], [10], 60 * MS) == 1
    assert suspicions.rivals([work(1)], [10, 12], 60 * MS) == 1
    # What lost little is no rival
    suspicions = noted(lost(10, r1=60.0), lost(12, r2=29.9))
    assert suspicions.rivals([work(1)], [10], 60 * MS) == 0
    assert suspicions.rivals([work(1)], [10], 59 * MS) == 1
    # What a verdict that accuses somebody explains is none
    suspicions = noted(lost(10, r1=60.0), lost(12, r2=60.0), lost(14, r2=60.0))
    suspicions.tell([12])
    assert suspicions.rivals([work(1)], [10], 60 * MS) == 1
    # What lost more is a rival
    assert noted(lost(10, r1=6.0), lost(12, r2=600.0)).rivals([work(1)], [10], 6 * MS) == 1
    # Rivals are looked for around the iterations on both sides
    around = 50
    for number, is_near in ((100 - around, False), (101 - around, True), (119 + around, True), (120 + around, False)):
        found = noted(lost(number, r2=50.0)).rivals([work(1)], [100, 120], 50 * MS)
        assert found == int(is_near), number
    # Nothing noted has no rivals
    assert Suspicions().rivals([work(1)], [10], 50 * MS) == 0


# --- uneven ---------------------------------------------------------------------------------------------------------


def test_ranks_that_come_last_at_random_have_uneven_data() -> None:
    assert list(late_in_turn([0, 2, 1, 3, 0, 2]).uneven(TOPOLOGY)) == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize(("ms", "is_uneven"), [([50.0] * 6, True), ([35.0] * 5 + [900.0], False)])
def test_uneven_data_cost_more_than_twice_the_noise_in_most_iterations(ms: list[float], is_uneven: bool) -> None:
    """Of 20 ms; in each iteration all ranks work 30 ms longer, which says nothing of the data."""
    suspicions = Suspicions()
    for at, (rank, own) in enumerate(zip([0, 2, 1, 3, 0, 2], ms, strict=True)):
        suspicions.note(seen_in(lost(at, all=30.0, **{f"r{rank}": own}), spread_ms=20.0), TOPOLOGY)
    assert bool(suspicions.uneven(TOPOLOGY)) == is_uneven


@pytest.mark.parametrize(("everybody", "is_noise"), [(140.0, False), (160.0, True)])  # a quarter of all that was lost
def test_whoever_is_last_by_noise_where_all_work_longer_has_no_uneven_data(everybody: float, is_noise: bool) -> None:
    late = [lost(2 * at, all=everybody, **{f"r{rank}": 50.0}) for at, rank in enumerate([0, 2, 1, 3, 0, 2])]
    assert bool(noted(*late).uneven(TOPOLOGY)) != is_noise


def test_uneven_data() -> None:
    # Three ranks in turn are enough for uneven data
    assert list(late_in_turn([0, 1, 2, 0, 1, 2]).uneven(TOPOLOGY)) != []
    # Only the newest iterations count
    assert list(late_in_turn([1, 1, 1, 1, 0, 2, 1, 3, 0, 2]).uneven(TOPOLOGY)) == [8, 10, 12, 14, 16, 18]
    assert list(late_in_turn([0, 2, 1, 3, 0, 2, 1, 1, 1, 1]).uneven(TOPOLOGY)) == []
    # Few iterations say nothing of the data
    assert list(late_in_turn([0, 2, 1, 3, 0]).uneven(TOPOLOGY)) == []
    assert list(Suspicions().uneven(TOPOLOGY)) == []


@pytest.mark.parametrize("ranks", [[1] * 6, [1, 1, 2, 1, 1, 3], [1, 2, 1, 2, 1, 2], [0, 1, 2, 3, 1, 1, 1, 1]])
def test_one_or_two_ranks_that_are_late_again_and_again_are_not_uneven_data(ranks: list[int]) -> None:
    assert list(late_in_turn(ranks).uneven(TOPOLOGY)) == []


FOUR_HOSTS = Topology(
    16, {rank: Place(f"h{rank // 4}", rank % 4, "eth0") for rank in range(16)}, {0: tuple(range(16))}
)


@pytest.mark.parametrize(("ranks", "is_uneven"), [([4, 5, 6, 13, 7, 4], False), ([4, 5, 13, 2, 7, 9], True)])
def test_ranks_of_a_slow_host_are_no_uneven_data_though_another_one_pauses(ranks: list[int], is_uneven: bool) -> None:
    assert bool(late_in_turn(ranks).uneven(FOUR_HOSTS)) == is_uneven
    two_log = replace(FOUR_HOSTS, unlogged=frozenset({*range(4), *range(8, 12)}))
    assert late_in_turn([4, 5, 6, 13, 7, 4]).uneven(two_log)  # five of six on one of two hosts is chance


@pytest.mark.parametrize("ranks", [[5, 130, 260, 390, 511, 7], [8, 130, 260, 390, 511, 70]])
def test_of_many_hosts_one_has_some_of_the_late_ranks_by_chance(ranks: list[int]) -> None:
    """That a certain host of 128 has one of six is rare, but some host always has."""
    hosts = {rank: Place(f"h{rank // 4}", rank % 4, "eth0") for rank in range(512)}
    assert late_in_turn(ranks).uneven(Topology(512, hosts, {0: tuple(range(512))}))


def test_of_a_rank_that_nobody_announced_chance_is_known_too() -> None:
    announced = Topology(8, {rank: PAIRED.places[rank] for rank in range(7)}, {})
    assert not is_by_chance(Device("gpu", (7,)), 5, 6, announced)
    assert is_by_chance(Device("gpu", (7,)), 1, 6, announced)
    assert is_by_chance(Device("gpu", (0,)), 5, 6, Topology(0, {}, {}))


def test_what_is_not_uneven_data() -> None:
    # A slow transfer among them is not uneven data
    ranks = [0, 2, 1, 3, 0]
    attributions = [lost(at, **{f"r{rank}": 50.0}) for at, rank in enumerate(ranks)]
    assert list(noted(*attributions, lost(5, pair=50.0)).uneven(TOPOLOGY)) == []
    assert list(noted(*attributions, lost(5, r2=50.0, pair=10.0)).uneven(TOPOLOGY)) == [0, 1, 2, 3, 4, 5]
    # Unless it took less than the work of ranks together, or was one transfer that hung
    assert list(noted(*attributions, lost(5, pair=50.0, r2=30.0, r3=25.0)).uneven(TOPOLOGY)) == [0, 1, 2, 3, 4, 5]
    assert list(noted(*attributions, lost(5, pair=50.0, r2=30.0, r3=15.0)).uneven(TOPOLOGY)) == []
    hung = {PAIR: LaneExcess(500 * MS, 10 * MS, MS, 1e6, slow_transfers=1.0, transfers=4.0)}
    assert (
        list(noted(*attributions, replace(lost(5, pair=35.0, r2=30.0, r3=10.0), lanes=hung)).uneven(TOPOLOGY)) != []
    )
    # An iteration that was long for such a transfer says nothing of their work, and hides nothing
    hanging = replace(lost(5, pair=500.0, r2=30.0), lanes=hung)
    assert list(noted(*attributions, hanging).uneven(TOPOLOGY)) == []
    assert list(noted(*attributions, hanging, lost(6, r2=50.0)).uneven(TOPOLOGY)) == [0, 1, 2, 3, 4, 6]
    # What is far apart is not uneven data
    assert list(late_in_turn([0, 2, 1, 3, 0, 2], every=2).uneven(TOPOLOGY)) != []
    assert list(late_in_turn([0, 2, 1, 3, 0, 2], every=3).uneven(TOPOLOGY)) == []
    # A hosts ranks in turn are not uneven data
    assert list(late_in_turn([0, 1, 2, 3, 0, 1]).uneven(PAIRED)) == []
    assert list(late_in_turn([5, 7, 4, 6, 5, 7]).uneven(PAIRED)) == []
    assert list(late_in_turn([0, 1, 2, 4, 0, 1]).uneven(PAIRED)) != []
    # A slow stages ranks are late together which is not uneven data
    together = dict.fromkeys((0, 2, 4, 6), 45.0)
    assert list(late_with_stage([0, 2, 4, 6, 0, 2], together).uneven(STAGED)) == []
    others = dict.fromkeys((1, 3, 5, 7), 45.0)
    assert list(late_with_stage([1, 3, 5, 7, 1, 3], others).uneven(STAGED)) == []
    # Heavy batches whose path passes one stage alone are uneven data
    assert list(late_with_stage([0, 2, 4, 6, 0, 2], {}).uneven(STAGED)) != []
    assert list(late_with_stage([0, 2, 4, 6, 0, 2], {1: 45.0, 3: 10.0}).uneven(STAGED)) != []
    # A host that is the whole job excuses nobodys data
    assert list(late_in_turn([0, 2, 1, 3, 0, 2]).uneven(ONE_HOST)) != []


def test_ranks_without_a_known_place_may_have_uneven_data() -> None:
    assert list(late_in_turn([0, 2, 1, 3, 0, 2]).uneven(Topology(4, {}, {}))) != []


# --- state ----------------------------------------------------------------------------------------------------------


@st.composite
def any_suspicions(draw: st.DrawFn) -> Suspicions:
    suspicions, number = Suspicions(), 0
    for _ in range(draw(st.integers(0, 30))):
        number += draw(st.integers(1, 40))
        names = st.sampled_from(["r0", "r1", "r2", "r3", "pair", "all"])
        path_ms = draw(st.dictionaries(names, st.floats(-10, 100), max_size=4))
        suspicions.note(seen_in(lost(number, **path_ms)), TOPOLOGY)
    return suspicions


@given(suspicions=any_suspicions(), lane=st.sampled_from([work(0), work(1), PAIR]), number=st.integers(0, 1200))
def test_what_is_restored_says_the_same(suspicions: Suspicions, lane: Lane, number: int) -> None:
    again = Suspicions(stored(suspicions.state(), tuple[Suspicion, ...]))
    assert again.state() == suspicions.state()
    assert again.uneven(TOPOLOGY) == suspicions.uneven(TOPOLOGY)
    assert again.rivals([lane], [number], 20 * MS) == suspicions.rivals([lane], [number], 20 * MS)
    for one in (again, suspicions):
        one.note(seen_in(lost(1300, r1=20.0)), TOPOLOGY)
    assert again.state() == suspicions.state()


@given(suspicions=any_suspicions(), shift=st.integers(0, 10**9))
def test_later_numbers_change_nothing(suspicions: Suspicions, shift: int) -> None:
    state = suspicions.state()
    later = Suspicions(one._replace(iteration=one.iteration + shift, ordinal=one.ordinal + shift) for one in state)
    assert list(later.uneven(TOPOLOGY)) == [number + shift for number in suspicions.uneven(TOPOLOGY)]
    assert later.rivals([PAIR], [100 + shift], 1.0) == suspicions.rivals([PAIR], [100], 1.0)


def test_what_is_asked_of_suspicions() -> None:
    # Transfers that hung are no rivals of work where work alone is asked for
    suspicions = noted(lost(10, r1=60.0), lost(12, pair=90.0), lost(14, r2=70.0))
    assert suspicions.rivals([work(1)], [10], 60 * MS) == 2
    assert suspicions.rivals([work(1)], [10], 60 * MS, kinds=("work",)) == 1
    # What ranks lost in iterations with uneven data is told
    assert set(late_in_turn([0, 2, 1, 3, 0, 2]).uneven(TOPOLOGY).values()) == {50 * MS}
    # One transfer that hung is not noted
    one = lost(0, pair=50.0)
    stray = replace(one, lanes={PAIR: LaneExcess(50 * MS, 10 * MS, MS, 1e6, slow_transfers=1.0, transfers=8.0)})
    spread = replace(one, lanes={PAIR: LaneExcess(50 * MS, 10 * MS, MS, 1e6, slow_transfers=8.0, transfers=8.0)})
    assert (noted(stray).lanes, noted(spread).lanes) == (set(), {PAIR})


PAUSE_MS = 150.0  # more than the usual iteration of 100 ms


def spike(number: int, rank: int = 1, sigmas: float = 9.0) -> Observation:
    return replace(observation(number, late(rank, PAUSE_MS)), sigmas=sigmas, latest=Latest(rank, 50 * MS, 20.0))


def test_a_rank_that_is_late_once_is_the_cause_if_it_stands_out_of_the_noise() -> None:
    cause = present(clear_cause(spike(7), TOPOLOGY))
    assert (cause.kind, cause.suspects[0][0].ranks, cause.explained_ns) == ("slow_rank", (1,), {7: PAUSE_MS * MS})


@pytest.mark.parametrize(("share", "is_clear"), [(0.4, False), (0.6, True)])
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
    cause = present(clear_cause(less, TOPOLOGY))
    assert cause.suspects[0][0].ranks == (1,)
    # A regular iteration has no cause
    assert clear_cause(replace(observation(7), sigmas=9.0), TOPOLOGY) is None
    # An iteration that cost nothing accuses nobody
    longer = spike(7)
    assert clear_cause(longer, TOPOLOGY) is not None
    assert clear_cause(replace(longer, reference_ns=longer.elapsed_ns + MS), TOPOLOGY) is None  # after a warm-up
    # Of a rank that lost rows it may be the loss that shows
    one = spike(7)
    holed = replace(one, attribution=replace(present(one.attribution), incomplete=frozenset({1})))
    assert clear_cause(holed, TOPOLOGY) is None


@pytest.mark.parametrize(("lost", "is_clear"), [((), True), ((2,), True), ((2, 3), False), ((2, 3, 4, 5), False)])
def test_a_host_is_late_if_a_majority_of_its_ranks_that_logged_all_are(lost: tuple[int, ...], is_clear: bool) -> None:
    ranks = (2, 3, 4, 5)
    places = {rank: Place("node-1" if rank in ranks else f"other-{rank}", rank) for rank in range(12)}
    topology = Topology(12, places, {0: tuple(range(12))})
    one = spike(7, rank=2)
    work_excess_ns = {rank: 50.0 * MS if rank in ranks else 0.0 for rank in range(12)}
    attribution = replace(present(one.attribution), work_excess_ns=work_excess_ns, incomplete=frozenset(lost))
    cause = clear_cause(replace(one, attribution=attribution), topology)
    assert (cause is not None) == is_clear


def test_spikes_are_told_when_they_are_known() -> None:
    # A spike is due when it is known that it was one
    watch = SpikeWatch()
    for number in (3, 4):
        watch.add(spike(number), TOPOLOGY)
    assert list(watch.take_due([observation(7)], TOPOLOGY)) == []
    # One that the job stays slower after waits for reviews
    slower = replace(observation(8), elapsed_ns=240 * MS)
    assert list(watch.take_due([slower], TOPOLOGY)) == []
    assert [one.iteration for one in watch.take_due([observation(8)], TOPOLOGY)] == [3]
    assert [one.iteration for one in watch.take_due([replace(slower, iteration=104)], TOPOLOGY)] == [4]
    watch.add(spike(5), TOPOLOGY)
    assert [one.iteration for one in watch.take_due(None, TOPOLOGY)] == [5]
    # Not one that opens nothing, as of iterations that are longer for all, nor one that times of whole ms set apart
    unclear = replace(observation(3, {EVERYBODY: 30.0}), sigmas=50.0)
    rounded = replace(spike(3), sigmas=1e8, reference_ns=99.98 * MS, spread_ns=0.14 * MS)
    for one, newest in ((unclear, slower), (rounded, observation(8))):
        watch.add(one, TOPOLOGY)
        assert list(watch.take_due([newest], TOPOLOGY)) == [one]
    # A snapshot forgets no spike
    watch = SpikeWatch()
    for number in range(3):
        watch.add(spike(number), TOPOLOGY)
    twin = SpikeWatch(stored(watch.state(), tuple[Observation, ...]))
    assert list(twin.take_due(None, TOPOLOGY)) == list(watch.take_due(None, TOPOLOGY))
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


@pytest.mark.parametrize(("lost_ms", "past"), [(3.0, 3), (PAUSE_MS, 5)])
def test_a_spike_goes_on_where_about_as_much_is_lost_again(lost_ms: float, past: int) -> None:
    tracker = VerdictTracker("j", 1)
    steps = {2: spike(2), 4: replace(observation(4, late(1, lost_ms)), is_long=False, is_shifted=True)}
    said = [one for n in range(20) for one in tracker.observe(steps.get(n, observation(n)), TOPOLOGY)[0]]
    assert {one.iterations for one in said} == {(2, past)}


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


@pytest.mark.parametrize(("spike", "is_clear"), [
    pytest.param(spike_of({PAIR: 50.0}, 7.0), False, id="under eight deviations"),
    pytest.param(spike_of({PAIR: 50.0}, 9.0), True, id="eight deviations"),
    pytest.param(spike_of({PAIR: 50.0}, transfers=2.7), False, id="under three transfers"),
    pytest.param(spike_of({PAIR: 50.0}, transfers=3.3), True, id="three transfers"),
    pytest.param(spike_of({PAIR: 46.0, work(2): 27.0, work(3): 27.0}), False, id="under half of it"),
    pytest.param(spike_of({PAIR: 54.0, work(2): 23.0, work(3): 23.0}), True, id="half of it"),
    pytest.param(spike_of({PAIR: 9.0}), False, id="under a tenth of an iteration"),
    pytest.param(spike_of({PAIR: 11.0}), True, id="a tenth of an iteration"),
])  # fmt: skip
def test_how_much_a_clear_spike_must_show(spike: Observation, is_clear: bool) -> None:
    assert (clear_cause(spike, TOPOLOGY) is not None) == is_clear
