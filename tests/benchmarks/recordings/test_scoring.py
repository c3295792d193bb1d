from __future__ import annotations

from typing import Any

import pytest

from irregulars.messages.judgements import Suspect, Verdict
from tests.benchmarks.recordings.scoring import overlap, score

GPU_5 = Suspect("gpu", 5, (5,), 0.9, host="node-2", gpu=1, nic="eth1")
HOST_2 = Suspect("host", 4, (4, 5), 0.7, host="node-2")
NIC_5 = Suspect("nic", 5, (5,), 0.8, host="node-2", nic="eth1")
LINK = Suspect("link", 7, (7, 3), 0.8, peer=3)
LEAF = Suspect("switch", 0, (0, 1, 2, 3), 0.8, switch="leaf-0")


def verdict(kind: str, *suspects: Suspect, iterations: tuple[int, int] = (40, 60)) -> dict[str, Any]:
    return Verdict("id", 1, "closed", "job", kind, iterations, 1.5, 2.0, None, suspects, "because").to_json()


def label(kind: str, device: str | None, *ranks: int, **more: Any) -> dict[str, Any]:
    names = ("rank", "peer", "host", "switch", "direction")
    found = {"kind": kind, "device": device, "ranks": list(ranks), "iterations": [40, 60], "hard": False}
    return found | dict.fromkeys(names) | more


RANK_5 = label("slow_rank", "gpu", 5)


def test_kind_device_and_ranks_must_all_be_right() -> None:
    found = score([verdict("slow_rank", GPU_5)], RANK_5)
    assert (found.outcome, found.is_kind, found.is_device, found.is_ranks) == ("right", True, True, True)
    assert score([verdict("slow_nic", NIC_5)], RANK_5).outcome == "wrong"
    assert score([verdict("slow_communicator", GPU_5)], RANK_5).outcome == "wrong"


def test_a_host_is_not_its_gpu_and_one_gpu_is_not_its_host() -> None:
    found = score([verdict("slow_rank", HOST_2)], RANK_5)
    assert (found.outcome, found.is_kind, found.is_device, found.is_ranks) == ("wrong", True, False, False)
    host = label("slow_rank", "host", 4, 5, host="node-2")
    assert score([verdict("slow_rank", GPU_5)], host).outcome == "wrong"
    assert score([verdict("slow_rank", HOST_2)], host).outcome == "right"


def test_part_of_the_ranks_is_wrong() -> None:
    assert score([verdict("hang", Suspect("gpu", 5, (5, 6), 0.9))], label("hang", "gpu", 5)).outcome == "wrong"


def test_the_first_verdict_that_names_somebody_is_the_answer() -> None:
    found = score([verdict("imbalance"), verdict("slow_nic", NIC_5), verdict("slow_rank", GPU_5)], RANK_5)
    assert (found.outcome, found.accusations) == ("wrong", 2)
    assert score([verdict("imbalance"), verdict("slow_rank", GPU_5)], RANK_5).outcome == "right"


def test_nobody_accused_is_missed() -> None:
    assert score([], RANK_5).outcome == score([verdict("imbalance")], RANK_5).outcome == "missed"


@pytest.mark.parametrize(("rank", "peer", "is_direction"), [(7, 3, True), (3, 7, False)])
def test_a_link_has_its_ends_in_any_order_and_its_direction_is_told_apart(
    rank: int, peer: int, is_direction: bool
) -> None:
    truth = label("slow_link", "link", rank, peer, rank=rank, peer=peer, direction="send")
    found = score([verdict("slow_link", LINK)], truth)
    assert (found.outcome, found.is_direction) == ("right", is_direction)
    assert score([verdict("slow_link", LINK)], truth | {"direction": "both"}).is_direction is None
    assert score([verdict("slow_link", LINK)], truth | {"ranks": [7, 2]}).outcome == "wrong"


def test_a_switch_has_its_name_and_all_of_its_ranks() -> None:
    truth = label("slow_communicator", "switch", 0, 1, 2, 3, switch="leaf-0")
    assert score([verdict("slow_communicator", LEAF)], truth).outcome == "right"
    assert score([verdict("slow_communicator", LEAF)], truth | {"switch": "leaf-1"}).outcome == "wrong"
    assert score([verdict("slow_communicator", LEAF)], truth | {"ranks": [0, 1]}).outcome == "wrong"


@pytest.mark.parametrize("kind", ["imbalance", "slow_communicator"])
def test_where_nobody_is_to_be_accused_the_kind_must_be_said_and_nobody_named(kind: str) -> None:
    truth = label(kind, None, switch="spine-0")
    assert score([verdict(kind)], truth).outcome == "right"
    assert score([], truth).outcome == "missed"
    assert score([verdict("slow_stage" if kind == "imbalance" else "imbalance")], truth).outcome == "missed"
    assert score([verdict(kind), verdict("slow_rank", GPU_5)], truth).outcome == "wrong"
    assert score([verdict(kind, LEAF)], truth).outcome == "wrong"


def test_a_healthy_recording_is_right_if_nobody_is_named() -> None:
    truth = label("none", None) | {"iterations": [0, 0]}
    assert score([], truth).outcome == score([verdict("imbalance")], truth).outcome == "right"
    found = score([verdict("slow_rank", GPU_5), verdict("slow_nic", NIC_5)], truth)
    assert (found.outcome, found.accusations, found.overlap) == ("wrong", 2, None)


def test_the_overlap_is_that_of_the_answer() -> None:
    found = score([verdict("slow_rank", GPU_5, iterations=(50, 60))], RANK_5)
    assert found.overlap == 0.5
    assert overlap([0, 70], [0, 70]) == 1.0
