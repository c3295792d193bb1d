"""Where chains of waiting end."""

from __future__ import annotations

from irregulars.detectors.hang.wait_graph import last_groups


def test_walks_end_in_long_chains_and_in_circles() -> None:
    chain = {at: [at + 1] for at in range(5_000)}
    assert last_groups(chain) == [{5_000}]
    assert last_groups({**chain, 5_000: [4_990]}) == [set(range(4_990, 5_001))]
    assert last_groups({}) == []


def test_who_waits_for_two_ends_is_at_neither() -> None:
    assert last_groups({"victim": ["slow", "stuck"], "stuck": ["stuck"]}) == [{"slow"}, {"stuck"}]


def test_a_circle_with_a_way_out_is_no_end() -> None:
    assert last_groups({1: [2], 2: [1, 3]}) == [{3}]
