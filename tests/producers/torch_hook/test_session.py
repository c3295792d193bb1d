"""A recording's begin and end: nothing of it is left behind. In processes of their own, which have torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.producers.torch_hook.processes import NEEDS_TORCH, run_python

pytestmark = NEEDS_TORCH
TORCH_THAT_LACKS_GROUPS = """
from torch.distributed import ProcessGroup, distributed_c10d as c10d
from irregulars import torch_comms
helper, send = c10d._new_process_group_helper, ProcessGroup.__dict__["send"]
del c10d._world
assert torch_comms.start(trace_dir="trace", hook="dispatcher") == "none"
assert c10d._new_process_group_helper is helper
assert ProcessGroup.__dict__["send"] is send
"""
TWO_IN_TURN = """
import gc
from irregulars import torch_comms
from irregulars.producers.torch_hook.session import Session
for _ in range(2):
    assert torch_comms.start(trace_dir="trace", hook="dispatcher") == "dispatcher"
    torch_comms.stop()
gc.collect()
assert not [one for one in gc.get_objects() if isinstance(one, Session)]
"""

MODEL_THAT_IS_GONE = """
import gc, weakref
import torch
from irregulars import torch_comms
assert torch_comms.start(trace_dir="trace", hook="dispatcher") == "dispatcher"
def train():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch_comms.watch_numerics(model, optimizer)
    for number in range(3):
        with torch_comms.iteration(number):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            gc.collect()  # the sensors live as long as the model that they measure
    watch = next(one for one in gc.get_objects() if type(one).__name__ == "NumericsWatch")
    assert watch._made is not None, "a step was measured"
    return [weakref.ref(one) for one in (model, model.weight, optimizer)]
held = train()
gc.collect()
assert [one() for one in held] == [None] * 3
torch_comms.stop()
"""


OTHER_TOOLS = """
import functools
import torch
from torch._C._distributed_c10d import Work
from torch.distributed import ProcessGroup, distributed_c10d as c10d
from irregulars import torch_comms

def replaced(owner, name):
    inner = getattr(owner, name)
    @functools.wraps(inner)
    def theirs(*args, **kwargs):
        return inner(*args, **kwargs)
    setattr(owner, name, theirs)
    return owner, name, theirs

functions = (torch, "save"), (c10d, "_new_process_group_helper"), (ProcessGroup, "send"), (Work, "wait")
assert torch_comms.start(trace_dir="trace", hook="dispatcher") == "dispatcher"
tools = [replaced(*one) for one in functions]
held = {1, 2}
torch_comms._session._hook._point_to_point._watch(held, 0)  # as the first send does
assert Work.wait.__wrapped__ is tools[-1][2], "what another tool did meanwhile is called"
for _ in range(2):  # the second recording begins with their functions
    torch_comms.stop()
    assert [name for owner, name, theirs in tools if getattr(owner, name) is not theirs] == []
    assert torch_comms.start(trace_dir="trace", hook="dispatcher") == "dispatcher"
torch_comms.stop()
"""

RESET_OF_THE_COMPILER = """
import torch, torch._dynamo
from irregulars import torch_comms
save = torch.save
assert torch_comms.start(trace_dir="trace", hook="dispatcher") == "dispatcher"
assert torch.save is not save
torch._dynamo.reset()
torch_comms.stop()
assert torch.save is save
"""

ERRORS_OF_A_DEVICE = """
import gc
from irregulars import torch_comms
from irregulars.producers.torch_hook import session

def broken(*_):
    raise RuntimeError("CUDA error: an illegal memory access was encountered")

assert torch_comms.start(trace_dir="trace", hook="dispatcher") == "dispatcher"
session.DeviceBoundary.is_possible = staticmethod(broken)
torch_comms._session._device_clock = session.DeviceClock()
torch_comms._session._process_groups.leave = broken
try:
    with torch_comms.iteration(0):
        raise KeyError("of the script")
except KeyError:
    pass
