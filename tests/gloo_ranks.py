"""Real jobs of torch with gloo on this machine: a process for each rank."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec

import pytest

from irregulars.infra.runs.child_process import free_port
from irregulars.infra.runs.local_services import LocalServices
from irregulars.infra.runs.published_run import PublishedRun
from irregulars.kafka.log_reader import LogReader
from irregulars.messages.judgements import Verdict, decode_verdict
from tests.conftest import ROOT

RANKS = 4
needs_torch = pytest.mark.skipif(
    find_spec("torch") is None, reason="torch must be installed for a real job (make torch); it is not"
)


def environment_of(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return the variables by which torch's processes find each other, as torchrun sets them."""
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip


@contextmanager
def training(module: str, *arguments: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Run a module in a process for each rank; they end with the block."""
    running, port = list[subprocess.Popen[str]](), free_port()
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    try:
        for rank in range(RANKS):
            own = os.environ | environment_of(rank, RANKS, port)
            running.append(subprocess.Popen(command, cwd=ROOT, env=own, stdout=subprocess.PIPE, text=True))
        yield running
    finally:
        for one in running:
            one.kill()
            one.communicate()


@contextmanager
def reading(services: LocalServices, topic: str) -> Iterator[Callable[[], list[Verdict]]]:
    """Give a function that reads all revisions that are on a topic by now."""
    name = services.settings.topics().name(topic)
    with closing(LogReader(services.settings.kafka_bootstrap, {})) as reader:
        yield lambda: [
            decode_verdict(one.value(), topic) for p in reader.partitions(name) for one in reader.read_tail(name, p)
        ]


def wait_for_end(run: PublishedRun, services: LocalServices) -> None:
    """Wait until a job has ended, while the services must run."""
    while run.is_running:
        services.require_running()
        time.sleep(0.25)
