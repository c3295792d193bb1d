"""Which nodes are cordoned and given back; no orchestrator is needed to know."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from irregulars.sinks.notices.actions.actions import HOUR_NS, ActionsMessage, decode_actions, encode_actions
from irregulars.sinks.notices.actions.actor import ActingLimits, Done, NodePlan, is_usable_host, plan_nodes
from tests.sinks.notices.made_up_notices import GPU, NOW_NS, VERDICT, notice_of


def message(host: str | None = "node-1", verdict_id: str = "v1", **changes: Any) -> ActionsMessage:
    suspect = replace(GPU, host=host, **{k: changes.pop(k) for k in ("probability", "ranks") if k in changes})
    verdict = replace(VERDICT, verdict_id=verdict_id, suspects=(suspect,), **changes)
    return decode_actions(encode_actions(notice_of(verdict)))


def plan(
    *messages: ActionsMessage, marks: Mapping[str, str] | None = None, done: Collection[Done] = (), most: int = 1,
    now_ns: int = NOW_NS,
) -> NodePlan:  # fmt: skip
    return plan_nodes({one.verdict_id: one for one in messages}, marks or {}, done, ActingLimits(most), now_ns)


def hosts(plan: NodePlan) -> list[str]:
    """Those that are begun if nothing is in the way."""
    return [one.host for one in plan.cordon[: plan.free]]


def test_no_more_nodes_than_allowed_and_the_costliest_first() -> None:
    messages = [message(f"node-{n}", f"v{n}", delta=1.0 + n) for n in range(1, 5)]
    found = plan(*messages, most=2)
    assert hosts(found) == ["node-4", "node-3"]
    assert [one.host for one in found.cordon[2:]] == ["node-2", "node-1"]
    assert set(found.accused) == {"node-1", "node-2", "node-3", "node-4"}
    assert hosts(plan(*messages, most=0)) == []


def test_a_node_of_two_incidents_is_cordoned_once_where_the_costlier_one_stands() -> None:
    costly, cheap = message("node-1", "v1", delta=4.0), message("node-1", "v2", delta=1.1)
    assert hosts(plan(costly, cheap, message("node-2", "v3", delta=2.0))) == ["node-1"]
    assert hosts(plan(message("node-1", "v1"), message("node-1", "v2"), most=5)) == ["node-1"]


def test_what_was_begun_stays_while_no_message_ends_it() -> None:
    first = message()
    marks = {"node-1": first.actions[0].action_id}
    assert plan(first, marks=marks, now_ns=NOW_NS + 30 * 24 * HOUR_NS).release == {}
    assert plan(message(probability=0.6), marks=marks).release == {}
    assert plan(message("node-2", "v2"), marks={"node-1": message().actions[0].action_id}).release == {}


def test_what_the_newest_message_does_not_name_is_given_back() -> None:
    """A channel that forgot what it had proposed: the message says nothing of node-1."""
    found = plan(message("node-2"), marks={"node-1": message("node-1").actions[0].action_id}, most=1)
    assert found.release == {"node-1": "its incident does not propose it any more"}
    assert hosts(found) == ["node-2"]


def test_a_node_that_another_incident_accuses_too_is_kept() -> None:
    first, other = message("node-1", "v1"), message("node-1", "v2")
    closed = message("node-1", "v1", state="closed", close_reason="recovered", event="closed")
    marks = {"node-1": first.actions[0].action_id}
    assert plan(closed, other, marks=marks).release == {}
    both_closed = message("node-1", "v2", state="closed", close_reason="recovered", event="closed")
    assert list(plan(closed, both_closed, marks=marks).release) == ["node-1"]


@pytest.mark.parametrize(("one", "now_ns", "reason"), [
    (message(probability=0.89), NOW_NS, "improbable"),
    (message(), NOW_NS + HOUR_NS + 1, "expired"),
    (message(time_ns=None), NOW_NS, "expired"),
    (message(), NOW_NS - HOUR_NS, "future"),
    (message(host=None), NOW_NS, "unusable"),
    (message(host="node-[0-99]"), NOW_NS, "unusable"),
    (message(host="ALL"), NOW_NS, "unusable"),
])  # fmt: skip
def test_what_is_not_begun_has_a_reason(one: ActionsMessage, now_ns: int, reason: str) -> None:
    found = plan(one, now_ns=now_ns)
    assert (hosts(found), [why for _, why in found.left]) == ([], [reason])


@pytest.mark.parametrize(
    "host", ["ALL", "all", "a,b", "a b", "node-[1-3]", "", "-n", "n-", "a/b", "..", "a\n", "é", "n" * 254]
)
def test_a_name_that_may_mean_several_nodes_is_none(host: str) -> None:
    assert not is_usable_host(host)


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("uvwx"), st.booleans()), max_size=12),
    st.integers(0, 3),
)
def test_carrying_a_plan_out_leads_to_one_that_does_nothing(told: list[tuple[str, str, bool]], most: int) -> None:
    """In whatever order incidents of hosts open and close, and wherever a consumer dies and starts again."""
    known: dict[str, ActionsMessage] = {}
    marks: dict[str, str] = {}
    for host, verdict_id, is_closed in told:
        end = {"state": "closed", "close_reason": "recovered", "event": "closed"} if is_closed else {}
        known[verdict_id] = message(host, verdict_id, **end)
        found = plan(*known.values(), marks=marks, most=most)
        marks = {name: mark for name, mark in marks.items() if name not in found.release}
        marks |= {one.host: one.action.action_id for one in found.cordon[: found.free]}
        assert len(marks) <= most
        again = plan(*known.values(), marks=marks, most=most)
        assert (hosts(again), dict(again.release)) == ([], {})
