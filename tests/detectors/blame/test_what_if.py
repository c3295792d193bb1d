"""What comes back if a device had been as usual, in jobs of three ranks."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irregulars.detectors.blame.causes import Cause
from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.blame.what_if import Recoveries, Recovery, WhatIf, recovered_ratio
from irregulars.detectors.job.lanes import Lane
from irregulars.detectors.job.topology import Device, Place, Topology
from irregulars.detectors.path.critical_path import Attribution, attribute
from irregulars.detectors.path.operator_graph import build_graph
from irregulars.detectors.path.usual_by_past import Reference, learn_reference
from tests.detectors.operator_graphs import QUICK, RING, SLOW, columns_of, graph_of, ring_rows, row
from tests.stored_states import stored

MS = 1_000_000
REGULAR = 6
WORLD, WAY = Lane("collective", 0), Lane("pair", 0, 1)
TOPOLOGY = Topology(3, {rank: Place(f"h{rank}", 0, "eth0") for rank in range(3)}, {0: (0, 1, 2), 1: (0, 1)})
Rows = list[dict[str, Any]]


def iteration_rows(number: int, late: Mapping[int, float], way: float, world: float, long: int) -> Rows:
    """Rank 0 sends to 1 and goes on when that is through; then all meet. Times in ms; work: 10, 2 and 10 (`long`)."""
    begin = number * 1000
    sent = begin + 10 + late.get(0, 0)
    posted = begin + 2 + late.get(1, 0)
    through = max(sent, posted) + way
    met = {0: through + 3, 1: through + 5, 2: begin + long + late.get(2, 0)}
    end = max(met.values()) + world
    ends: dict[str, Any] = {"sequence": number, "iteration": number}

    def one(rank: int, start: float, end: float, operator: str = "all_reduce", **more: Any) -> dict[str, Any]:
        return row(rank, round(start * MS), round(end * MS), operator, **ends, **more)

    rows = [one(0, sent, through, "send", group=1, peer=1), one(1, posted, through, "recv", group=1, peer=0)]
    return rows + [one(rank, met[rank], end, group=0) for rank in range(3)]


class Job:
    """Regular iterations, and one more in which ranks are late, or transfers take longer."""

    def __init__(
        self,
        late: Mapping[int, float] | None = None,
        *,
        way: float = 4,
        world: float = 6,
        long: int = 10,
        unread: Collection[int] = (),
        lost: Collection[tuple[int, int]] = (),
        late_entry: int | None = None,
    ) -> None:
        rows = [one for number in range(REGULAR) for one in iteration_rows(number, {}, 4, 6, long)]
        newest = iteration_rows(REGULAR, late or {}, way, world, long)
        newest = [one for one in newest if (one["rank"], one["communicator"]) not in lost]
        entry_ns = {(rank, number): number * 1000 * MS for rank in range(3) for number in range(REGULAR + 1)}
        if late_entry is not None:  # of what is left of its rows, none says when it began
            entry_ns[late_entry, REGULAR] = min(one["start_ns"] for one in newest if one["rank"] == late_entry)
        usual, self.graph = (
            build_graph(columns_of([one for one in some if one["rank"] not in unread]), entry_ns)
            for some in (rows, newest)
        )
        self.reference: Reference = learn_reference(usual)
        usual_ns = (usual.end_ns[usual.iteration == 0]).max()
        took_ns = self.graph.end_ns.max() - REGULAR * 1000 * MS
        self.excess_ms = float(took_ns - usual_ns) / MS
        attribution = attribute(self.graph, REGULAR, self.reference)
        self.observation = Observation(REGULAR, float(took_ns), float(usual_ns), 0, attribution)
        self.what_if = WhatIf(self.graph, self.reference, TOPOLOGY)

    def recovered_ms(self, *causes: Cause) -> float:
        return self.what_if.recovered_ns(causes) / MS

    def ratio(self, cause: Cause, *others: Cause) -> float | None:
        return recovered_ratio(cause, [cause, *others], self.observation, self.what_if)


def rank_cause(*ranks: int) -> Cause:
    device = Device("gpu" if len(ranks) == 1 else "host", ranks)
    return Cause("slow_rank", ((device, 0.9),), frozenset(Lane("work", rank) for rank in ranks), None, {})


def cause_of(kind: str, device: Device | None, *lanes: Lane) -> Cause:
    return Cause(kind, () if device is None else ((device, 0.9),), frozenset(lanes), None, {})


LINK = cause_of("slow_link", Device("link", (0, 1)), WAY)
NIC_OF_0 = cause_of("slow_nic", Device("nic", (0,)), WAY)
NIC_OF_2 = cause_of("slow_nic", Device("nic", (2,)), WORLD)
COMMUNICATION = cause_of("slow_communicator", None, WORLD)


# --- late ranks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rank", "excess_ms"), [(0, 30), (1, 22), (2, 21)])
def test_with_the_late_rank_as_usual_all_comes_back(rank: int, excess_ms: float) -> None:
    job = Job({rank: 30})
    assert job.excess_ms == pytest.approx(excess_ms)
    assert job.recovered_ms(rank_cause(rank)) == pytest.approx(excess_ms)
    assert job.ratio(rank_cause(rank)) == pytest.approx(1)
    for other in {0, 1, 2} - {rank}:
        assert job.recovered_ms(rank_cause(other)) == 0


def test_late_ranks_set_back() -> None:
    # Without a fault nothing comes back
    job = Job()
    assert job.excess_ms == 0
    for cause in (rank_cause(0), rank_cause(2), LINK, NIC_OF_0, NIC_OF_2, COMMUNICATION):
        assert job.recovered_ms(cause) == 0
        assert job.ratio(cause) is None
    # A rank that is as late as another brings back nothing alone
    job = Job({0: 30, 2: 39})
    assert job.excess_ms == 30
    assert job.recovered_ms(rank_cause(0)) == 0
    assert job.recovered_ms(rank_cause(2)) == 0
    assert job.recovered_ms(rank_cause(0), rank_cause(2)) == 30
    # Of two that are as late each has its part among both
    one, two = rank_cause(0), rank_cause(2)
    job = Job({0: 30, 2: 37})
    attribution = Attribution(
        REGULAR, {Lane("work", 0): 30.0 * MS}, {}, {}, {}
    )  # two of three are late: not everybody
    observation = replace(job.observation, attribution=attribution)
    assert (job.recovered_ms(one), job.recovered_ms(two)) == (2, 0)
    assert recovered_ratio(one, [one], observation, job.what_if) == pytest.approx(2 / 30)
    assert recovered_ratio(one, [one, two], observation, job.what_if) == pytest.approx(1)
    # A rank that is late where all wait for another one costs nothing
    job = Job({0: 30, 2: 200})
    assert job.recovered_ms(rank_cause(0)) == 0
    assert job.ratio(rank_cause(0), rank_cause(2)) is None
    assert job.ratio(rank_cause(2), rank_cause(0)) is not None
    # A hosts ranks are set back together
    assert Job({0: 30, 2: 39}).recovered_ms(rank_cause(0, 2)) == 30


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(late=st.dictionaries(st.integers(0, 2), st.integers(1, 300), max_size=3), way=st.integers(4, 100))
def test_more_devices_as_usual_bring_back_no_less_and_all_of_them_everything(late: dict[int, int], way: int) -> None:
    job = Job(late, way=way)
    alone = [job.recovered_ms(one) for one in (rank_cause(0), rank_cause(1), rank_cause(2), LINK)]
    together = job.recovered_ms(rank_cause(0), rank_cause(1), rank_cause(2), LINK)
    assert all(-1e-6 <= one <= together + 1e-6 for one in alone)
    assert together == pytest.approx(job.excess_ms)


# --- slow transfers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", [LINK, NIC_OF_0])
def test_with_a_slow_transfer_as_usual_all_comes_back(cause: Cause) -> None:
    job = Job(way=44)
    assert job.excess_ms == 40
    assert job.recovered_ms(cause) == pytest.approx(40)
    assert job.ratio(cause) == pytest.approx(1)


def test_a_device_that_does_not_carry_the_transfer_brings_back_nothing() -> None:
    assert Job(way=44).recovered_ms(NIC_OF_2) == 0
    assert Job(way=44).recovered_ms(COMMUNICATION) == 0
    assert Job(world=46).recovered_ms(LINK) == 0


@pytest.mark.parametrize("cause", [NIC_OF_2, NIC_OF_0, COMMUNICATION])
def test_a_slow_collective_comes_back_with_whatever_carries_it(cause: Cause) -> None:
    assert Job(world=46).recovered_ms(cause) == pytest.approx(40)


def test_transfers_set_back() -> None:
    # A transfer that hides behind work brings back nothing
    job = Job(way=44, long=90)
    assert job.excess_ms == 0
    assert job.recovered_ms(LINK) == 0
    assert job.recovered_ms(NIC_OF_0) == 0
    # Of a transfer that hides in part the rest comes back
    job = Job(way=44, long=40)
    assert job.excess_ms == 19
    assert job.recovered_ms(LINK) == pytest.approx(19)
    # What was quicker than usual is not made slower
    assert Job(way=1).recovered_ms(LINK) == 0


def ring_without(cause: Cause, *slow_links: int, size: int = RING) -> float:
    """How much sooner a round in a ring with slow links would have ended without this cause."""
    regular = [one for number in range(REGULAR) for one in ring_rows((), iteration=number, size=size)]
    newest = graph_of(*ring_rows(slow_links, iteration=REGULAR, size=size))
    topology = Topology(size, {rank: Place(f"h{rank}", 0, "eth0") for rank in range(size)}, {})
    return WhatIf(newest, learn_reference(graph_of(*regular)), topology).recovered_ns([cause])


def link_cause(source: int, target: int) -> Cause:
    return cause_of("slow_link", Device("link", (source, target)), Lane("pair", source, target))


@pytest.mark.parametrize("slow", range(RING))
def test_with_the_slow_message_of_two_batches_as_usual_both_batches_are_quick(slow: int) -> None:
    before, end, after = (slow - 1) % RING, (slow + 1) % RING, (slow + 2) % RING
    assert ring_without(link_cause(slow, end), slow) == SLOW - QUICK
    for mate in (link_cause(before, slow), link_cause(end, after)):
        assert ring_without(mate, slow) == 0


def test_a_batch_with_a_second_slow_message_stays_slow() -> None:
    assert ring_without(link_cause(1, 2), 1, 2) == 0
    assert ring_without(cause_of("slow_link", None, WAY), 0, 1, size=2) == 0  # the way back is slow as well
    assert ring_without(link_cause(0, 1), 0, 1, size=2) == SLOW - QUICK
    assert ring_without(cause_of("slow_nic", Device("nic", (2,)), Lane("pair", 1, 2)), 1, 2) == SLOW - QUICK


# --- what nobody read -----------------------------------------------------------------------------------------------


def test_ranks_that_lost_rows_or_were_not_read() -> None:
    # Waiting for a partner that nobody logged is not taken for a slow transfer: rank 1 is late and logs nothing: the
    # send to it looks slow. Rank 2 is late as well.
    job = Job({1: 80, 2: 30}, unread=[1])
    assert job.recovered_ms(rank_cause(2)) == pytest.approx(23)
    # What a cause accuses counts although a partner is not read
    job = Job(way=44, unread=[1])
    assert job.recovered_ms(LINK) == pytest.approx(40)
    assert job.recovered_ms(rank_cause(0)) == 0
    # Where a rank lost the row in which it waited its waiting is not taken for work
    job = Job({0: 30}, lost=[(1, 1)])
    assert job.recovered_ms(rank_cause(0)) == pytest.approx(30)
    # A rank that lost its first rows is in the log from when all had come: it holds up nobody before that
    job = Job({0: 30}, lost=[(1, 1)], late_entry=1)
    assert job.recovered_ms(rank_cause(0)) == pytest.approx(30)
    # The work of an accused rank counts although it lost rows
    job = Job({2: 39}, lost=[(2, 1)])
    assert job.recovered_ms(rank_cause(2)) == Job({2: 39}).recovered_ms(rank_cause(2))
    # A collective without one of its members may be waiting too
    job = Job({1: 80, 0: 30}, unread=[1])
    assert job.recovered_ms(rank_cause(0)) == pytest.approx(30)
    # Of a rank that nobody read nothing is known
    job = Job({0: 30}, unread=[1])
    assert math.isnan(job.recovered_ms(rank_cause(1)))
    assert job.ratio(cause_of("imbalance", Device("gpu", (0,)))) == pytest.approx(1)
    assert job.ratio(cause_of("imbalance", Device("gpu", (1,)))) is None


def test_operators_that_were_never_seen_before_say_nothing() -> None:
    job, other = Job(), Job({0: 30})
    graph = replace(other.graph, communicator=other.graph.communicator + 7)
    assert math.isnan(WhatIf(graph, job.reference, TOPOLOGY).recovered_ns([rank_cause(0)]))


# --- ratios ---------------------------------------------------------------------------------------------------------


def test_no_ratio_is_known() -> None:
    # Without a graph a suspect or an attribution there is no ratio
    job = Job({0: 30})
    cause = rank_cause(0)
    assert recovered_ratio(cause, [cause], job.observation, None) is None
    assert job.ratio(cause_of("slow_rank", None, Lane("work", 0))) is None
    regular = Observation(REGULAR, 100.0 * MS, 100.0 * MS, 0, None)
    assert recovered_ratio(cause, [cause], regular, job.what_if) is None
    # An iteration that took no longer has no ratio
    job = Job({0: 30})
    as_usual = Observation(REGULAR, 1.0, 1.0, 0, job.observation.attribution)
    assert recovered_ratio(rank_cause(0), [rank_cause(0)], as_usual, job.what_if) is None


@pytest.mark.parametrize(("explained_ms", "ratio"), [(6.0, 0.8), (15.0, 0.8), (20.0, 0.6)])
def test_what_comes_back_is_held_against_half_of_the_excess_at_least(explained_ms: float, ratio: float) -> None:
    """12 of 30 ms come back: four fifths of a cause that explains 15 ms or less, three of one that explains 20 ms."""
    job = Job({0: 30, 2: 27})  # rank 2 alone is as late as all but 12 ms of it
    attribution = Attribution(REGULAR, {Lane("work", 0): explained_ms * MS}, {}, {}, {})
    observation = replace(job.observation, attribution=attribution)
    assert job.recovered_ms(rank_cause(0)) == pytest.approx(12)
    assert recovered_ratio(rank_cause(0), [], observation, job.what_if) == pytest.approx(ratio)


# --- several iterations ---------------------------------------------------------------------------------------------


def noted(*ratios: float | None, cause: Cause | None = None) -> Recoveries:
    """What came back of rank 0's lateness in iterations 0, 1 and so on."""
    recoveries = Recoveries()
    for iteration, ratio in enumerate(ratios):
        recoveries.note(iteration, cause or rank_cause(0), ratio)
    return recoveries


