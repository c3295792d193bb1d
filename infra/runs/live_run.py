"""A real training job of four processes on this machine, published while it runs."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from irregulars.errors import ServiceUnavailable
from irregulars.infra.runs.live_training import RANKS, LivePlan
from irregulars.infra.runs.simulated_run import PublishedRun
from irregulars.infra.services.child_process import ChildProcess
from irregulars.infra.services.loopback import free_port
from irregulars.producers.publishing.agent import AgentSettings
from irregulars.producers.torch_hook.leaving.agent_socket import SocketSource

_STOP_S: Final = 5.0


class LiveRun(PublishedRun):
    """Four processes of `infra.runs.live_training`, whose operators come over a local socket, as on a node.

    Parameters
    ----------
    plan
        How long, and who is slow when.
    job
        Its name.
    agent
        Where to publish.

    Raises
    ------
    ModuleNotFoundError
        If torch is not installed.
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
        for rank in range(RANKS):
            self._ranks.append(self._start(rank, port))
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for rank in self._ranks:
            rank.stop(_STOP_S)
        self._stack.close()

    def _start(self, rank: int, port: int) -> ChildProcess:
        environment = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(self._directory / "torch"),  # else torch leaves a folder behind
        }  # fmt: skip
        arguments = [
            sys.executable, "-P", "-W", "ignore", "-m", "irregulars.infra.runs.live_training", "--job", self._job,
            "--agent", str(self._directory / "agent.sock"), "--iterations", str(self._plan.iterations),
            "--stall-s", str(self._plan.stall_s),
        ]  # fmt: skip
        log = self._directory / f"rank-{rank}.log"
        return ChildProcess(f"rank {rank}", arguments, log, environment=environment)
