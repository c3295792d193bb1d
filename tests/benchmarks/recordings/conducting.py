"""Runs one recorded job: forks its ranks, plugs them in, and does to it what its faults say, when they say it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from irregulars.errors import ServiceUnavailable
from tests.benchmarks.recordings.cgroups import CpuGroups
from tests.benchmarks.recordings.children import Child
from tests.benchmarks.recordings.counters import sample
from tests.benchmarks.recordings.faults import Change, Command, Fault, Quota
from tests.benchmarks.recordings.network import Network, enter_new_namespace
from tests.benchmarks.recordings.priority import come_first, lead_session
from tests.benchmarks.recordings.ranks import ENDED, NICE, READY, Board, Signals, train
from tests.benchmarks.recordings.recording import Recording

LIMIT_S: Final = 180.0
"""A recording that takes longer is given up."""

HUNG_S: Final = 9.0
"""A job that is to hang, and gets no further for so long, hangs. The hook notes what is open after five seconds."""

_POLL_S: Final = 0.001
_NICE: Final = -18


def conduct(recording: Recording, directory: Path) -> Board:
    """Run the job in this process's own new network namespace; return its times of reference.

    Afterwards `directory` holds what the hook wrote, and ``counters.npz``; `directory/logs` what the ranks said.

    Raises
    ------
    ServiceUnavailable
        If a rank fails, a command is refused, or it takes too long.
    """
    lead_session(NICE)
    come_first(_NICE)
    enter_new_namespace()
    with ExitStack() as stack:
        job = _Job(recording, directory, stack)
        job.run()
    return job.board


class _Job:
    """The processes of one recording."""

    def __init__(self, recording: Recording, directory: Path, stack: ExitStack) -> None:
        self.recording, self.board = recording, Board(recording.shape.world_size)
        self._directory, self._stack, self._signals = directory, stack, Signals()
        self._deadline_s = time.monotonic() + LIMIT_S
        (directory / "logs").mkdir(parents=True, exist_ok=True)
        self._groups: dict[tuple[int, ...], Path] = {}
        self._cpu: CpuGroups | None = None
        self._ranks = [self._start_rank(rank) for rank in range(recording.shape.world_size)]
        self._processes = [child.process for child in self._ranks]
        self._network = Network(recording.layout, self._processes)
        self._switches = [_Switch(fault, self._apply, recording) for fault in recording.faults]

    def run(self) -> None:
        """Run from the first process to the end of the last."""
        for _ in self._ranks:
            self._within(lambda: bool(self._signals.entered.acquire(timeout=0.05)))
        self._network.build()
        self._prepare()
        self._stack.callback(self._network.close)
        with self._sampling():
            self._signals.plugged_in.set()
            self._within(lambda: bool((self.board.progress == READY).all()))
            self._turn(0 if self.recording.is_from_start else -1)
            self._signals.recorded.set()
            self._follow()

    def _start_rank(self, rank: int) -> Child:
        return self._start(
            lambda: train(self.recording, rank, self.board, self._signals, self._directory), f"rank-{rank}"
        )

    def _start(self, run: Callable[[], None], name: str) -> Child:
        child = Child(run, self._directory / "logs" / f"{name}.log")
        self._stack.callback(child.end)
        return child

    def _prepare(self) -> None:
        """Open what the faults need later, so that nothing but a line needs to be written then."""
        changes = [one for fault in self.recording.faults for one in fault.changes(self.recording.layout, True)]
        for change in changes:
            if isinstance(change, Command):
                self._network.open_shell(change.rank, change.program)
            else:
                if self._cpu is None:
                    self._cpu = CpuGroups()
                    self._stack.callback(self._cpu.close)
                self._groups[change.ranks] = self._cpu.make([self._processes[rank] for rank in change.ranks])

    @contextmanager
    def _sampling(self) -> Iterator[None]:
        if not self.recording.is_sampled:
            yield
            return
        layout, target = self.recording.layout, self._directory / "counters.npz"
        come_first(-20)
        sampler = self._start(lambda: sample(layout, self._signals.sampled, target), "sampler")
        come_first(_NICE)
        yield
        self._signals.sampled.set()
        self._within(lambda: sampler.status is not None)
        if sampler.status:
            raise ServiceUnavailable(f"NIC counters must be read; they were not: {sampler.last_words()}")

    def _follow(self) -> None:
        """Switch faults on and off as the job goes on, until it has ended or hangs."""
        newest, since_s = -1, time.monotonic()
        may_hang = any(fault.truth(self.recording.layout).kind == "hang" for fault in self.recording.faults)
        while self._look_after():
            now = int(self.board.progress.max())
            if now != newest:
                newest, since_s = now, time.monotonic()
                self._turn(now)
            if may_hang and newest >= 0 and time.monotonic() - since_s > HUNG_S:
                return
            time.sleep(_POLL_S)

    def _turn(self, iteration: int) -> None:
        for switch in self._switches if iteration != ENDED else ():
            switch.turn(iteration)

    def _apply(self, change: Change) -> None:
        if isinstance(change, Command):
            self._network.tell(change.rank, change.program, change.lines)
        elif isinstance(change, Quota) and self._cpu is not None:
            self._cpu.limit(self._groups[change.ranks], change.cores)

    def _within(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            self._look_after()
            time.sleep(_POLL_S)

    def _look_after(self) -> bool:
        """Return whether any rank still runs; raise if one failed, or if all of it takes too long."""
        if time.monotonic() > self._deadline_s:
            raise ServiceUnavailable(f"{self.recording.name} must end within {LIMIT_S:g} s; it did not")
        for rank, child in enumerate(self._ranks):
            if child.status:
                who = f"rank {rank} of {self.recording.name}"
                raise ServiceUnavailable(f"{who} must train to the end; it said: {child.last_words()}")
        return any(child.status is None for child in self._ranks)


class _Switch:
    """Turns one fault on and off from outside."""

    def __init__(self, fault: Fault, apply: Callable[[Change], None], recording: Recording) -> None:
        self._fault, self._apply, self._layout, self._is_on = fault, apply, recording.layout, False

    def turn(self, iteration: int) -> None:
        """Take note of the iteration that the first rank has begun."""
        is_on = self._fault.acts(iteration)
        if is_on != self._is_on:
            self._is_on = is_on
            for change in self._fault.changes(self._layout, is_on):
                self._apply(change)
