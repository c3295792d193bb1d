"""The ranks of a training job agree on an id of their start, and a start anew has another."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from irregulars.messages.announcements import Announcement
from irregulars.messages.records import Batch
from irregulars.producers.torch_hook.records.start import agreed_start
from tests.producers.torch_hook.sources import Rank

SCRIPT = """
import os
from torch import distributed
from irregulars.producers.torch_hook.records.start import agreed_start
distributed.init_process_group("gloo")
count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
start = agreed_start(count)
print("start", count, start, start == agreed_start(count) != agreed_start(count + 7), flush=True)
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
    assert agreed_start(0) is None


def test_all_that_a_rank_sends_bears_the_id_that_it_asked_for_once() -> None:
    ids = iter(["a", "b"])
    rank = Rank(0, start=lambda: next(ids))
    rank.train(2)
    rank.source.end()
    records = rank.source.poll(1000)
    assert {type(one) for one in records} == {Announcement, Batch}
    assert {one.header.start if isinstance(one, Batch) else one.start for one in records} == {"a"}
