"""The ranks of a training job agree on an id of their start, and a start anew has another."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from irregulars.messages.announcements import Announcement
from irregulars.messages.records import Batch
from irregulars.producers.torch_hook.identity import Start, agreed_start
from tests.producers.torch_hook.sources import Rank

SCRIPT = """
import os
from torch import distributed
from irregulars.producers.torch_hook.identity import agreed_start
distributed.init_process_group("gloo")
count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
rank = distributed.get_rank()
start = agreed_start(count, rank)
again, other = agreed_start(count, rank), agreed_start(count + 7, rank)
is_right = again == (start.id, True) and other.id != start.id and not (start.is_again or other.is_again)
print("start", count, start.id, is_right, flush=True)
distributed.barrier()
raise SystemExit(count == 0)
"""


def test_ranks_agree_and_a_restart_by_torchrun_has_another_id(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=3",
        "--max-restarts=1",
    ]
    # In the store that torchrun shares with its ranks, gloo meets its own addresses of the start before.
    own_store = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(
        [*torchrun, "train.py"], cwd=tmp_path, env=own_store, capture_output=True, text=True, timeout=300, check=False
    )
    told = sorted(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("start "))
    assert [count for count, *_ in told] == ["0"] * 3 + ["1"] * 3, done.stderr
    assert {stays for *_, stays in told} == {"True"}
    ids = [{start for count, start, _ in told if count == number} for number in "01"]
    assert [len(one) for one in ids] == [1, 1]
    assert ids[0] != ids[1]


def test_without_a_process_group_there_is_no_id() -> None:
    assert agreed_start(0, 0) == (None, False)


def test_all_that_a_rank_sends_bears_the_id_that_it_asked_for_once() -> None:
    ids = iter([Start("a"), Start("b")])
    rank = Rank(0, start=lambda rank: next(ids))
    rank.train(2)
    rank.source.end()
    records = rank.source.poll(1000)
    assert {type(one) for one in records} == {Announcement, Batch}
    assert {one.header.start if isinstance(one, Batch) else one.start for one in records} == {"a"}


def test_a_process_that_comes_up_as_a_rank_that_another_one_was_says_since_when() -> None:
    began_ns = time.time_ns()
    rank = Rank(0, start=lambda rank: Start("a", is_again=True))
    rank.train(2)
    rank.source.end()
    records = rank.source.poll(1000)
    (since_ns,) = {one.header.since_ns if isinstance(one, Batch) else one.since_ns for one in records}
    assert since_ns is not None
    assert began_ns <= since_ns <= time.time_ns()


@pytest.mark.parametrize("starts", [("a", "a"), (None, None), ("a", "b")])
def test_a_process_that_goes_on_elsewhere_announces_it_with_rows_that_count_from_0(
    starts: tuple[str | None, str | None],
) -> None:
    asked = []

    def ask(number: int) -> Start:
        asked.append(number)
        return Start(starts[len(asked) - 1], is_again=starts == ("a", "a") and len(asked) > 1)

    rank = Rank(1, start=ask)
    rank.train(3)
    time.sleep(0.03)  # a row is given when it has ended for 20 ms
    before = rank.source.poll(1000)
    rank.groups.start_over()
    rank.place = None
    assert not [one for one in rank.source.poll(1000) if isinstance(one, Announcement)]
    rank.groups.add("0", (0,), 1, "default_pg", 2)
    assert not [
        one for one in rank.source.poll(1000) if isinstance(one, Announcement)
    ]  # torch does not say who we are
    rank.place = (0, 1)
    rank.train(2)
    rank.source.end()
    announcement, *batches = rank.source.poll(1000)
    assert isinstance(announcement, Announcement)
    assert asked == [1, 0]
    assert (announcement.rank, announcement.world_size, announcement.start) == (0, 1, starts[1])
    assert [one.id for one in announcement.communicators] == ["world"]
    assert (announcement.since_ns == rank.groups.since_ns) is (starts != ("a", "b"))
    own = [one.header for one in batches if isinstance(one, Batch)]
    assert {(one.rank, one.start, one.since_ns, one.rows_before) for one in own} == {
        (0, starts[1], announcement.since_ns, 0)
    }
    assert {one.schema for one in own} == {"commops", "iterations"}
    assert sum(len(one) for one in before if isinstance(one, Batch)) == 6
