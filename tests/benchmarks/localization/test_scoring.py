from __future__ import annotations

import ast
from typing import Any

import pytest

from irregulars.messages.judgements import Suspect, Verdict
from tests.benchmarks.localization import report, scoring
from tests.benchmarks.localization.scoring import Truth, accusations, device_of, is_hang_right, score

GPU_5 = Suspect("gpu", 5, (5,), 0.9, host="node-0", gpu=5, nic="mlx5_5")
GPU_6 = Suspect("gpu", 6, (6,), 0.6, host="node-0", gpu=6, nic="mlx5_6")
HOST_0 = Suspect("host", 0, tuple(range(8)), 0.7, host="node-0")
NIC_5 = Suspect("nic", 5, (5,), 0.8, host="node-0", nic="mlx5_5")
LINK = Suspect("link", 9, (9, 1), 0.8, peer=1)
SWITCH = Suspect("switch", 0, tuple(range(32)), 0.8, switch="leaf-0")
RANK_5 = Truth("slow_rank", (("gpu", 5),))


def verdict(kind: str, *suspects: Suspect) -> dict[str, Any]:
    return Verdict("id", 1, "closed", "job", kind, (10, 20), 1.5, 2.0, None, suspects, "because").to_json()


def test_the_first_suspect_of_the_right_kind_is_right() -> None:
    found = score([verdict("slow_rank", GPU_5, GPU_6)], RANK_5)
    assert (found.is_top1, found.is_top2, found.is_device, found.is_kind, found.is_nobody) == (True,) * 4 + (False,)
    assert (found.further, found.promises) == (0, ((0.9, True),))


def test_a_second_suspect_is_top_2_and_not_top_1() -> None:
    found = score([verdict("slow_rank", GPU_6, GPU_5)], RANK_5)
    assert (found.is_top1, found.is_top2, found.is_device) == (False, True, False)
    assert found.promises == ((0.6, False),)


def test_a_third_suspect_is_nothing() -> None:
    assert not score([verdict("slow_rank", GPU_6, HOST_0, GPU_5)], RANK_5).is_top2


def test_the_second_verdict_gives_the_second_suspect() -> None:
    found = score([verdict("slow_rank", GPU_6), verdict("slow_rank", GPU_5)], RANK_5)
    assert (found.is_top1, found.is_top2, found.further) == (False, True, 0)


def test_a_further_accusation_is_counted_and_the_answer_stays_right() -> None:
    found = score([verdict("slow_rank", GPU_5), verdict("slow_nic", NIC_5)], RANK_5)
    assert (found.is_top1, found.further) == (True, 1)
    assert found.promises == ((0.9, True), (0.8, False))


def test_nobody_accused_is_wrong() -> None:
    found = score([], RANK_5)
    assert (found.is_top1, found.is_nobody, found.promises) == (False, True, ())


def test_verdicts_without_suspects_accuse_nobody_and_hide_no_answer() -> None:
    assert score([verdict("slow_communicator")], RANK_5).is_nobody
    assert score([verdict("imbalance"), verdict("slow_rank", GPU_5)], RANK_5).is_top1


def test_a_host_is_not_its_gpu() -> None:
    assert not score([verdict("slow_rank", HOST_0)], RANK_5).is_top1
    assert not score([verdict("slow_rank", GPU_5)], Truth("slow_rank", (("host", "node-0"),))).is_top1


def test_the_right_device_under_another_kind_is_the_device_alone() -> None:
    found = score([verdict("slow_communicator", NIC_5)], Truth("slow_nic", (("nic", "node-0", "mlx5_5"),)))
    assert (found.is_top1, found.is_device, found.is_kind) == (False, True, False)


def test_any_of_several_culprits_is_right() -> None:
    truth = Truth("slow_rank", (("gpu", 3), ("gpu", 5)))
    assert score([verdict("slow_rank", GPU_5)], truth).is_top1


def test_a_link_has_two_ends_in_any_order() -> None:
    assert score([verdict("slow_link", LINK)], Truth("slow_link", (("link", 1, 9),))).is_top1
    assert not score([verdict("slow_link", LINK)], Truth("slow_link", (("link", 1, 10),))).is_top1


@pytest.mark.parametrize(
    ("suspect", "name"),
    [
        (GPU_5, ("gpu", 5)), (HOST_0, ("host", "node-0")), (NIC_5, ("nic", "node-0", "mlx5_5")),
        (LINK, ("link", 1, 9)), (SWITCH, ("switch", "leaf-0")),
        (Suspect("stage", 4, (4, 5), 0.5), ("stage", 4, 5)),
    ],
)  # fmt: skip
def test_devices_have_one_name(suspect: Suspect, name: tuple[Any, ...]) -> None:
    assert device_of(verdict("slow_rank", suspect)["suspects"][0]) == name


def test_uneven_data_is_right_where_it_is_named_and_no_device_accused() -> None:
    truth = Truth("imbalance", ())
    assert score([verdict("imbalance")], truth).is_top1
    assert not score([], truth).is_top1
    assert not score([verdict("imbalance"), verdict("slow_rank", GPU_5)], truth).is_top1


def test_a_hang_names_those_that_did_not_arrive_and_nobody_else() -> None:
    assert is_hang_right([verdict("hang", GPU_5)], {5, 6})
    assert not is_hang_right([verdict("hang", GPU_5)], {6})
    assert not is_hang_right([verdict("slow_rank", GPU_5)], {5})
    assert not is_hang_right([verdict("hang", GPU_5), verdict("slow_rank", GPU_6)], {5})


def test_accusations_of_devices_and_blameless_verdicts_are_told_apart() -> None:
    stage = Suspect("stage", 4, (4, 5), 0.5)
    found = [verdict("slow_rank", GPU_5), verdict("imbalance"), verdict("slow_stage", stage),
             verdict("slow_communicator")]  # fmt: skip
    assert accusations(found) == (1, 3)


@pytest.mark.parametrize("module", [scoring, report])
def test_scoring_knows_no_detector(module: Any) -> None:
    with open(module.__file__, encoding="utf-8") as source:
        tree = ast.parse(source.read())
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    own = ("tests.benchmarks.localization", "irregulars.messages.judgements")
    assert [name for name in names if name.startswith(("tests.", "irregulars")) and not name.startswith(own)] == []