def seen_in(cause: Cause, *iterations: int) -> Cause:
    return replace(cause, explained_ns=dict.fromkeys(iterations, 1.0))


def test_recoveries_of_several_iterations() -> None:
    # What typically comes back is the median over the iterations in which a cause was seen
    recoveries = noted(1.0, 0.0, 0.8, 0.9)
    assert recoveries.typical(seen_in(rank_cause(0), 0, 1, 2)) == 0.8
    assert recoveries.typical(seen_in(rank_cause(0), 1)) == 0.0
    assert recoveries.typical(seen_in(rank_cause(0), 7)) is None
    # What came back of one device says nothing of another
    recoveries = noted(1.0)
    for other in (rank_cause(1), rank_cause(0, 1), NIC_OF_0, COMMUNICATION):
        assert recoveries.typical(seen_in(other, 0)) is None
    # What is not known and what accuses nobody is not noted
    assert noted(None).state() == ()
    assert noted(1.0, cause=COMMUNICATION).state() == ()
    # Old iterations are forgotten
    recoveries = noted(*[0.0] * 12, *[1.0] * 12)
    assert recoveries.typical(seen_in(rank_cause(0), *range(24))) == 1.0
    # What came back outlives a restart
    recoveries = noted(1.0, 0.2)
    restored = Recoveries(stored(recoveries.state(), tuple[Recovery, ...]))
    assert restored.state() == recoveries.state()
    assert restored.typical(seen_in(rank_cause(0), 0, 1)) == pytest.approx(0.6)
