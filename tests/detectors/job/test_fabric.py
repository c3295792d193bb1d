"""Which lanes the switches above the leafs carry."""

from __future__ import annotations

import pytest

from irregulars.detectors.job.fabric import spines_of

# Two pods of two leafs, two equal spines in each, one core above all.
LEAF_OF = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c", 5: "d"}
PODS = {"a": ("s1", "s2"), "b": ("s1", "s2"), "c": ("s3", "s4"), "d": ("s3", "s4")}
CORE = PODS | dict.fromkeys(("s1", "s2", "s3", "s4"), ("core",))


def test_equal_switches_are_one_and_each_joins_what_is_below_it() -> None:
    spines = {one.names: one.ranks for one in spines_of(LEAF_OF, CORE)}
    assert spines == {("s1", "s2"): (0, 1, 2, 3), ("s3", "s4"): (4, 5), ("core",): (0, 1, 2, 3, 4, 5)}


@pytest.mark.parametrize(("ranks", "carriers"), [
    ((0, 1), []), ((0, 2), [("s1", "s2")]), ((4, 5), [("s3", "s4")]),
    ((0, 4), [("s1", "s2"), ("s3", "s4"), ("core",)]), (tuple(range(6)), [("s1", "s2"), ("s3", "s4"), ("core",)]),
])  # fmt: skip
def test_traffic_passes_what_lies_between_its_leafs(ranks: tuple[int, ...], carriers: list[tuple[str, ...]]) -> None:
    carrying = [one.names for one in spines_of(LEAF_OF, CORE) if one.carries(ranks)]
    assert sorted(carrying) == sorted(carriers)


def test_what_leaves_a_pod_passes_no_spine_without_a_switch_above() -> None:
    assert not any(one.carries((0, 4)) for one in spines_of(LEAF_OF, PODS))


def test_no_fabric_or_a_circle_joins_nothing_else() -> None:
    assert spines_of(LEAF_OF, {}) == ()
    one, *_ = spines_of({0: "a", 1: "b"}, {"a": ("s",), "b": ("s",), "s": ("t",), "t": ("s",)})
    assert (one.names, one.carries((0, 1))) == (("s", "t"), True)
