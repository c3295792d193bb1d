"""A recording's begin and end: nothing of it is left behind. In processes of their own, which have torch."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    find_spec("torch") is None, reason="torch must be installed for tests of the hook (extra torch); it is not"
)

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 100.0

TORCH_THAT_LACKS_GROUPS = """
from torch.distributed import ProcessGroup, distributed_c10d as c10d
from producers import torch_comms
helper, send = c10d._new_process_group_helper, ProcessGroup.__dict__["send"]
del c10d._world
assert torch_comms.start(trace_dir="trace", hook="dispatcher") == "none"
assert c10d._new_process_group_helper is helper
assert ProcessGroup.__dict__["send"] is send
"""

TWO_IN_TURN = """
import gc
from producers import torch_comms
from irregulars.producers.torch_hook.session import Session
for _ in range(2):
    assert torch_comms.start(trace_dir="trace", hook="dispatcher") == "dispatcher"
    torch_comms.stop()
gc.collect()
assert not [one for one in gc.get_objects() if isinstance(one, Session)]
"""


@pytest.mark.parametrize("script", [TORCH_THAT_LACKS_GROUPS, TWO_IN_TURN], ids=["failed start", "stop"])
def test_nothing_is_left_behind(script: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{script}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
