"""What is usual at a place of an iteration, whether operators overlap work or not."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.detectors.job.lanes import EVERYBODY, Lane
from irregulars.detectors.path.critical_path import attribute
from irregulars.detectors.path.operator_classes import (
    NO_RANK,
    is_p2p,
    pack_class,
    senders_and_receivers,
    unpack_class,
)
from irregulars.detectors.path.operator_graph import build_graph, collective_rows
from irregulars.detectors.path.usual_by_past import (
    _overlapped,
    incomplete_ranks,
    learn_reference,
    learn_transfers,
    usual_times,
    usual_transfers,
)
from irregulars.messages.records import OPERATOR_CODES, OPERATORS, RECV, SEND, UNKNOWN
from tests.detectors.operator_graphs import (
    BUCKETS,
    LATER_NS,
    RANKS,
    any_rows,
    columns_of,
    exact_graph,
    graph_of,
    row,
    rows_of,
)


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_a_rank_that_is_late_costs_what_it_works_longer_and_no_more(is_overlapped: bool) -> None:
    rows = rows_of(11, {10: 4}, is_overlapped=is_overlapped)
    reference = learn_reference(graph_of(*(one for one in rows if one["iteration"] < 10)))
    found = attribute(graph_of(*(one for one in rows if one["iteration"] == 10)), 10, reference)
    assert max(found.path_excess_ns, key=lambda lane: found.path_excess_ns[lane]) == Lane("work", 4)
    assert sum(found.path_excess_ns.values()) == pytest.approx(BUCKETS * LATER_NS, rel=0.15)


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_whose_turn_it_is_to_be_last_costs_what_it_works_longer_and_no_more(is_overlapped: bool) -> None:
    rows = rows_of(19, {number: number % RANKS for number in range(19)}, is_overlapped=is_overlapped)
    reference = learn_reference(graph_of(*(one for one in rows if one["iteration"] < 18)))
    found = attribute(graph_of(*(one for one in rows if one["iteration"] == 18)), 18, reference)
    assert found.path_excess_ns[Lane("work", 0)] < 1.15 * BUCKETS * LATER_NS


@pytest.mark.parametrize("longer_ns", [20_000, 500_000])
def test_a_slow_transfer_is_no_work_of_those_who_work_on_meanwhile(longer_ns: int) -> None:
    rows = rows_of(11, {}, is_overlapped=True, hung_ns={10 * BUCKETS + 3: longer_ns})
    reference = learn_reference(graph_of(*(one for one in rows if one["iteration"] < 10)))
    found = attribute(graph_of(*(one for one in rows if one["iteration"] == 10)), 10, reference)
    assert sum(ns for lane, ns in found.path_excess_ns.items() if lane.kind == "work") < 0.05 * longer_ns


def test_of_longer_work_the_part_that_operators_hid_before_is_everybodys_too() -> None:
    """Work of 400 us, and four times of 100 us of which operators hide 30; in the last iteration 1.4 times that."""
    rows: list[dict[str, Any]] = []
    entry: dict[tuple[int, int], int] = {}
    free = 0
    for iteration in range(11):
        entry |= {(rank, iteration): free for rank in range(RANKS)}
        factor, done = 1.4 if iteration == 10 else 1.0, [free] * RANKS
        for number, work_ns in enumerate((400_000, 100_000, 100_000, 100_000, 100_000)):
            uneven = [37 * ((7 * rank + 5 * number + 3 * iteration) % 11) for rank in range(RANKS)]
            done = [one + round(factor * work_ns) + more for one, more in zip(done, uneven, strict=True)]
            starts = [max(one, free) for one in done]
            free = max(starts) + 30_000
            at: dict[str, Any] = {"sequence": 5 * iteration + number, "iteration": iteration}
            rows += [row(rank, start, free, **at) for rank, start in enumerate(starts)]
    reference = learn_reference(graph_of(*(one for one in rows if one["iteration"] < 10), entry=entry))
    reference = replace(reference, is_overlapped=np.zeros_like(reference.is_overlapped))  # noise of work hides it
    now = graph_of(*(one for one in rows if one["iteration"] == 10), entry=entry)
    found = attribute(now, 10, reference).path_excess_ns
    assert found[EVERYBODY] == pytest.approx(0.4 * 800_000, rel=0.02)
    assert sum(abs(ns) for lane, ns in found.items() if lane != EVERYBODY) < 0.02 * 800_000


@pytest.mark.parametrize("codes", list(permutations((0, 1, 2))))
def test_which_operator_usually_ends_last_does_not_depend_on_numbers_of_communicators(codes: tuple[int, ...]) -> None:
    rows = []
    for iteration, last in enumerate((0, 1, 2, 0, 1, 2, 0)):  # three run at once; the next begins when all are over
        for at, code in enumerate(codes):
            end = 1000 * iteration + (100 if at == last else 80 + at)
            rows.append(row(0, 1000 * iteration, end, group=code, sequence=iteration, iteration=iteration))
        begin = 1000 * iteration + 150 + 10 * last
        rows.append(row(0, begin, begin + 5, group=3, sequence=iteration, iteration=iteration))
    graph = graph_of(*rows)
    usual_gap_ns = usual_times(graph, learn_reference(graph))[0]
    after_first = (graph.communicator == 3) & np.isin(graph.iteration, (0, 3, 6))
    assert usual_gap_ns[after_first].tolist() == [60.0] * 3
    assert usual_gap_ns[(graph.communicator == 3) & ~after_first].tolist() != [60.0] * 4


@given(usual=any_rows(), now=any_rows(), kept=st.sampled_from([1.0, 0.8]), size=st.sampled_from([np.nan, 64.0]))
def test_what_is_usual_of_transfers_alone_is_what_is_usual_of_them_among_all(
    usual: list[dict[str, Any]], now: list[dict[str, Any]], kept: float, size: float
) -> None:
    """Of regular iterations the collectives of the communicators that are asked for suffice."""
    graph = exact_graph([one | {"size_bytes": size * (1 + one["sequence"])} for one in now])
    columns = columns_of([one | {"size_bytes": 64.0} for one in usual[: int(kept * len(usual))]])
    reference = learn_reference(build_graph(columns, {}, is_exact=True))
    rows = np.flatnonzero(~graph.is_p2p)[::-1]
    of_all = usual_times(graph, reference)[1][rows]
    np.testing.assert_array_equal(usual_transfers(graph, rows, reference), of_all)
    for communicator in (0, 1):
        own = graph.communicator[rows] == communicator
        alone = learn_transfers(collective_rows(columns, [communicator], is_exact=True))
        np.testing.assert_array_equal(usual_transfers(graph, rows[own], alone), of_all[own])


def test_an_operator_that_one_iteration_in_ten_has_is_missing_from_no_other() -> None:
    rows = rows_of(12, {}, is_overlapped=False)
    logged = rows_of(12, {}, is_overlapped=False)[-RANKS:]
    logged = [one | {"communicator": 1, "iteration": 4, "sequence": 0} for one in logged]  # of a metric, each tenth
    usual = [one for one in rows if one["iteration"] < 10 and (one["rank"], one["sequence"]) != (2, BUCKETS)]
    reference = learn_reference(graph_of(*usual, *logged))
    now = [one for one in rows if one["iteration"] >= 10 and (one["rank"], one["sequence"]) != (5, 11 * BUCKETS)]
    assert incomplete_ranks(graph_of(*now), 10, reference) == set()
    assert incomplete_ranks(graph_of(*now), 11, reference) == {5}
    # A rank that loses a row in most iterations runs no fewer for that.
    lost = [(5, number * BUCKETS) for number in range(6)]
    reference = learn_reference(graph_of(*(one for one in usual if (one["rank"], one["sequence"]) not in lost)))
    assert incomplete_ranks(graph_of(*now), 11, reference) == {5}


@pytest.mark.parametrize(("since_apart_ns", "is_overlapped"), [(0.65, True), (0.8, False)])
def test_a_rank_works_on_if_time_since_the_one_before_is_steady(since_apart_ns: float, is_overlapped: bool) -> None:
    place = np.array([0, 0])
    found = _overlapped(np.array([7]), place, np.array([1.0, 1.0]), np.array([since_apart_ns, since_apart_ns]))
    assert found.tolist() == [is_overlapped]


ALL_REDUCE = OPERATOR_CODES["all_reduce"]


def test_a_message_has_a_sender_and_a_receiver_at_both_of_its_ends() -> None:
    operator, rank, peer = np.array([SEND, RECV, ALL_REDUCE]), np.array([0, 3, 5]), np.array([3, 0, UNKNOWN])
    sender, receiver = senders_and_receivers(operator, rank, peer)
    assert is_p2p(operator).tolist() == [True, True, False]
    assert (sender.tolist(), receiver.tolist()) == ([0, 0, NO_RANK], [3, 3, NO_RANK])


@given(
    communicator=st.integers(0, 2**16 - 1),
    operator=st.integers(0, len(OPERATORS) - 1),
    peer=st.one_of(st.none(), st.integers(0, 2**28)),
)
def test_a_class_unpacks_to_what_was_packed(communicator: int, operator: int, peer: int | None) -> None:
    values = {"communicator": communicator, "operator": operator, "peer": UNKNOWN if peer is None else peer}
    packed = pack_class({name: np.array([value]) for name, value in values.items()})
    assert [int(part[0]) for part in unpack_class(packed)] == [communicator, operator, -1 if peer is None else peer]
