"""What the bandwidth of NICs tells without operators."""

from __future__ import annotations

import pytest

from irregulars.detectors.blame.by_bandwidth import attribute_by_bandwidth
from irregulars.detectors.blame.causes import find_causes
from irregulars.detectors.job.lanes import EVERYBODY, Lane
from irregulars.detectors.job.topology import Device, Place, Topology
from irregulars.detectors.nics.steadiness import WHOLE, Swing
from irregulars.detectors.path.critical_path import Attribution
from tests.stored_states import stored

RANKS = tuple(range(4))
APART = Topology(4, {rank: Place(f"h{rank}", 0, "eth0", "s") for rank in RANKS}, {0: RANKS}, ("world",))
MS = 1e6
SENDER = {0: (0.4, 0.4), 1: (0.05, 0.5), 2: (0.3, 0.6), 3: (0.5, 0.45)}
RING = {0: (0.4, 0.4), 1: (0.01, 0.5), 2: (0.3, 0.01), 3: (0.5, 0.45)}
"""What rank 1 sends steadily, rank 2 receives as steadily."""


def attributed(found: dict[int, tuple[float, float]], iteration: int = 7, peak: float = 0.2) -> Attribution:
    swings = [Swing(WHOLE, rank, tx, rx, 1e7, 1e7, peak, peak) for rank, (tx, rx) in found.items()]
    return attribute_by_bandwidth(iteration, 100 * MS, 20 * MS, swings, APART)


def test_what_an_iteration_took_longer_is_laid_upon_the_steady_nic() -> None:
    one = attributed(SENDER)
    assert one.path_excess_ns == {Lane("nic", 1): 80 * MS}
    assert one.excess_ns == 80 * MS
    assert stored(one) == one


def test_a_nic_that_is_steady_in_all_iterations_is_accused_less_surely_than_if_links_were_known() -> None:
    (cause,) = find_causes([attributed(SENDER, iteration) for iteration in range(4)], APART)
    assert (cause.kind, cause.communicator) == ("slow_nic", None)
    ((device, probability),) = cause.suspects
    assert device == Device("nic", (1,))
    nic = (0.8 / 0.1) * (0.4 / 0.9)  # one end steady and the other not, if it is the NIC, against by chance
    others, switch = 3 * (0.2 / 0.9) * (0.4 / 0.9), 0.3 * (0.5 / 0.1) * (0.5 / 0.9) ** 7
    assert probability == pytest.approx(nic / (nic + others + switch + 0.5 * 3.0 + 0.05))


def test_of_a_ring_s_two_ends_of_one_flow_the_sender_is_likelier_and_not_sure() -> None:
    one = attributed(RING)
    assert one.path_excess_ns == {Lane("nic", 1): 80 * MS}
    (cause,) = find_causes([one] * 4, APART)
    assert cause.suspects[0][1] < 0.6


@pytest.mark.parametrize("found", [dict.fromkeys(RANKS, (0.4, 0.5)), dict.fromkeys(RANKS, (0.01, 0.02)), {}])
def test_where_nobody_stands_out_nobody_is_accused(found: dict[int, tuple[float, float]]) -> None:
    one = attributed(found)
    assert one.path_excess_ns == {EVERYBODY: 80 * MS}
    assert find_causes([one] * 4, APART) == []


def test_a_nic_that_is_as_fast_as_ever_is_not_accused() -> None:
    assert attributed(SENDER, peak=0.95).path_excess_ns == {EVERYBODY: 80 * MS}


def test_another_nic_each_time_recurs_on_none() -> None:
    turned = [{(rank + n) % 4: own for rank, own in SENDER.items()} for n in range(4)]
    causes = find_causes([attributed(found, n) for n, found in enumerate(turned)], APART)
    assert all(len(cause.explained_ns) == 1 for cause in causes)


def test_nics_are_held_against_those_of_their_stage() -> None:
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


def test_nics_of_a_stage_of_three_are_held_against_each_other() -> None:
    """The other stage always moves smoothly, so that beside it rank 1 would be no steadier than others."""
    found = {rank: SENDER[rank] for rank in range(3)} | dict.fromkeys(range(3, 6), (0.05, 0.05))
    assert laid_upon(found, {rank: rank // 3 for rank in found}) == {Lane("nic", 1): 80 * MS}


def test_nics_of_stages_of_two_are_held_against_those_of_the_job() -> None:
    """Of two nobody can tell which is unlike the other."""
    assert laid_upon(SENDER, {rank: rank // 2 for rank in SENDER}) == {Lane("nic", 1): 80 * MS}
