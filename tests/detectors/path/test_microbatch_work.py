"""The work of pipeline stages whose recvs lie open while they work, in cases that fit on a napkin."""

from __future__ import annotations

from typing import Any

import pytest

from irregulars.detectors.path.microbatch_work import microbatch_work_ns
from tests.detectors.operator_graphs import graph_of, row

STAGE_OF = {0: 0, 1: 1, 2: 2}


def passed_on(
    sequence: int, came: int, sent: tuple[int, int], *, posted: int = 0, up: bool = True, rank: int = 1
) -> list[dict[str, Any]]:
    """A message that a rank gets from the stage before and sends on to the next one; or downwards."""
    source, destination = (rank - 1, rank + 1) if up else (rank + 1, rank - 1)
    return [
        row(rank, posted, came, "recv", group=7, sequence=sequence, peer=source),
        row(rank, *sent, "send", group=7, sequence=sequence, peer=destination),
    ]


def work(*rows: dict[str, Any], stage_of: dict[int, int] | None = None) -> dict[int, float]:
    graph = graph_of(*rows, entry={(1, 0): 0})
    return microbatch_work_ns(graph, 0, stage_of or STAGE_OF)


def test_work_on_micro_batches() -> None:
    # Work begins when the message has come: 30 and 20: whoever waits for a recv that is open does not work.
    assert work(*passed_on(0, 10, (40, 45)), *passed_on(1, 100, (120, 125), posted=10)) == {1: 50}
    # Work begins when the rank is free: the second message came early: from the first one's send to 90 is work,
    # however long the next recv is open.
    first, second = passed_on(0, 10, (40, 45)), passed_on(1, 12, (90, 95), posted=10)
    assert work(*first, *second, *passed_on(2, 200, (230, 235), posted=12)) == {1: 30 + 45 + 30}
    # A rank works while a send is left open: the third recv is posted at 42, before the first send has ended: the
    # rank was free at 40.
    first, second = passed_on(0, 10, (40, 45)), passed_on(1, 12, (90, 95), posted=10)
    assert work(*first, *second, *passed_on(2, 200, (230, 235), posted=42)) == {1: 30 + 50 + 30}
    # A send that the rank waits for is not work: nothing began before the send had ended at 60: the rank was free
    # then.
    assert work(*passed_on(0, 10, (40, 60)), *passed_on(1, 50, (90, 95))) == {1: 30 + 30}
    # Collectives within a microbatch are not work
    collective = row(1, 15, 25, group=3)
    assert work(*passed_on(0, 10, (40, 45)), collective) == {1: 5 + 15}
    # What comes after the last send is no work on micro batches: stages that are through early wait for the others,
    # and no operator need show it.
    assert work(*passed_on(0, 10, (40, 45)), row(1, 900, 950, group=3)) == {1: 30}


def test_messages_of_micro_batches_pair_up() -> None:
    # Backward messages pair up by themselves
    down = passed_on(0, 60, (80, 85), up=False)
    assert work(*passed_on(0, 10, (40, 45)), *down) == {1: 30 + 20}
    # A rank that lost a message is left out
    assert work(*passed_on(0, 10, (40, 45)), *passed_on(1, 50, (90, 95))[1:]) == {}
    # A rank whose messages skip a stage is left out
    assert work(*passed_on(0, 10, (40, 45)), stage_of={0: 0, 1: 1, 3: 2, 2: 3}) == {}


@pytest.mark.parametrize("rank", [0, 2])
def test_of_the_first_and_the_last_stage_nothing_is_said(rank: int) -> None:
    """The first makes messages of its own, the last makes none of some that it gets."""
    peer = 1
    rows = [
        row(rank, 0, 10, "recv", group=7, peer=peer),
        row(rank, 40, 45, "send", group=7, peer=peer),
    ]
    assert work(*rows) == {}


def test_a_graph_of_other_ranks_and_iterations_says_nothing() -> None:
    rows = passed_on(0, 10, (40, 45))
    assert microbatch_work_ns(graph_of(*rows), 1, STAGE_OF) == {}
    assert microbatch_work_ns(graph_of(*rows), 0, {}) == {}