before = len(gc.callbacks)
torch_comms.stop()
assert len(gc.callbacks) == before - 1, "the rest was undone"
"""


def run(script: str, directory: Path) -> str:
    """Run a script to its end; return its log."""
    done = run_python("-c", script, directory=directory)
    assert done.returncode == 0, done.stderr
    return done.stderr


GROUP_WITH_SERVERS = """
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from irregulars import torch_comms
assert torch_comms.start(trace_dir="trace") != "none"
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
own = dist.PrefixStore("weights", store)
made, _ = c10d._new_process_group_helper(
    1, 0, [], dist.Backend("gloo"), own, group_name="weights", timeout=c10d.default_pg_timeout
)
c10d._world.pg_group_ranks[made] = {0: 0}
dist.new_group([0])
assert [one.communicator.id for one in torch_comms._session.groups.all] == ["world", "world.2"]
assert torch_comms._session.troubles.count == 0
torch_comms.stop()
"""


# Nothing is left behind by a start that failed, a stop, or a model; neither a script's own doing nor an error of ours
# raises into training; and a group with members outside of the job is none of its communicators: a trainer sends
# weights to servers over one, whose ranks are no ranks of the job, and would look hung.
SCRIPTS = {
    "failed start": TORCH_THAT_LACKS_GROUPS, "stop": TWO_IN_TURN, "model": MODEL_THAT_IS_GONE, "tools": OTHER_TOOLS,
    "reset": RESET_OF_THE_COMPILER, "device": ERRORS_OF_A_DEVICE, "servers": GROUP_WITH_SERVERS,
}  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_nothing_is_left_behind_and_nothing_raises_into_training(script: str, tmp_path: Path) -> None:
    run(script, tmp_path)


NOBODY_THERE = """
import os, time
import torch, torch.distributed as dist
from irregulars import torch_comms
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
store = dist.HashStore()
assert torch_comms.start({way}) != "none"
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
for _ in range(20):
    dist.all_reduce(torch.ones(8))
dist.destroy_process_group()
torch_comms.stop()
assert torch_comms.undelivered_rows() == 20, torch_comms.undelivered_rows()
"""


@pytest.mark.parametrize("way", ["bootstrap='127.0.0.1:1'", "agent='nobody.sock'"], ids=["Kafka", "agent"])
def test_a_recording_that_reaches_nobody_is_one_warning_with_its_rows(way: str, tmp_path: Path) -> None:
    log = run(NOBODY_THERE.replace("{way}", way), tmp_path)
    (line,) = [line for line in log.splitlines() if "event=torch_comms_undelivered" in line]
    assert "rows=20 recorded=20 " in line
    assert "training=unaffected" in line
    if "bootstrap" in way:
        assert "Kafka at 127.0.0.1:1 must answer" in line
        assert "torch_comms_trouble" not in log


BUSY_DISK = """
import fcntl, os, threading
import torch, torch.distributed as dist
from irregulars import torch_comms
from irregulars.producers.torch_hook import exporters
exporters.TraceDirectory.stop_s = {stop_s}
assert torch_comms.start(trace_dir="trace") != "none"
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(8))
os.makedirs("trace", exist_ok=True)
lock = os.open("trace/.lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)  # as another rank's, so that the assembly takes three seconds
threading.Timer(3.0, os.close, (lock,)).start()
torch_comms.stop()
dist.destroy_process_group()
assert os.path.exists("trace/job.json") == {is_whole}
"""


@pytest.mark.parametrize(("stop_s", "is_whole"), [("exporters.TraceDirectory.stop_s", True), ("0.0", False)])
def test_the_end_of_training_waits_for_the_directory_a_while(stop_s: str, is_whole: bool, tmp_path: Path) -> None:
    run(BUSY_DISK.format(stop_s=stop_s, is_whole=is_whole), tmp_path)


NO_GROUP = """
from irregulars import torch_comms
assert torch_comms.start(trace_dir="trace", hook="dispatcher") == "dispatcher"
with torch_comms.iteration(0):
    pass
torch_comms.stop()
"""


def test_a_script_without_a_process_group_is_told_why_it_leaves_no_trace(tmp_path: Path) -> None:
    (line,) = [line for line in run(NO_GROUP, tmp_path).splitlines() if "event=torch_comms_" in line]
    assert "event=torch_comms_empty reason='no process group was made" in line
    assert not list((tmp_path / "trace").glob("*"))
