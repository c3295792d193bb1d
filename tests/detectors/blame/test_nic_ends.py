"""Which ends of a slow transfer stand out by their rates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from irregulars.detectors.blame.causes import find_causes
from irregulars.detectors.blame.nic_ends import attribute_by_bandwidth, is_capped, log_odds, passes_nics, telling_ends
from irregulars.detectors.job.lanes import EVERYBODY, Lane
from irregulars.detectors.job.topology import Device, Place, Topology
from irregulars.detectors.nics.steadiness import WHOLE, Swing
from irregulars.detectors.path.critical_path import Attribution
from tests.stored_states import stored

RANKS = (0, 1, 2, 3)
RING = Lane("collective", 0)
APART = Topology(4, {rank: Place(f"h{rank}", 0, "eth0") for rank in RANKS}, {0: RANKS}, ("ring",))
NIC = [Device("nic", (rank,)) for rank in RANKS]
CAPPED = {0: (0.25, 0.13), 1: (0.13, 0.25), 2: (0.33, 0.42), 3: (0.41, 0.27)}
"""Peaks over the usual ones: rank 0 receives what rank 1 sends."""

BURSTS = {0: (0.45, 0.3), 1: (0.01, 0.5), 2: (0.3, 0.6), 3: (0.5, 0.45)}
SLOW = Attribution(7, {RING: 1e6}, {}, {}, {}, rates=CAPPED)
PATTERNS = tuple(Swing(0, rank, tx, rx, 1e7, 1e7, 0.1, 0.1) for rank, (tx, rx) in BURSTS.items())


def standing_out(attribution: Attribution, lane: Lane = RING) -> list[tuple[int, int]]:
    ends = telling_ends(lane, [attribution] * 4, APART)
    return [(nic.ranks[0], way) for (nic, way), is_telling in ends.items() if is_telling]


def test_which_ends_of_a_slow_transfer_stand_out() -> None:
    # Without patterns the lowest peaks count and a neighbour s is as low
    assert sorted(standing_out(SLOW)) == [(0, 1), (1, 0)]
    # Patterns tell the sender from its neighbour
    patterned = replace(SLOW, swings=PATTERNS)
    assert standing_out(patterned) == [(1, 0)]
    by_peaks, by_patterns = (telling_ends(RING, [one] * 4, APART) for one in (SLOW, patterned))
    lead = [log_odds(NIC[1], ends) - log_odds(NIC[0], ends) for ends in (by_peaks, by_patterns)]
    assert lead[1] > lead[0] + 1
    # A burst of other traffic hides the peak and not the pattern
    bursting = replace(SLOW, rates=dict.fromkeys(RANKS, (1.0, 1.0)))
    assert standing_out(bursting) == []
    assert standing_out(replace(bursting, swings=PATTERNS)) == [(1, 0)]
    # Iterations in which the transfer was not slow have no say in who is steady
    quick = replace(SLOW, path_excess_ns={}, swings=tuple(one._replace(tx=0.5) for one in PATTERNS))
    ends = telling_ends(RING, [replace(SLOW, swings=PATTERNS), quick, quick], APART)
    assert [end for end, is_telling in ends.items() if is_telling] == [(NIC[1], 0)]
    # Nor in whose peak is low: half of them were long for something else, with rates as usual
    elsewhere = replace(SLOW, path_excess_ns={}, rates=dict.fromkeys(RANKS, (1.0, 1.0)))
    ends = telling_ends(RING, [SLOW] * 3 + [elsewhere] * 3, APART)
    assert sorted(end for end, is_telling in ends.items() if is_telling) == [(NIC[0], 1), (NIC[1], 0)]
    # A group passes the nics if all of them move bytes while it runs
    moving = replace(SLOW, swings=PATTERNS)
    assert passes_nics(RING, [moving] * 4, APART)
    assert not passes_nics(RING, [moving, SLOW], APART)
    assert not passes_nics(Lane("pair", 0, 1), [moving] * 4, APART)


def test_capped_nics_and_pairs() -> None:
    # A nic is capped where one of its ends stands out
    slow = [replace(SLOW, swings=PATTERNS)] * 4
    assert is_capped(NIC[1], RING, slow, APART)
    assert not is_capped(NIC[0], RING, slow, APART)
    assert not is_capped(NIC[1], Lane("work", 1), slow, APART)
    # A pair has too few ends to tell who is steady
    pair = replace(SLOW, path_excess_ns={Lane("pair", 1, 0): 1e6}, swings=PATTERNS)
    assert sorted(standing_out(pair, Lane("pair", 1, 0))) == [(0, 1), (1, 0)]


@pytest.mark.parametrize(("ratio", "passes"), [(0.045, False), (0.055, True)])
def test_acknowledgements_alone_are_no_bytes(ratio: float, passes: bool) -> None:
    moving = (*PATTERNS[:3], PATTERNS[3]._replace(rx_ratio=ratio))
    assert passes_nics(RING, [replace(SLOW, swings=moving)] * 4, APART) == passes


SWITCHED = Topology(4, {rank: Place(f"h{rank}", 0, "eth0", "s") for rank in RANKS}, {0: RANKS}, ("world",))
MS = 1e6
SENDER = {0: (0.4, 0.4), 1: (0.05, 0.5), 2: (0.3, 0.6), 3: (0.5, 0.45)}
ROUND = {0: (0.4, 0.4), 1: (0.01, 0.5), 2: (0.3, 0.01), 3: (0.5, 0.45)}
"""What rank 1 sends steadily, rank 2 receives as steadily."""


def attributed(found: dict[int, tuple[float, float]], iteration: int = 7, peak: float = 0.2) -> Attribution:
    swings = [Swing(WHOLE, rank, tx, rx, 1e7, 1e7, peak, peak) for rank, (tx, rx) in found.items()]
    return attribute_by_bandwidth(iteration, 100 * MS, 20 * MS, swings, SWITCHED)


def test_the_steady_nic_is_accused_without_operators() -> None:
    # What an iteration took longer is laid upon the steady nic
    one = attributed(SENDER)
    assert one.path_excess_ns == {Lane("nic", 1): 80 * MS}
    assert one.excess_ns == 80 * MS
    assert stored(one) == one
    # A nic that is steady in all iterations is accused less surely than if links were known
    (cause,) = find_causes([attributed(SENDER, iteration) for iteration in range(4)], SWITCHED)
    assert (cause.kind, cause.communicator) == ("slow_nic", None)
    ((device, probability),) = cause.suspects
    assert device == Device("nic", (1,))
    nic = (0.8 / 0.1) * (0.4 / 0.9)  # one end steady and the other not, if it is the NIC, against by chance
    others, switch = 3 * (0.2 / 0.9) * (0.4 / 0.9), 0.3 * (0.5 * (0.5 / 0.1) * (0.5 / 0.9) ** 7 + 0.5)
    assert probability == pytest.approx(nic / (nic + others + switch + 0.5 * 3.0 + 0.05))
    # Of a ring s two ends of one flow the sender is likelier and not sure
    one = attributed(ROUND)
    assert one.path_excess_ns == {Lane("nic", 1): 80 * MS}
    (cause,) = find_causes([one] * 4, SWITCHED)
    assert cause.suspects[0][1] < 0.6


@pytest.mark.parametrize("found", [dict.fromkeys(RANKS, (0.4, 0.5)), dict.fromkeys(RANKS, (0.01, 0.02)), {}])
def test_where_nobody_stands_out_nobody_is_accused(found: dict[int, tuple[float, float]]) -> None:
    one = attributed(found)
    assert one.path_excess_ns == {EVERYBODY: 80 * MS}
    assert find_causes([one] * 4, SWITCHED) == []


def test_nics_that_are_not_accused_without_operators() -> None:
    # A nic that is as fast as ever is not accused
    assert attributed(SENDER, peak=0.95).path_excess_ns == {EVERYBODY: 80 * MS}
    # Another nic each time recurs on none
    turned = [{(rank + n) % 4: own for rank, own in SENDER.items()} for n in range(4)]
    causes = find_causes([attributed(found, n) for n, found in enumerate(turned)], SWITCHED)
    assert all(len(cause.explained_ns) == 1 for cause in causes)
    # Nics are held against those of their stage
    places = {rank: Place(f"h{rank}", 0, "eth0") for rank in range(8)}
    topology = Topology(8, places, {}, (), stage_of={rank: rank // 4 for rank in range(8)})
    calm = {rank + 4: (0.05, 0.05) for rank in RANKS}  # the second stage moves smoothly, all of it
    swings = [Swing(WHOLE, rank, tx, rx, 1e7, 1e7, 0.2, 0.2) for rank, (tx, rx) in (SENDER | calm).items()]
    one = attribute_by_bandwidth(7, 100 * MS, 20 * MS, swings, topology)
    assert one.path_excess_ns == {Lane("nic", 1): 80 * MS}


def laid_upon(found: dict[int, tuple[float, float]], stage_of: dict[int, int]) -> dict[Lane, float]:
    """Where the excess of an iteration goes, of ranks whose NICs swing so, sent and received."""
    topology = Topology(len(found), {rank: Place(f"h{rank}", 0, "eth0") for rank in found}, {}, (), stage_of=stage_of)
    swings = [Swing(WHOLE, rank, tx, rx, 1e7, 1e7, 0.2, 0.2) for rank, (tx, rx) in found.items()]
    return dict(attribute_by_bandwidth(7, 100 * MS, 20 * MS, swings, topology).path_excess_ns)


def test_small_stages_without_operators() -> None:
    # Nics of a stage of three are held against each other: the other stage always moves smoothly, so that beside it
    # rank 1 would be no steadier than others.
    found = {rank: SENDER[rank] for rank in range(3)} | dict.fromkeys(range(3, 6), (0.05, 0.05))
    assert laid_upon(found, {rank: rank // 3 for rank in found}) == {Lane("nic", 1): 80 * MS}
    # Nics of stages of two are held against those of the job: of two nobody can tell which is unlike the other.
    assert laid_upon(SENDER, {rank: rank // 2 for rank in SENDER}) == {Lane("nic", 1): 80 * MS}
