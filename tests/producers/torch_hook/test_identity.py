"""Whether the machine has GPUs, and the id of a start, on which the ranks of a training job agree."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from irregulars.producers.torch_hook.identity import agreed_start, identity_of, machine_has_gpus


@pytest.mark.parametrize(("names", "has_gpus"), [
    ((), False), (("null", "nvidiactl", "nvidia-caps"), False), (("nvidia0",), True), (("kfd",), True),
    (("dxg",), True), (("nvidia1", "nvidia0"), True), (("nvidia2", "nvidia3"), False), (("nvidia1",), False),
])  # fmt: skip
def test_gpus_are_seen_by_their_device_files(tmp_path: Path, names: tuple[str, ...], has_gpus: bool) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert machine_has_gpus(tmp_path) is has_gpus


@pytest.mark.parametrize(("environment", "gpu"), [
    ({"CUDA_VISIBLE_DEVICES": "0"}, None),  # a control group for each process
    ({"CUDA_VISIBLE_DEVICES": "3"}, 3),  # a script that shows each process its own
    ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "4,5"}, 5),  # a control group for the job
    ({"CUDA_VISIBLE_DEVICES": "4,5", "SLURM_STEP_GPUS": "4,5"}, 5),  # none
    ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "6,7"}, 7),  # torchrun in the batch script
    ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "6,7", "SLURM_STEP_ID": "0"}, 1),  # of another host
    ({"SLURM_STEP_GPUS": "2,3"}, 3), ({"SLURM_STEP_GPUS": "0-3"}, 1),
    ({"ROCR_VISIBLE_DEVICES": "4,5,6,7"}, 5),
    ({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1,0"}, 4),
    ({"HIP_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "2,3"}, 3),
])  # fmt: skip
def test_a_gpu_has_the_index_of_the_host_or_none(environment: dict[str, str], gpu: int | None) -> None:
    # Another one's index names a healthy device, and gives a rank the health and the NIC of that one.
    assert identity_of(None, None, None, {"LOCAL_RANK": "1"} | environment).gpu == gpu


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
os.write(1, f"start {count} {start.id} {is_right}\\n".encode())  # at once: lines of three processes must not mix
distributed.barrier()
raise SystemExit(count == 0)
"""


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="torch must be installed (make torch); it is not")
def test_ranks_agree_and_a_restart_by_torchrun_has_another_id(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node=3 --max-restarts=1".split()
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
