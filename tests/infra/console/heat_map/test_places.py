"""Orders of rows: every rank once, groups together, as people sort names."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from irregulars.infra.console.heat_levels import ORDERS, UNKNOWN, Names, Places, order_of, orders_of, peers_of

NONE = Names((), np.full(16, UNKNOWN))


def names(*texts: str) -> Names:
    known = sorted(set(texts))
    return Names(known, np.array([known.index(text) for text in texts]))


def places(**groups: Names) -> Places:
    """16 ranks on four hosts."""
    host = names(*(f"node-{9 + rank // 4}" for rank in range(16)))
    return Places(np.arange(16), np.arange(16) % 4, host, NONE, NONE, groups)


PP = names(*(f"pp-{rank % 8}" for rank in range(16)))
TP = names(*(f"tp-{rank // 2}" for rank in range(16)))


@given(st.sampled_from(sorted(ORDERS)))
def test_each_order_has_every_rank_once(name: str) -> None:
    order = order_of(places(pp=PP, tp=TP), name, np.arange(16) % 5)
    assert sorted(order.rows.tolist()) == list(range(16))
    assert len(order.borders) == len(order.labels)


def test_hosts_stand_in_the_order_of_their_numbers() -> None:
    assert list(order_of(places(), "host").labels) == ["node-9", "node-10", "node-11", "node-12"]
    assert list(order_of(places(), "host").borders) == [0, 4, 8, 12]


def test_a_stage_is_the_place_in_the_pipeline() -> None:
    order = order_of(places(pp=PP), "stage")
    assert list(order.labels) == ["stage 0", "stage 1"]
    assert peers_of(places(pp=PP)).tolist() == [1] * 8 + [2] * 8


def test_ranks_that_were_not_announced_come_last() -> None:
    unsure = Names(["node-1"], np.array([UNKNOWN, 0] + [UNKNOWN] * 14))
    order = order_of(Places(np.arange(16), np.arange(16), unsure, NONE, NONE, {}), "host")
    assert order.rows[0] == 1
    assert list(order.labels) == ["node-1", "not announced"]


def test_only_orders_that_the_job_knows_of_are_offered() -> None:
    assert orders_of(places()) == ["rank", "host", "strange"]
    assert orders_of(places(pp=PP, tp=TP)) == ["rank", "host", "stage", "tp", "strange"]


def test_the_strangest_stand_on_top() -> None:
    assert order_of(places(), "strange", np.arange(16)).rows[0] == 15
