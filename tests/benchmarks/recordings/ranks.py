"""One rank of a recorded job: a process that was forked, in a network namespace of its own."""

from __future__ import annotations

import datetime
import mmap
import multiprocessing
import os
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.benchmarks.recordings.faults import Work
from tests.benchmarks.recordings.network import enter_new_namespace
from tests.benchmarks.recordings.priority import come_first
from tests.benchmarks.recordings.recording import Recording

NICE: Final = -15
WARM_UP: Final = 5
"""Unrecorded iterations before all others: connections are made, buckets rebuilt, caches filled."""

REFERENCE: Final = 12
"""Unrecorded healthy iterations after these, whose times say what is usual where a fault is there from the start."""

STARTING, READY, ENDED = -3, -2, 1 << 30
_FORKING: Final = multiprocessing.get_context("fork")
_PORT: Final = 29_500
_WAIT_S: Final = 120.0


class Board:
    """Memory that the processes of one recording share: how far each rank is, and its times of reference.

    Attributes
    ----------
    progress
        Per rank the iteration that it is in, or `STARTING`, `READY`, `ENDED`.
    reference_ns
        Elapsed time by rank and iteration of reference.
    """

    def __init__(self, world_size: int) -> None:
        self._memory = mmap.mmap(-1, world_size * 8 * (1 + REFERENCE))
        cells = np.frombuffer(self._memory, dtype=np.int64).reshape(world_size, 1 + REFERENCE)
        self.progress, self.reference_ns = cells[:, 0], cells[:, 1:]
        self.progress[:] = STARTING


@dataclass(frozen=True, slots=True)
class Signals:
    """What the conductor and its processes tell each other.

    Attributes
    ----------
    entered
        Each rank releases it once it is in its own namespace.
    plugged_in
        All ranks have a NIC.
    recorded
        The recording may begin.
    sampled
        The sampler of NIC counters may end.
    """

    entered: Any = field(default_factory=_FORKING.Semaphore)
    plugged_in: Any = field(default_factory=_FORKING.Event)
    recorded: Any = field(default_factory=_FORKING.Event)
    sampled: Any = field(default_factory=_FORKING.Event)


def train(recording: Recording, rank: int, board: Board, signals: Signals, directory: Path) -> None:
    """Enter a namespace, wait for a NIC in it, train as one rank, and record it."""
    come_first(NICE)
    enter_new_namespace()
    signals.entered.release()
    if not signals.plugged_in.wait(_WAIT_S):
        raise TimeoutError(f"a NIC must come within {_WAIT_S:g} s")
    os.environ.update(_environment(recording, rank))
    _train(recording, rank, board, signals, directory)
    board.progress[rank] = ENDED


def _environment(recording: Recording, rank: int) -> dict[str, str]:
    layout = recording.layout
    world_size = str(layout.world_size)
    return {
        "RANK": str(rank), "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size,
        "LOCAL_RANK": str(layout.gpu(rank)), "MASTER_ADDR": layout.address(0), "MASTER_PORT": str(_PORT),
        "GLOO_SOCKET_IFNAME": layout.nic(rank), "TORCH_COMMS_HOST": layout.host(rank),
    }  # fmt: skip


def _train(recording: Recording, rank: int, board: Board, signals: Signals, directory: Path) -> None:
    import torch
    from torch import distributed

    from irregulars.producers import torch_comms
    from tests.benchmarks.recordings.jobs import TRAININGS

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=_WAIT_S))
    training = TRAININGS[recording.shape.kind](recording.shape, rank)
    load_s = recording.shape.load_ms / 1_000

    def turn(work: Work) -> None:
        while work.stops:
            time.sleep(1.0)  # for ever: the conductor ends this process
        time.sleep(load_s + work.load_s)
        training.pace.factor = work.factor
        training.step(is_forward_alone=work.is_forward_alone)

    for number in range(WARM_UP + REFERENCE):
        began_ns = time.monotonic_ns()
        turn(Work())
        if number >= WARM_UP:
            board.reference_ns[rank, number - WARM_UP] = time.monotonic_ns() - began_ns
    distributed.barrier()  # nobody begins to record while another is still at it
    board.progress[rank] = READY
    if not signals.recorded.wait(_WAIT_S):
        raise TimeoutError(f"the recording must begin within {_WAIT_S:g} s")
    layout = recording.layout
    hook = torch_comms.start(
        trace_dir=directory, job=recording.name, nic=layout.nic(rank), switch=layout.leaf(rank), iterations="marks"
    )
    if hook == "none":
        raise RuntimeError("torch must have hooks; see the log")
    distributed.barrier()
    for number in range(recording.iterations):
        work = recording.work(rank, number)
        board.progress[rank] = number
        with torch_comms.phase(work.phase) if work.phase else nullcontext(), torch_comms.iteration(number):
            turn(work)
    distributed.barrier()
    torch_comms.stop()
