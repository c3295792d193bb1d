"""The walk from the symptom to the first cause, on jobs small enough to walk by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.job.lanes import Lane, UsualLane
from irregulars.detectors.path.critical_path import _walk, attribute, path_collectives, slow_collectives
from irregulars.detectors.path.lane_tables import lane_excess, lane_of, lane_table
from irregulars.detectors.path.last_arrivals import Arrivals, find_arrivals
from irregulars.detectors.path.usual_by_past import learn_reference
from irregulars.messages.records import OPERATOR_CODES, SEND, UNKNOWN
from tests.detectors.operator_graphs import QUICK, RING, SLOW, exact_graph, graph_of, ring_rows, row

Rows = list[dict[str, Any]]
US = 1_000


def two_stage_iteration(number: int, origin: int, *, late: dict[int, int] | None = None, **transfer: int) -> Rows:
    """Ranks 0 and 1 meet over tp; 0 sends to 2; all three meet over the world. Work: 10, 12 and 2 µs."""
    late = late or {}
    arrive = {0: origin + 10 * US + late.get(0, 0), 1: origin + 12 * US + late.get(1, 0)}
    tp_end = max(arrive.values()) + transfer.get("tp", 3 * US)
    posted = origin + 2 * US + late.get(2, 0)
    sent = tp_end + US
    pp_end = max(sent, posted) + transfer.get("pp", 4 * US)
    world = {0: pp_end + US, 1: tp_end + US, 2: pp_end + 2 * US}
    end = max(world.values()) + transfer.get("world", 5 * US)
    rows = [row(rank, arrive[rank], tp_end, group=1, sequence=number, iteration=number) for rank in (0, 1)]
    rows += [
        row(0, sent, pp_end, "send", group=2, peer=2, sequence=number, iteration=number),
        row(2, posted, pp_end, "recv", group=2, peer=0, sequence=number, iteration=number),
    ]
    return rows + [row(rank, world[rank], end, group=0, sequence=number, iteration=number) for rank in range(3)]


def job(count: int, **last: Any) -> tuple[Rows, dict[tuple[int, int], int]]:
    """Iterations 0 to count - 1 of which the last is as `last` says, and when each rank entered them."""
    rows, entries = [], {}
    for number in range(count):
        origin = number * 1000 * US
        rows += two_stage_iteration(number, origin, **(last if number == count - 1 else {}))
        entries |= {(rank, number): origin for rank in range(3)}
    return rows, entries


def attributed(**last: Any) -> Any:
    rows, entries = job(6, **last)
    regular = [one for one in rows if one["iteration"] < 5]
    reference = learn_reference(exact_graph(regular, entries))
    irregular = exact_graph([one for one in rows if one["iteration"] == 5], entries)
    return attribute(irregular, 5, reference)


def slow(worth_us: float, *, read: set[int], **last: Any) -> set[int]:
    """Communicators that were slow on the path, as far as some ranks tell."""
    rows, entries = job(6, **last)
    own = [one for one in rows if one["rank"] in read]
    reference = learn_reference(exact_graph([one for one in own if one["iteration"] < 5], entries))
    irregular = exact_graph([one for one in own if one["iteration"] == 5], entries)
    return slow_collectives(irregular, path_collectives(irregular, 5), reference, worth_us * US)


def test_slow_collectives() -> None:
    # A collective is slow where a member that was not read is late
    assert slow(20, read={0, 2}, late={1: 50 * US}) == {1}
    assert slow(60, read={0, 2}, late={1: 50 * US}) == set()
    # No collective is slow where the late one was read or nobody is late
    assert slow(20, read={0, 2}, late={0: 50 * US}) == set()
    assert slow(1, read={0, 2}) == set()
    # A collective that was never seen is slow
    reference = learn_reference(graph_of(row(0, 10, 20, group=3)))
    graph = graph_of(row(0, 10, 50, group=4))
    assert slow_collectives(graph, path_collectives(graph, 0), reference, 30.0) == {4}
    assert slow_collectives(graph, path_collectives(graph, 0), reference, 50.0) == set()


def excess(attribution: Any) -> dict[Lane, float]:
    return {lane: ns / US for lane, ns in attribution.path_excess_ns.items() if ns}


def test_lanes_of_the_path() -> None:
    # Nothing is in excess where all is as usual
    assert excess(attributed()) == {}
    # A late rank is found behind two communicators: rank 1 is late in tp; so 0 sends late, 2 receives late, and the
    # world waits for 2: the walk ends at 1.
    attribution = attributed(late={1: 50 * US})
    assert excess(attribution) == {Lane("work", 1): 50}
    piece = attribution.pieces[Lane("work", 1)]
    assert (piece.rank, piece.communicator, piece.elapsed_ns, piece.usual_ns) == (1, 1, 62 * US, 12 * US)
    # A rank that overtakes the usual late one has the path: rank 0 usually waits 2 µs for 1 in tp; now all wait for
    # 0.
    attribution = attributed(late={0: 30 * US})
    assert excess(attribution) == {Lane("work", 0): 30}
    assert attribution.work_excess_ns == {0: 30 * US, 1: 0, 2: 0}
    # Lateness that nobody waited for is not on the path
    attribution = attributed(late={2: 5 * US})
    assert excess(attribution) == {}
    assert attribution.work_excess_ns[2] == 5 * US
    # Where most wait in operators instead of gaps, they are quicker and nobody else is later for it
    attribution = attributed(late={0: -9 * US, 1: -11 * US, 2: 50 * US})
    assert excess(attribution) == {Lane("work", 2): 50}
    assert attribution.work_excess_ns == {0: -9 * US, 1: -11 * US, 2: 50 * US}
    # A slow pair is the lane of its recv
    attribution = attributed(pp=104 * US)
    assert excess(attribution) == {Lane("pair", 0, 2): 100}
    assert attribution.lanes[Lane("pair", 0, 2)].excess_ns == pytest.approx(100 * US, rel=2e-3)
    assert attribution.lanes[Lane("collective", 1)].excess_ns == 0
    # A slow collective is the lane of its communicator
    assert excess(attributed(world=45 * US)) == {Lane("collective", 0): 40}


@pytest.mark.parametrize("slow", range(RING))
def test_of_a_batch_that_ended_late_the_slow_message_has_the_path_and_not_its_mates(slow: int) -> None:
    reference = learn_reference(graph_of(*(one for n in range(3) for one in ring_rows((), iteration=n))))
    attribution = attribute(graph_of(*ring_rows({slow}, iteration=3)), 3, reference)
    lane = Lane("pair", slow, (slow + 1) % RING)
    assert {one: ns for one, ns in attribution.path_excess_ns.items() if ns} == {lane: SLOW - QUICK}
    piece = attribution.pieces[lane]
    assert (piece.elapsed_ns, piece.usual_ns, piece.rank in (lane.first, lane.second)) == (SLOW, QUICK, True)


def test_batches_and_two_causes_on_the_path() -> None:
    # A message of which one end was lost is not taken for the slow one of its batch
    reference = learn_reference(graph_of(*(one for n in range(3) for one in ring_rows((), iteration=n))))
    rows = [one for one in ring_rows({0}, iteration=3) if (one["rank"], one["peer"], one["operator"]) != (3, 0, SEND)]
    assert len(rows) == 2 * RING - 1
    path = attribute(graph_of(*rows), 3, reference).path_excess_ns
    assert [lane for lane, ns in path.items() if ns] == [Lane("pair", 0, 1)]
    # Two causes each have their part
    assert excess(attributed(late={1: 50 * US}, pp=34 * US)) == {Lane("work", 1): 50, Lane("pair", 0, 2): 30}


@given(
    late=st.dictionaries(st.integers(0, 2), st.integers(0, 80 * US)),
    transfers=st.fixed_dictionaries({name: st.integers(0, 80 * US) for name in ("tp", "pp", "world")}),
)
def test_the_pieces_tile_any_iteration_of_the_job(late: dict[int, int], transfers: dict[str, int]) -> None:
    rows, entries = job(1, late=late, **transfers)
    graph = exact_graph(rows, entries)
    nothing = np.zeros(len(graph))
    pieces = [piece for piece, *_ in _walk(graph, 0, nothing, nothing)]
    assert sum(p.elapsed_ns for p in pieces) == graph.end_ns.max()
    assert all(piece.elapsed_ns >= 0 for piece in pieces)


@st.composite
def any_rows(draw: st.DrawFn) -> Rows:
    rows = {}
    for _ in range(draw(st.integers(1, 20))):
        operator = draw(st.sampled_from(["all_reduce", "send", "recv"]))
        rank, start, sequence = draw(st.integers(0, 2)), draw(st.integers(0, 9)), draw(st.integers(0, 2))
        peer = None if operator == "all_reduce" else draw(st.integers(0, 2))
        one = row(rank, start, start + draw(st.integers(0, 4)), operator, peer=peer, sequence=sequence)
        rows[rank, operator, peer, sequence] = one
    return list(rows.values())


@given(rows=any_rows())
def test_the_walk_goes_back_in_time_and_ends(rows: Rows) -> None:
    graph = exact_graph(rows, {})
    nothing = np.zeros(len(graph))
    pieces = [piece for piece, *_ in _walk(graph, 0, nothing, nothing)]
    assert 2 <= len(pieces) <= 2 * len(rows)
    total = sum(piece.elapsed_ns for piece in pieces)
    assert 0 <= total <= graph.end_ns.max() - graph.start_ns.min()


def test_nothing_usual_is_known() -> None:
    # An iteration that is not there has no attribution
    attribution = attribute(graph_of(), 3, learn_reference(graph_of()))
    assert (attribution.path_excess_ns, attribution.lanes, attribution.work_excess_ns) == ({}, {}, {})
    # Operators never seen before accuse nobody
    reference = learn_reference(graph_of(row(0, 0, 5), row(1, 2, 5)))
    new = graph_of(row(0, 0, 5, "send", peer=1, group=7), row(1, 2, 900, "recv", peer=0, group=7))
    attribution = attribute(new, 0, reference)
    assert (attribution.path_excess_ns, attribution.lanes, attribution.work_excess_ns) == ({}, {}, {})
    # Without anything usual nothing is in excess
    attribution = attribute(graph_of(row(0, 0, 5), row(1, 2, 5)), 0, learn_reference(graph_of()))
    assert (attribution.path_excess_ns, attribution.lanes) == ({}, {})


ALL_REDUCE, BROADCAST = OPERATOR_CODES["all_reduce"], OPERATOR_CODES["broadcast"]


def arrivals(
    *rows: tuple[int, int, int, float],
    operator: int = ALL_REDUCE,
    is_timed: bool = True,
    iteration: list[int] | None = None,
) -> Arrivals:
    """Find arrivals in rows of rank, communicator, sequence and elapsed; all end at 1,000 + their sequence."""
    rank, communicator, sequence = (np.array([row[at] for row in rows], np.int64) for at in range(3))
    elapsed_ns = np.array([row[3] for row in rows])
    known = np.nan_to_num(elapsed_ns).astype(np.int64)
    start_ns = 1_000 + sequence - known if is_timed else np.full(len(rows), UNKNOWN)
    return find_arrivals(
        {
            "rank": rank,
            "communicator": communicator,
            "sequence": sequence,
            "operator": np.full(len(rows), operator),
            "elapsed_ns": elapsed_ns,
            "start_ns": start_ns,
            "iteration": np.full(len(rows), UNKNOWN) if iteration is None else np.array(iteration),
        }
    )


def test_last_arrivals() -> None:
    # The shortest share is the last arriver
    found = arrivals((0, 0, 5, 90.0), (1, 0, 5, 20.0), (2, 0, 5, 70.0), (0, 1, 5, 3.0), (2, 1, 5, 4.0))
    assert found.last_rank.tolist() == [1, 0]
    assert found.waited_ns.tolist() == [70.0, 1.0]
    assert found.shares.tolist() == [3, 2]
    assert found.ends_apart_ns.tolist() == [0.0, 0.0]
    # Without starts only the ends are not known
    found = arrivals((0, 0, 5, 90.0), (1, 0, 5, 20.0), is_timed=False)
    assert found.last_rank.tolist() == [1]
    assert np.isnan(found.ends_apart_ns).tolist() == [True]
    assert found.took_ns.tolist() == [20.0]
    # Which one of its iteration it is, where there are as many as usual: iteration 3 has one alone
    numbers = [4, 5, 6, 7, 8]
    rows = [(rank, 0, number, 9.0 + rank) for number in numbers for rank in (0, 1)]
    assert arrivals(*rows, iteration=[1] * 4 + [2] * 4 + [3] * 2).place.tolist() == [1, 2, 1, 2, 0]
    assert arrivals(*rows).place.tolist() == [0] * 5
    # A single share and what never ended tell nothing
    assert len(arrivals((0, 0, 5, 90.0), (0, 0, 6, 9.0), (1, 0, 6, np.nan)).shares) == 0
    assert len(arrivals().shares) == 0
    # Where not everybody waits nobody is last
    for operator in (BROADCAST, SEND):
        assert len(arrivals((0, 0, 5, 90.0), (1, 0, 5, 20.0), operator=operator).shares) == 0


WORLD = Lane("collective", 0)


def test_transfers_of_lanes() -> None:
    # The lane of a pair goes from its sender to its receiver
    graph = graph_of(row(0, 5, 6, "send", peer=1), row(1, 0, 30, "recv", peer=0), row(2, 0, 9, group=4))
    assert {lane_of(graph, at) for at in range(3)} == {Lane("pair", 0, 1), Lane("collective", 4)}
    # The transfer of a collective is the median of its members: one of the members left late, one early: neither says
    # how long the transfer of all took.
    graph = graph_of(row(0, 0, 20), row(1, 10, 14), row(2, 3, 15))
    assert {lane: usual.mean_ns for lane, usual in learn_reference(graph).lanes.items()} == {Lane("collective", 0): 5}
    # A ring with one slow way is slow although a member leaves as early as ever
    usual = learn_reference(graph_of(*(row(rank, 0, 14) for rank in range(4)))).lanes
    slow = lane_table(graph_of(row(0, 0, 14), row(1, 0, 30), row(2, 0, 45), row(3, 0, 31)))
    assert lane_excess(slow, 0, usual)[WORLD].excess_ns > usual[WORLD].mean_ns


def test_a_ring_in_which_the_same_member_always_leaves_early_is_slow_in_all_of_its_transfers() -> None:
    def iteration(number: int, *ends: int) -> list[dict[str, Any]]:
        return [
            row(rank, 1000 * number + 100 * turn, 1000 * number + 100 * turn + end, sequence=turn, iteration=number)
            for turn in range(4)
            for rank, end in enumerate(ends)
        ]

    reference = learn_reference(graph_of(*iteration(0, 14, 14, 14, 14)))
    found = attribute(graph_of(*iteration(1, 14, 30, 45, 31)), 1, reference).lanes[WORLD]
    assert (found.transfers, found.slow_transfers) == (4, 4)


@pytest.mark.parametrize("rank", range(4))
def test_an_all_to_all_moves_as_many_bytes_as_its_largest_member_whichever_rank_it_is(rank: int) -> None:
    def iteration(number: int, size: float, took: int) -> list[dict[str, Any]]:
        begin = 1000 * number
        rest = {"sequence": number, "iteration": number}
        sizes = [size if one == rank else 100.0 for one in range(4)]
        return [row(one, begin, begin + took, "all_to_all", size=sizes[one], **rest) for one in range(4)]

    reference = learn_reference(graph_of(*(one for n in range(3) for one in iteration(n, 100.0, 20))))
    few = attribute(graph_of(*iteration(4, 70.0, 20)), 4, reference)
    assert (few.lanes[WORLD].excess_ns, few.path_excess_ns[WORLD]) == (0.0, 0.0)
    many = attribute(graph_of(*iteration(4, 200.0, 40)), 4, reference)
    assert (many.lanes[WORLD].excess_ns, many.path_excess_ns[WORLD]) == (0.0, 0.0)
    slow = attribute(graph_of(*iteration(4, 130.0, 36)), 4, reference)
    assert slow.lanes[WORLD].excess_ns == pytest.approx(10.0, rel=0.01)


@pytest.mark.parametrize(("usual", "now", "is_stray"), [
    ((200_000, 20, 20, 20), (600_000, 60, 60, 60), False),  # all took three times as long
    ((200_000, 20, 20, 20), (250_000, 20, 20, 20), False),  # the one that is nearly all of the lane
    ((200_000, 20, 20, 20), (200_000, 50_020, 20, 20), True),
    ((300, 100, 10), (600, 100, 10), True),  # the largest one of several that count
    ((300, 100, 10), (600, 200, 20), False),
    ((100, 100, 100), (400, 100, 100), True),
])  # fmt: skip
def test_a_lane_hung_if_its_excess_is_in_one_transfer_that_is_not_nearly_all_of_it(
    usual: tuple[int, ...], now: tuple[int, ...], is_stray: bool
) -> None:
    def iteration(number: int, took: tuple[int, ...]) -> list[dict[str, Any]]:
        starts = [10_000_000 * number + sum(took[:turn]) for turn in range(len(took))]
        return [
            row(rank, start, start + ns, sequence=turn, iteration=number)
            for rank in range(2)
            for turn, (start, ns) in enumerate(zip(starts, took, strict=True))
        ]

    reference = learn_reference(graph_of(*iteration(0, usual)))
    assert attribute(graph_of(*iteration(1, now)), 1, reference).lanes[WORLD].is_stray is is_stray


def test_the_transfer_of_a_pair_is_that_of_its_recv() -> None:
    graph = graph_of(row(0, 5, 6, "send", peer=1), row(1, 0, 30, "recv", peer=0))
    assert {lane: usual.mean_ns for lane, usual in learn_reference(graph).lanes.items()} == {Lane("pair", 0, 1): 25}


def test_excess_of_lanes() -> None:
    # A lane in which one message hung is stray though one beside another message ended late as well
    reference = learn_reference(graph_of(*ring_rows((), ())))
    found = attribute(graph_of(*ring_rows({1}, {2}, iteration=3)), 3, reference).lanes
    assert {lane.first: excess.slow_transfers for lane, excess in found.items()} == dict.fromkeys(range(RING), 1)
    # The excess of a lane counts each of its operators
    regular = [row(rank, 1000 * n + rank, 1000 * n + 11, sequence=n, iteration=n, size=64.0)
               for n in range(3) for rank in (0, 1)]  # fmt: skip
    reference = learn_reference(graph_of(*regular))
    twice = graph_of(*[row(rank, 100 * n + rank, 100 * n + 1 + 30, sequence=50 + n, iteration=9, size=64.0)
                       for n in (0, 1) for rank in (0, 1)])  # fmt: skip
    found = attribute(twice, 9, reference).lanes[Lane("collective", 0)]
    assert (found.excess_ns, found.usual_ns, found.size_bytes) == (40, 20, 128)
    # A lane that is not in the iteration is left out
    graph = graph_of(
        row(0, 0, 5), row(1, 2, 5), row(0, 9, 12, group=1, iteration=1), row(1, 9, 12, group=1, iteration=1)
    )
    assert set(attribute(graph, 1, learn_reference(graph)).lanes) == {Lane("collective", 1)}
    # An iteration without rows has no lanes
    table = lane_table(graph_of(row(0, 0, 20), row(1, 10, 14)))
    usual = {WORLD: UsualLane(3.0, 1.0, 0.0)}
    assert lane_excess(table, 1, usual) == {}
    assert lane_excess(table, 0, usual).keys() == usual.keys()
