"""A job that publishes itself from a thread: simulated, or trained by four processes on this machine."""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

from irregulars.errors import ServiceUnavailable
from irregulars.infra.runs.child_process import ChildProcess, free_port
from irregulars.messages.records import Batch
from irregulars.producers.publishing.agent import Agent, AgentSettings, Progress
from irregulars.producers.publishing.sources import PassingSource, Record, Source
from irregulars.producers.simulator.settings import SimulatorSettings
from irregulars.producers.simulator.source import SimulatorSource
from irregulars.producers.torch_hook.agent_socket import SocketSource

_STOP_S: Final = 20.0


class WatchedSource(PassingSource):
    """A source that lets its records through and keeps each iteration's time: the largest of its ranks'."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._elapsed_ns: dict[int, float] = {}

    def poll(self, max_records: int) -> Sequence[Record]:
        """Poll the source, and keep its iterations' times."""
        records = super().poll(max_records)
        for record in records:
            if isinstance(record, Batch) and record.header.schema == "iterations":
                own = (record.columns[name].tolist() for name in ("iteration", "elapsed_ns"))
                for iteration, elapsed_ns in zip(*own, strict=True):
                    self._elapsed_ns[iteration] = max(elapsed_ns, self._elapsed_ns.get(iteration, 0.0))
        return records

    def iteration_times_s(self) -> list[float]:
        """Times of the iterations so far, in their order, seconds."""
        # A copy first: the agent's thread adds to it.
        return [elapsed_ns / 1e9 for _, elapsed_ns in sorted(dict(self._elapsed_ns).items())]


class PublishedRun:
    """A source that is published from a thread. Use it as a context: leaving it stops the publishing cleanly."""

    def __init__(self, source: Source, agent: AgentSettings) -> None:
        self.source = WatchedSource(source)
        self._agent = Agent(self.source, agent)
        self._thread = threading.Thread(target=self._run, name="published-job", daemon=True)
        self._failure: BaseException | None = None
        self.done: Progress | None = None

    @property
    def is_running(self) -> bool:
        """Whether the source has not ended; raises the error of an agent that failed."""
        if self._failure is not None:
            raise self._failure
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.done = self._agent.run()
        except BaseException as error:  # shown by the thread that watches
            self._failure = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._agent.stop()
        # The thread is a daemon: one that hangs does not keep the process alive.
        self._thread.join(_STOP_S)


class SimulatedRun(PublishedRun):
    """A simulated job at real pace, beginning now."""

    def __init__(self, job: SimulatorSettings, agent: AgentSettings) -> None:
        super().__init__(SimulatorSource(job, start_ns=time.time_ns(), now_ns=time.time_ns), agent)


_RANK_STOP_S: Final = 5.0


class LiveRun(PublishedRun):
    """Four processes of this module, whose operators come over a local socket, as on a node.

    `plan`: Length of the job, and its fault. Raises `ModuleNotFoundError` if torch is not installed.
    """

    def __init__(self, plan: LivePlan, job: str, agent: AgentSettings) -> None:
        if find_spec("torch") is None:
            raise ModuleNotFoundError("torch must be installed", name="torch")
        self._plan, self._job = plan, job
        self._stack = ExitStack()
        self._directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="irregulars-live-")))
        self._ranks: list[ChildProcess] = []
        super().__init__(SocketSource(self._directory / "agent.sock", ranks=RANKS), agent)

    @property
    def is_running(self) -> bool:
        """Whether training goes on; raises `ServiceUnavailable` with its last words if a rank failed."""
        for rank in self._ranks:
            if not rank.is_running and rank.status != 0:
                raise ServiceUnavailable(f"{rank.name} must train to the end; it ended: {rank.last_words()}")
        return super().is_running

    def __enter__(self) -> LiveRun:
        super().__enter__()
        port = free_port()
        arguments = [
            sys.executable, "-P", "-W", "ignore", "-m", "irregulars.infra.runs.published_run", "--job", self._job,
            "--agent", str(self._directory / "agent.sock"), "--iterations", str(self._plan.iterations),
            "--stall-s", str(self._plan.stall_s),
        ]  # fmt: skip
        for rank in range(RANKS):
            environment = {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
                "TORCHINDUCTOR_CACHE_DIR": str(self._directory / "torch"),  # else torch leaves a folder behind
            }  # fmt: skip
            log = self._directory / f"rank-{rank}.log"
            self._ranks.append(ChildProcess(f"rank {rank}", arguments, log, environment=environment))
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for rank in self._ranks:
            rank.stop(_RANK_STOP_S)
        self._stack.close()


RANKS = 4
WIDTH = 256
BATCH = 64
WARM_UP = 5  # unmarked steps before the first iteration: connections are made, buckets rebuilt, caches filled


@dataclass(frozen=True, slots=True)
class LivePlan:
    """How long the job is, and who is slow when.

    `first`, `past`: Iterations in which rank `rank` loads its data `stall_s` seconds longer.
    """

    iterations: int = 160
    rank: int = 2
    first: int = 70
    past: int = 110
    stall_s: float = 0.1

    @property
    def text(self) -> str:
        """The planned fault in words."""
        return (
            f"rank {self.rank} loads its data {self.stall_s:g} s longer in iterations {self.first} to {self.past - 1}"
        )


def train(plan: LivePlan, trace_dir: str | None, agent: str | None, job: str, pause_s: float) -> None:
    """Train as one rank, which the environment names (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT``)."""
    import torch
    from torch import distributed
    from torch.distributed import new_group
    from torch.nn.parallel import DistributedDataParallel

    from irregulars import torch_comms

    torch.set_num_threads(1)
    torch_comms.start(trace_dir=trace_dir, agent=agent, job=job, iterations="marks")
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    pairs: list[Any] = [new_group([first, first + 1], group_desc="tensor") for first in range(0, world, 2)]
    torch.manual_seed(1)
    layers = [layer for _ in range(3) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(load_s: float) -> None:
        time.sleep(load_s)
        optimizer.zero_grad()
        activations = model(torch.randn(BATCH, WIDTH))
        distributed.all_reduce(activations.detach().clone(), group=pairs[rank // 2])
        activations.square().mean().backward()
        optimizer.step()

    for _ in range(WARM_UP):
        step(pause_s)
    for number in range(plan.iterations):
        with torch_comms.iteration(number):
            is_slow = rank == plan.rank and plan.first <= number < plan.past
            step(pause_s + (plan.stall_s if is_slow else 0.0))
    distributed.destroy_process_group()
    torch_comms.stop()


def main() -> None:
    """Read the command line of one rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_mutually_exclusive_group(required=True)
    ways.add_argument("--trace-dir", help="write a trace directory")
    ways.add_argument("--agent", help="send to the agent's socket")
    parser.add_argument("--job", default="live")
    parser.add_argument("--iterations", type=int, default=LivePlan().iterations)
    parser.add_argument("--pause-s", type=float, default=0.03, help="what loading data takes")
    parser.add_argument("--stall-s", type=float, default=LivePlan().stall_s, help="what it takes longer while slow")
    given = parser.parse_args()
    plan = LivePlan(iterations=given.iterations, stall_s=given.stall_s)
    train(plan, given.trace_dir, given.agent, given.job, given.pause_s)


if __name__ == "__main__":
    main()
