"""Pauses of a rank in its own time: collections, waiting for data or its host, checkpoints, compilations.

Pauses are gathered until the iteration ends in which they are. One that runs within another (a collection while data
are fetched) counts as itself alone, so that the times of all pauses add up.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial, reduce, wraps
from typing import Any, Final, NamedTuple

from irregulars.messages.records import PAUSES
from irregulars.producers.torch_hook.host_waits import HostWaits
from irregulars.producers.torch_hook.loaded_modules import put_back, whole_module

SOURCES: Final = ("garbage_collection", "data_loader", "checkpoint_write", "compilation", "host")
"""Sources that can be switched off. ``host``: `HostWaits`."""

GPU_SOURCES: Final = ("synchronization", "host_to_device")
"""Sources that nobody has tried on a GPU, and that are off unless they are asked for: waiting for one, and copies."""

SHORTEST_NS: Final = 100_000
"""Shorter pauses are left out, ns: ten of them are less than the excess of an irregular iteration of 10 ms (δ 1.1),
and an interpreter makes young collections of some µs all the time."""

MOST: Final = 48  # of one iteration; later ones lengthen the newest of their cause

# By source the functions whose calls are pauses, with the modules under whose names they are called
_FUNCTIONS: Final = {
    "data_loader": (("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__"),),
    "checkpoint_write": (
        ("torch", "save"),
        ("torch.serialization", "save"),
        ("torch.distributed.checkpoint", "save"),
        ("torch.distributed.checkpoint.state_dict_saver", "save"),
    ),
    # Each of these waits for the GPU where its tensor is there: a script may not know that it does
    "synchronization": (
        ("torch.cuda", "synchronize"),
        ("torch.cuda.streams", "Stream.synchronize"),
        ("torch.cuda.streams", "Event.synchronize"),
        *(("torch", f"Tensor.{name}") for name in ("item", "tolist", "cpu", "__bool__", "__int__", "__float__")),
    ),
    "host_to_device": (("torch", "Tensor.to"), ("torch", "Tensor.cuda")),
}


class Pause(NamedTuple):
    """One pause."""

    cause: int  # index into `PAUSES`
    start_ns: int  # monotonic clock
    elapsed_ns: int


def _is_on_gpu(value: Any) -> bool:
    """Whether a value is a tensor there; a subclass may raise on names that it does not know, or return no tensor."""
    try:
        return bool(value.is_cuda)
    except Exception:
        return False


class Pauses:
    """Records the pauses of the thread that trains, the one that calls `take`, from its first call on.

    `sources`: of `SOURCES` and `GPU_SOURCES`. `on_error`: is given each error; training goes on.
    """

    def __init__(self, sources: Collection[str], on_error: Callable[[Exception], None]) -> None:
        self._sources, self._on_error = frozenset(sources), on_error
        self._thread: int | None = None
        self._found: list[Pause] = []
        # Of the training thread: the cause of each, when it began, and how long those of other causes in it took
        self._open: list[list[int]] = []
        self._collecting_ns = 0
        self._is_in_tensor = False  # torch calls a method of a subclass again from within: it is one pause
        self._host: HostWaits | None = None
        self._was_read = False  # the host's counters, in this iteration
        self._undo: list[Callable[[], None]] = []
        # By the function replaced. One under several names stays one: pickle refuses a function that another module
        # has under its name.
        self._recorded: dict[Any, Any] = {}
        # Of modules that are loaded late, or never: they are not loaded for us
        self._waiting: dict[str, list[Callable[[Any], None]]] = {}

    def start(self) -> None:
        """Begin to record."""
        if "garbage_collection" in self._sources:
            gc.callbacks.append(self._collect)
            self._undo.append(lambda: gc.callbacks.remove(self._collect))
        for source, functions in _FUNCTIONS.items():
            if source in self._sources:
                for module, name in functions:
                    replace = partial(self._replace_in, name=name, cause=source)
                    self._waiting.setdefault(module, []).append(replace)
        if "compilation" in self._sources:
            self._waiting["torch._dynamo.callback"] = [self._watch_compilations]
        self._follow_modules()

    def stop(self) -> None:
        """Leave everything as it was."""
        while self._undo:
            # A callback is on its list no more where a script cleared that: `torch.compiler.reset` clears torch's.
            with suppress(ValueError):
                self._undo.pop()()
        self._waiting.clear()
        self._thread = None  # where another tool holds a function of ours, that records no more
        if self._host is not None:
            self._host.close()
            self._host = None

    def take(self) -> list[Pause]:
        """Return the pauses since the last call; made by the training thread where an iteration ends."""
        try:
            self._follow_modules()
            ident = threading.get_ident()
            if ident != self._thread:
                self._thread, self._open = ident, []
                if self._host is not None:
                    self._host.close()
                self._host = HostWaits() if "host" in self._sources else None  # counters are those of one thread
            if not self._was_read:
                self.read_host()
            self._was_read = False
        except Exception as error:
            self._on_error(error)
        found, self._found = self._found, []
        return found

    def read_host(self) -> None:
        """Record the training thread's waits since the last call.

        Best called where the last operator of an iteration has ended, before the optimizer's step: a wait
        behind it delays the next iteration.
        """
        if self._host is not None and threading.get_ident() == self._thread:
            self._was_read = True
            until_ns, waits = self._host.take()
            for cause, elapsed_ns in waits.items():
                self._note(cause, until_ns - elapsed_ns, elapsed_ns)  # a sum: when it was within is not known

    @contextmanager
    def during(self, cause: str) -> Iterator[None]:
        """Record what runs inside as one pause, if its source is on."""
        if cause not in self._sources or threading.get_ident() != self._thread:
            yield
            return
        frame = self._begin(cause)
        try:
            yield
        finally:
            self._end(frame)

    # --- sources ----------------------------------------------------------------------------------------------------

    def _collect(self, phase: str, _: Any) -> None:
        """Record a collection, of whichever thread: none runs Python meanwhile."""
        now_ns = time.monotonic_ns()
        if phase == "start":
            self._collecting_ns = now_ns
        # 0: it began before its start could be recorded.
        elif self._collecting_ns:
            start_ns, self._collecting_ns = self._collecting_ns, 0
            if self._open:
                # The pause around it is shorter by this: both together must not exceed the time that went by.
                self._open[-1][2] += now_ns - start_ns
            self._note("garbage_collection", start_ns, now_ns - start_ns)

    def _replace_in(self, module: Any, name: str, cause: str) -> None:
        """Record the calls of a function, or of a class's method, in the training thread."""
        *owners, name = name.split(".")
        owner = reduce(getattr, owners, module)
        found = getattr(owner, name)
        # A module that is loaded late imports the recording function that stands in another one.
        original = next((one for one, ours in self._recorded.items() if ours is found), found)
        recorded = self._recorded.get(original)
        if recorded is None:
            record = self._recording_tensors if owners == ["Tensor"] else self._recording
            recorded = self._recorded[original] = record(original, cause)
        setattr(owner, name, recorded)
        self._undo.append(partial(put_back, owner, name, recorded, original))

    def _recording(self, original: Any, cause: str) -> Any:
        """Return a function that does as another, and records its calls in the training thread."""

        @wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return original(*args, **kwargs)
            frame = self._begin(cause)
            try:
                return original(*args, **kwargs)
            finally:
                self._end(frame)

        return recorded

    def _recording_tensors(self, original: Any, cause: str) -> Any:
        """Return a method of tensors that does as another, and records its calls that wait for a GPU, or copy to one.

        It is called for each tensor on the CPU too, thousands of times in an iteration: these must cost little.
        """
        is_copy = cause == "host_to_device"

        @wraps(original)
        def recorded(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_on_gpu(tensor) is is_copy or self._is_in_tensor or threading.get_ident() != self._thread:
                return original(tensor, *args, **kwargs)
            self._is_in_tensor = True
            start_ns = time.monotonic_ns()
            try:
                result = original(tensor, *args, **kwargs)
            finally:
                self._is_in_tensor = False
            if not is_copy or _is_on_gpu(result):
                elapsed_ns = time.monotonic_ns() - start_ns
                if self._open:
                    self._open[-1][2] += elapsed_ns
                self._note(cause, start_ns, elapsed_ns)
            return result

        recorded.__module__, recorded.__qualname__ = "torch", f"Tensor.{original.__name__}"  # for pickle
        return recorded

    def _watch_compilations(self, module: Any) -> None:
        handler = module.callback_handler
        frames: list[list[int]] = []

        def begin(*_: Any) -> None:
            if threading.get_ident() == self._thread:
                frames.append(self._begin("compilation"))

        def end(*_: Any) -> None:
            # Without a frame it began before we watched, or in a thread that did not train then.
            if threading.get_ident() == self._thread and frames:
                self._end(frames.pop())

        handler.register_start_callback(begin)
        handler.register_end_callback(end)
        self._undo += [
            lambda: handler.remove_start_callback(begin),
            lambda: handler.remove_end_callback(end),
        ]

    def _follow_modules(self) -> None:
        for name in list(self._waiting):
            module = whole_module(name)
            for follow in self._waiting.pop(name) if module is not None else ():
                follow(module)

    # --- pauses of the training thread ------------------------------------------------------------------------------

    def _begin(self, cause: str) -> list[int]:
        frame = [PAUSES.index(cause), time.monotonic_ns(), 0]
        self._open.append(frame)
        return frame

    def _end(self, frame: list[int]) -> None:
        frames = self._open
        # Another thread has called `take` meanwhile: it trains from then on, and has frames of its own.
        if not any(one is frame for one in frames):
            return
        # Above it lie only those whose end was never reported.
        while frames.pop() is not frame:
            pass
        cause, start_ns, inner_ns = frame
        if frames and frames[-1][0] == cause:  # a save that calls another one: the outer pause holds it
            frames[-1][2] += inner_ns
            return
        elapsed_ns = time.monotonic_ns() - start_ns
        if frames:
            frames[-1][2] += elapsed_ns
        self._note(PAUSES[cause], start_ns, elapsed_ns - inner_ns)

    def _note(self, cause: str, start_ns: int, elapsed_ns: int) -> None:
        if elapsed_ns < SHORTEST_NS:
            return
        code = PAUSES.index(cause)
        if len(self._found) < MOST:
            self._found.append(Pause(code, start_ns, elapsed_ns))
            return
        for at in range(MOST - 1, -1, -1):
            if self._found[at].cause == code:
                known = self._found[at]
                self._found[at] = known._replace(elapsed_ns=known.elapsed_ns + elapsed_ns)
                return
        # Of a cause that none of those kept has, it is dropped: an iteration has `MOST` rows of pauses at most.
