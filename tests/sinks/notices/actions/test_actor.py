"""What a consumer does with messages, whenever it dies and whatever comes twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from confluent_kafka import Message

from irregulars.messages.judgements import Verdict
from irregulars.sinks.notices.actions.actions import encode_actions
from irregulars.sinks.notices.actions.actor import ActingLimits, Actor
from irregulars.sinks.notices.actions.feed import Polled
from tests.sinks.notices.actions.memory_nodes import MemoryNodes, Received
from tests.sinks.notices.made_up_notices import GPU, NOW_NS, VERDICT, notice_of

RECOVERED: dict[str, Any] = {"state": "closed", "close_reason": "recovered", "event": "closed", "revision": 9}


def on(host: str, verdict_id: str = "v1", **changes: Any) -> Verdict:
    return replace(VERDICT, verdict_id=verdict_id, suspects=(replace(GPU, host=host),), **changes)


class Scene:
    """Nodes, and a consumer that can be killed."""

    def __init__(self, *hosts: str, most: int = 1, is_acting: bool = True) -> None:
        self.nodes = MemoryNodes(dict.fromkeys(hosts))
        self.lines: list[str] = []
        self.now_ns = NOW_NS
        self._told: list[bytes] = []
        self._options = (ActingLimits(most), is_acting)
        self.restart()

    def restart(self) -> None:
        limits, is_acting = self._options
        self.actor = Actor(self.nodes, limits, is_acting, self.lines.append, lambda: self.now_ns)
        self._take(self._told)

    def tell(self, *verdicts: Verdict) -> None:
        events = {"open": "opened", "closed": "resolved"}
        new = [encode_actions(notice_of(one, events[one.state])) for one in verdicts]  # type: ignore[arg-type]
        self._told += new
        self._take(new)

    def act(self, *verdicts: Verdict) -> None:
        """Tell of verdicts, if any, and act."""
        if verdicts:
            self.tell(*verdicts)
        self.actor.act()

    def say(self, data: bytes) -> None:
        self._take([data])

    def _take(self, values: list[bytes]) -> None:
        messages = tuple(cast(Message, Received(value)) for value in values)
        self.actor.apply(Polled(messages, is_current=True))


def test_without_do_it_nothing_is_touched_and_all_is_said_once() -> None:
    scene = Scene("node-1", is_acting=False)
    scene.act(on("node-1"))
    scene.act()
    assert (scene.nodes.calls, scene.nodes.accused, len(scene.lines)) == ([], [], 1)
    assert scene.lines[0] == (
        "would cordon   node-1: slow rank in llama: GPU 0 on node-1 (rank 8, NIC mlx5_1), 95% sure, "
        "32 GPU-hours lost an hour  [v1]"
    )


def test_messages_that_come_twice_or_late_and_a_death_in_between_do_nothing_twice() -> None:
    scene = Scene("node-1")
    scene.act(on("node-1"), on("node-1"))
    scene.restart()
    scene.act(on("node-1"))
    assert scene.nodes.calls == ["cordon node-1"]
    scene.tell(on("node-1", **RECOVERED))
    scene.restart()
    scene.act()
    scene.restart()
    scene.act(on("node-1"))
    assert scene.nodes.calls == ["cordon node-1", "release node-1"]


def test_at_most_so_many_nodes_are_cordoned_and_the_next_when_one_is_free() -> None:
    scene = Scene("node-1", "node-2", most=1)
    scene.act(on("node-1", "v1", delta=3.0), on("node-2", "v2"))
    assert scene.nodes.calls == ["cordon node-1"]
    assert "left       node-2: as many nodes as --most-nodes are cordoned by us already  [v2]" in scene.lines
    assert scene.nodes.accused == ["node-1", "node-2"]
    scene.act(on("node-1", "v1", **RECOVERED))
    assert scene.nodes.calls == ["cordon node-1", "release node-1", "cordon node-2"]


def changed(device: str = "gpu") -> Verdict:
    return replace(VERDICT, verdict_id="v1", revision=2, suspects=(replace(GPU, device=device),))


@pytest.mark.parametrize("device", ["gpu", "host"])
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("others", [(), ("v2",)])  # incidents that accuse the node too
def test_what_somebody_gives_back_by_hand_is_taken_by_another_incident_alone(
    device: str, is_restarted: bool, others: tuple[str, ...]
) -> None:
    scene = Scene("node-1")
    for verdict_id in ("v1", *others):
        scene.act(on("node-1", verdict_id))
    if is_restarted:
        scene.restart()
        scene.act()
    scene.nodes.owners["node-1"] = None
    scene.act()
    scene.act(changed(device))
    assert scene.nodes.calls == ["cordon node-1"]
    assert "left       node-1: it was done before, and undone by somebody  [v1]" in scene.lines
    scene.act(on("node-1", "v3"))
    assert scene.nodes.calls == ["cordon node-1"] * 2


@pytest.mark.parametrize("device", ["gpu", "host"])
def test_what_nodes_show_to_be_undone_is_not_begun_again(device: str) -> None:
    scene = Scene("node-1")
    scene.act(on("node-1"))
    scene.nodes.undone = {"node-1": str(scene.nodes.owners["node-1"])}
    scene.nodes.owners["node-1"] = None
    scene.restart()
    scene.act(changed(device))
    assert scene.nodes.calls == ["cordon node-1"]


def test_a_device_that_is_accused_again_after_we_gave_it_back_is_taken_again() -> None:
    scene = Scene("node-1")
    scene.act(on("node-1"))
    scene.act(on("node-2", revision=2))  # the verdict changes to a device of another host …
    scene.act(on("node-1", revision=3))  # … and back
    assert scene.nodes.calls == ["cordon node-1", "release node-1", "cordon node-1"]
    assert len([line for line in scene.lines if line.startswith("cordoned")]) == 2


def test_a_node_of_somebody_else_is_left_and_said_once() -> None:
    scene = Scene("node-1")
    scene.nodes.owners["node-1"] = "ada"
    scene.act(on("node-1"))
    scene.act()
    assert (scene.nodes.calls, scene.lines) == ([], ["left       node-1: it is ada's  [v1]"])


@pytest.mark.parametrize("is_acting", [True, False])
def test_a_node_that_is_not_ours_to_take_keeps_no_other_from_being_taken(is_acting: bool) -> None:
    """Else one that a person drained, and that costs most, would hold the only place for as long as it is accused."""
    scene = Scene("node-1", "node-2", most=1, is_acting=is_acting)
    scene.nodes.owners["node-1"] = "ada"
    scene.act(on("node-1", "v1", delta=9.0), on("node-2", "v2"))
    assert scene.nodes.calls == (["cordon node-2"] if is_acting else [])
    assert [line.split(":")[0] for line in scene.lines] == [
        "left       node-1", "cordoned   node-2" if is_acting else "would cordon   node-2",
    ]  # fmt: skip


def test_that_an_orchestrator_is_away_is_said_once_and_that_it_is_back() -> None:
    scene = Scene("node-1")
    scene.tell(on("node-1"))
    scene.nodes.away = 3
    assert [scene.actor.try_to_act() for _ in range(5)] == [False, False, False, True, True]
    assert [line[:11].strip() for line in scene.lines] == ["waiting", "cordoned", "going on"]
    assert scene.nodes.calls == ["cordon node-1"]


def test_a_node_that_can_not_be_changed_keeps_no_other_from_being_cordoned() -> None:
    scene = Scene("node-1", "node-2", most=1)
    scene.nodes.stuck = {"node-1"}
    scene.tell(on("node-1", "v1", delta=9.0), on("node-2", "v2"))
    assert [scene.actor.try_to_act() for _ in range(2)] == [False, True]
    assert scene.nodes.calls == ["cordon node-1", "cordon node-2"]
    assert scene.nodes.accused == ["node-1", "node-2"]
    assert scene.lines[0].startswith("cordoned   node-2: ")
    assert scene.lines[1:] == [
        "left       node-1: node node-1 must be changed; got a refusal",
        "waiting    all nodes of the plan must be changed; got errors of node-1; asking every 10 s",
        "left       node-1: as many nodes as --most-nodes are cordoned by us already  [v1]",
        "going on   it answers again",
    ]


def test_an_outage_behind_a_node_that_can_not_be_changed_is_said_too() -> None:
    scene = Scene("node-1")
    scene.nodes.stuck = {"node-1"}
    scene.tell(on("node-1"))
    scene.actor.try_to_act()
    scene.nodes.away = 2
    scene.actor.try_to_act()
    scene.actor.try_to_act()
    assert [line.split("must")[0] for line in scene.lines if line.startswith("waiting")] == [
        "waiting    all nodes of the plan ", scene.lines[-1].split("must")[0],
    ]  # fmt: skip


def test_of_many_nodes_that_can_not_be_changed_some_are_tried_at_a_time() -> None:
    hosts = [f"node-{number}" for number in range(10)]
    scene = Scene(*hosts, most=10)
    scene.nodes.stuck = set(hosts)
    scene.tell(*(on(host, host) for host in hosts))
    assert not scene.actor.try_to_act()
    assert 0 < sum(line.startswith("left") for line in scene.lines) < 5


def test_a_node_that_can_not_be_given_back_keeps_no_other_and_its_place_is_not_free() -> None:
    scene = Scene("node-1", "node-2", "node-3", "node-4", most=2)
    scene.act(on("node-1", "v1"), on("node-2", "v2"))
    scene.nodes.stuck, scene.nodes.calls = {"node-1"}, []
    scene.tell(on("node-1", "v1", **RECOVERED), on("node-2", "v2", **RECOVERED))
    scene.tell(on("node-3", "v3", delta=9.0), on("node-4", "v4"))
    assert not scene.actor.try_to_act()
    assert scene.nodes.calls == ["release node-1", "release node-2", "cordon node-3"]
    assert not scene.actor.try_to_act()
    assert len([line for line in scene.lines if line.endswith("node-1 must be changed; got a refusal")]) == 1
    scene.nodes.stuck = set()
    assert scene.actor.try_to_act()
    assert scene.nodes.calls[3:] == ["release node-1", "release node-1", "cordon node-4"]


def test_a_node_that_was_cordoned_though_the_answer_got_lost_counts() -> None:
    scene = Scene("node-1", "node-2", most=1)
    scene.nodes.stuck, scene.nodes.is_answer_lost = {"node-1"}, True
    scene.tell(on("node-1", "v1", delta=9.0), on("node-2", "v2"))
    assert not scene.actor.try_to_act()
    assert scene.nodes.calls == ["cordon node-1"]


def test_a_message_that_cannot_be_read_is_passed_over_and_a_new_owner_of_the_topic_knows_none() -> None:
    scene = Scene("node-1")
    scene.say(b"?")
    scene.tell(on("node-1"))
    assert scene.lines[0].startswith("skipped    message at offset 7: message must be JSON")
    # It reads all anew: what was deleted meanwhile must not count.
    scene.actor.apply(Polled((), is_current=False, is_new_owner=True))
    scene.act()
    assert scene.nodes.calls == []
    scene.act(on("node-1"))
    assert scene.nodes.calls == ["cordon node-1"]
