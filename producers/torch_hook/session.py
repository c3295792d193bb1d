"""One recording of one training process: hook, groups, iterations, and the thread that exports records."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

from irregulars.messages.records import UNKNOWN
from irregulars.producers.torch_hook.audits import Audit, declined
from irregulars.producers.torch_hook.exporters import AgentSocket, Exporter
from irregulars.producers.torch_hook.hooks.device_events import DeviceBoundary, DeviceClock
from irregulars.producers.torch_hook.hooks.dispatcher_hook import DispatcherHook
from irregulars.producers.torch_hook.hooks.groups import Groups, NewGroup, ProcessGroups
from irregulars.producers.torch_hook.hooks.native_library import NativeHook, find_library
from irregulars.producers.torch_hook.hooks.python_hook import PythonHook, has_collective_hooks
from irregulars.producers.torch_hook.hooks.ring import CAPACITY
from irregulars.producers.torch_hook.identity import Identity, agreed_start
from irregulars.producers.torch_hook.iterations import Boundary, HostBoundary, Iterations
from irregulars.producers.torch_hook.numerics import NumericsWatch, number_of
from irregulars.producers.torch_hook.pauses import SOURCES, Pauses
from irregulars.producers.torch_hook.replicas import replicas_of
from irregulars.producers.torch_hook.source import Hook, TorchSource

_LOG: Final = logging.getLogger("irregulars.torch")
# At the end rows left in the ring are counted, for this long and with this pause between two tries, seconds.
_COUNT_S: Final = 2.0
_COUNT_PAUSE_S: Final = 0.01


class Troubles:
    """Counts our own errors and logs the first of each kind. Training never sees any of them."""

    def __init__(self) -> None:
        self.count = 0
        self.last = ""
        self.is_ending = False  # then one line at the end has the reason, and the number of rows that it cost
        self._logged: set[str] = set()

    def add(self, error: BaseException, what: str = "hook") -> None:
        """Count an error."""
        self.count += 1
        self.last = str(error)
        kind = f"{what}:{type(error).__name__}"
        if kind not in self._logged and not self.is_ending:
            self._logged.add(kind)
            _LOG.warning("event=torch_comms_trouble what=%s error=%r training=unaffected", what, str(error))

    @contextmanager
    def kept_from_training(self, what: str) -> Iterator[None]:
        """Count an error of the block instead of raising it."""
        try:
            yield
        except Exception as error:
            self.add(error, what)


class Session:
    """Records from `start` to `stop`.

    `hook`: ``auto``, ``native``, ``python`` or ``dispatcher``. `iterations`: ``steps``, ``marks`` or ``inferred``.
    `pauses`: sources of pauses, of `torch_hook.pauses.SOURCES`.
    """

    def __init__(
        self,
        identity: Identity,
        exporter: Exporter,
        troubles: Troubles,
        hook: str,
        iterations: str = "steps",
        pauses: Collection[str] = SOURCES,
    ) -> None:
        self.troubles = troubles
        self._pauses = Pauses(pauses, partial(troubles.add, what="pauses"))
        self._exporter = exporter
        self._hook = choose_hook(hook, troubles)
        self.groups = Groups()
        self._device_clock: DeviceClock | None = None  # once a group communicates on a device
        self._profiler = exporter.profiler if isinstance(exporter, AgentSocket) else None
        self.iterations = Iterations(
            self._change if self._profiler else self._hook.set_iteration,
            by_steps=iterations == "steps",
            boundary=self._boundary,
            pauses=self._pauses,
        )
        self._process_groups = ProcessGroups(self._attach, lambda error: troubles.add(error, "group"))
        start = partial(agreed_start, identity.attempt)
        own = (self._hook, self.groups, self.iterations, identity)
        self._source = TorchSource(*own, _world, start, is_unmarked=iterations == "inferred")
        self._ending = threading.Event()
        self._rest_rows = 0
        self._thread = threading.Thread(target=self._run, name="irregulars-torch", daemon=True)
        self._pid = os.getpid()
        self._optimizer_hooks: list[Any] = []
        # Weakly: the optimizer's hooks hold a watch, and a model that the script has dropped must not stay for us.
        self._watches: weakref.WeakSet[NumericsWatch] = weakref.WeakSet()

    @property
    def hook_name(self) -> str:
        """``native``, ``python`` or ``dispatcher``."""
        return self._hook.name

    @property
    def lost_rows(self) -> int:
        """Rows that the ring dropped."""
        return self._source.lost_rows

    @property
    def undelivered_rows(self) -> int:
        """Operators that were recorded and have not arrived: lost in the ring, on their way, or nowhere to go."""
        return max(0, self._recorded_rows - self._exporter.delivered_rows)

    @property
    def _recorded_rows(self) -> int:
        return self._source.given_rows + self._source.lost_rows + self._rest_rows

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that started the session, not a fork of it."""
        return os.getpid() == self._pid

    def start(self) -> None:
        """Attach to the groups that exist, follow those to come, and start the thread; all of it, or nothing."""
        try:
            from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

            self._hook.enable(True)
            self._process_groups.follow()
            self._optimizer_hooks = [
                register_optimizer_step_pre_hook(self._before_step),
                register_optimizer_step_post_hook(self._on_step),
            ]
            self._pauses.start()
            self._thread.start()
        except BaseException:
            self._detach()
            raise
        atexit.register(self.stop)
        # In each child from now on, while this session lives: a registered function can't be removed.
        leave = weakref.WeakMethod(self._leave_child)
        os.register_at_fork(after_in_child=lambda: None if (method := leave()) is None else method())

    def report(self, figures: Mapping[str, Any], checksum: Any) -> None:
        """Set figures of the iteration that runs: numbers, or tensors of one."""
        with self.troubles.kept_from_training("report"):
            given = {name: number_of(value, float) for name, value in figures.items() if value is not None}
            self.iterations.report(given, None if checksum is None else number_of(checksum, int))

    def watch(self, model: Any, optimizer: Any, every: int, checksum_steps: int, process_group: Any) -> None:
        """Measure the steps of an optimizer from now on."""
        with self.troubles.kept_from_training("numerics"):
            is_shared = self._share(model, process_group)
            on_error = partial(self.troubles.add, what="numerics")
            own = (model, optimizer, every, checksum_steps if is_shared else 0)
            self._watches.add(NumericsWatch(self.iterations, *own, on_error))

    def audit(
        self, model: Any, compute: Callable[[Any, Any], object], every: int, group: Any
    ) -> Callable[[Any], None]:
        """Return the callable that audits the model."""
        try:
            self._share(model, group)
            return Audit(self.iterations, model, compute, every, group, partial(self.troubles.add, what="audit"))
        except Exception as error:
            self.troubles.add(error, "audit")
            return declined(model, every, group)

    def _share(self, model: Any, process_group: Any) -> bool:
        """Announce which ranks hold the same parameters, of the first model of which that is known.

        Return whether those of this model are the same.
        """
        replicas = replicas_of(model, process_group)
        self._source.replicas = self._source.replicas or replicas
        return replicas is not None and replicas == self._source.replicas

    def stop(self) -> None:
        """Detach and pass on the rest; waits for the exporter. A second time, or in a fork, does nothing."""
        if not self.is_ours or self._ending.is_set():
            return
        atexit.unregister(self.stop)
        if self._profiler is not None:
            self._profiler.close()
        self._detach()
        self.troubles.is_ending = True
        self._ending.set()
        self._thread.join(self._exporter.stop_s)
        rows, recorded = self.undelivered_rows, self._recorded_rows
        if rows:  # a recording that is silently empty would cost a second run of the job
            is_passing_on = str(self._thread.is_alive()).lower()
            _LOG.warning(
                "event=torch_comms_undelivered rows=%d recorded=%d lost_in_ring=%d is_passing_on=%s reason=%r "
                "training=unaffected",
                *(rows, recorded, self.lost_rows, is_passing_on, self.troubles.last),
            )
        elif not self.groups.all:
            reason = "no process group was made in this process: without one there is nothing to record"
            _LOG.warning("event=torch_comms_empty reason=%r training=unaffected", reason)
        count, text = self._hook.errors()
        if count:
            self.troubles.count += count
            _LOG.warning("event=torch_comms_trouble what=native count=%d error=%r training=unaffected", count, text)

    def _detach(self) -> None:
        steps: list[Callable[[], object]] = [partial(self._hook.enable, False), self._hook.detach]
        steps += [self._process_groups.leave, *(hook.remove for hook in self._optimizer_hooks)]
        steps += [*(watch.close for watch in self._watches), self._pauses.stop]
        for step in steps:  # each, whatever becomes of the others: the end of a recording is a part of training too
            with self.troubles.kept_from_training("stop"):
                step()

    def _leave_child(self) -> None:
        # A fork has no exporter thread, and is no rank: a DataLoader's worker, for example.
        if not self._ending.is_set():
            self._detach()

    def _attach(self, new: NewGroup) -> None:
        world = _world()
        # torch makes the first group before it counts as initialised: that group is the world.
        world_size = world[1] if world is not None else len(new.ranks)
        group = self.groups.add(new.name, new.ranks, world_size, new.description, new.lanes)
        if new.device != "cpu" and self._device_clock is None:
            self._device_clock = DeviceClock()
        if not self._hook.attach(new.process_group, new.name, group.number, new.device):
            raise RuntimeError(f"hook must attach to group {new.name!r}; it did not: {self._hook.errors()[1]}")

    def _boundary(self) -> Boundary:
        """Pass from one iteration to the next, where operators run."""
        clock = self._device_clock
        if clock is not None:
            # The device's error, which training will meet itself: raised here it would hide the script's own.
            with suppress(RuntimeError):
                if DeviceBoundary.is_possible():
                    return DeviceBoundary(clock)
        return HostBoundary()

    def _change(self, number: int) -> None:
        self._hook.set_iteration(number)
        if self._profiler is not None and self._profiler.is_due and number != UNKNOWN:
            with self.iterations.in_phase("eval"):
                self._profiler.step(number)

    def _before_step(self, *_: Any) -> None:
        with self.troubles.kept_from_training("pauses"):
            self._pauses.read_host()

    def _on_step(self, optimizer: Any, *_: Any) -> None:
        with self.troubles.kept_from_training("step"):
            self.iterations.step(optimizer)

    def _run(self) -> None:
        try:
            self._exporter.run(self._source, self._ending.wait)
        except BaseException as error:  # whichever it is, training goes on
            # No thread reads the ring any more, so training need not pay for its rows.
            self.troubles.add(error, "recording_ended")
            self._hook.enable(False)
        if self._ending.is_set():
            # Empty the ring after the exporter has given up: its rows count as undelivered.
            self._source.end()
            deadline_s = time.monotonic() + _COUNT_S
            while not self._source.is_exhausted and time.monotonic() < deadline_s:
                if not self._source.poll(CAPACITY):
                    time.sleep(_COUNT_PAUSE_S)
            # Of a rank that was never announced, its group being gone by now, the source takes nothing.
            self._rest_rows = self._hook.ring.take().size


def choose_hook(name: str, troubles: Troubles) -> Hook:
    """Return the native hook where its library was built, else the one in Python, and log that once.

    Raises RuntimeError if the native one is asked for by name and is not there.
    """
    build = "python -m irregulars.producers.torch_hook.hooks.native_library"
    path = find_library() if name in ("auto", "native") else None
    if path is not None:
        try:
            return NativeHook(path)
        except OSError as error:
            troubles.add(error, "native_library")
    if name == "native":
        raise RuntimeError(f"native hook must be built first: {build}")
    if name == "auto":
        reason = "native hook not built for this torch"
        _LOG.info("event=torch_comms_hook hook=python reason=%r build=%r", reason, build)
    if name == "dispatcher" or not has_collective_hooks():
        return DispatcherHook(troubles.add)
    return PythonHook(troubles.add)


def _world() -> tuple[int, int] | None:
    """Return this rank and the world size, while there is a process group."""
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return None
    try:
        return distributed.get_rank(), distributed.get_world_size()
    except (ValueError, RuntimeError):  # training has destroyed it since
        return None
