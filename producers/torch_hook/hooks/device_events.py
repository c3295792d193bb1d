"""Times at which a GPU begins and ends operators and iterations: events on its streams, on our clock by an anchor.

The host runs ahead of a GPU, by a whole iteration where nothing makes it wait: an optimizer's step returns before the
GPU has begun the iteration that it ends. Operators are timed where they run, so iterations must be too
(`DeviceBoundary`); by the host's time they would lie beside their own operators.

Tests have no GPU; tests/recordings/gpu holds recordings of one.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from irregulars.producers.torch_hook.hooks.ring import CAPACITY, UNSEEN
from irregulars.producers.torch_hook.loaded_modules import whole_module

_THREAD_LOCAL: Final = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL of cuda.h
_ANCHOR_S: Final = 1.0  # age at which an anchor is recorded anew, seconds: the clocks of GPU and host drift apart
# Seconds for which an anchor is waited for without a pause. An idle stream passes it in some microseconds. Others are
# busy, and on one of NCCL's an operator may hang: torch gives the streams of a device out in turn.
_ANCHOR_WAIT_S: Final = 0.005
_ANCHOR_AGAIN_S: Final = 0.2  # seconds until the next try, on another stream, where one was busy
# Seconds of tries in vain after which an anchor is waited for with pauses, how long, and each pause. All streams may
# be busy: with CUDA_DEVICE_MAX_CONNECTIONS=1, which Megatron wants, an event of any stream waits for all that the
# host has queued, maybe more than a second of work. Clocks that differ by 20 ppm drift by a pause in that time.
_ANCHOR_LATE_S: Final = 5.0
_ANCHOR_PATIENCE_S: Final = 2.0
_ANCHOR_PAUSE_S: Final = 1e-4


class CaptureMode:
    """Lets one thread ask devices while another captures a stream into a graph.

    By CUDA's default a query of an event then fails the capture, whichever thread makes it
    (``cudaStreamCaptureModeGlobal``). Not tried on a GPU yet.
    """

    def __init__(self, load: Callable[[str], Any] = ctypes.CDLL) -> None:
        self._load = load
        self._is_set = False

    def ignore_other_threads(self) -> None:
        """Set the mode of the calling thread, once CUDA is used; called by the same thread before each query."""
        torch: Any = whole_module("torch")
        if self._is_set or torch is None or not torch.cuda.is_initialized():
            return
        try:
            mode = ctypes.c_int(_THREAD_LOCAL)
            self._is_set = self._load("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0
        except (OSError, AttributeError):  # no driver of NVIDIA's, or one older than this call
            self._is_set = True


class DeviceClock:
    """Gives the times of events on devices by our clock. Used by one thread."""

    def __init__(self) -> None:
        self._anchors: dict[Any, tuple[Any, int]] = {}  # by device
        self._due_s: dict[Any, float] = {}  # by device: when an anchor is recorded next
        self._late_s: dict[Any, float] = {}  # by device, while tries fail: when one waits with pauses

    def times_ns(self, *events: Any) -> tuple[int, ...] | None:
        """Return the times of events of one device, all passed, ns of the monotonic clock; None: not known yet."""
        device = events[0].device
        if time.monotonic() >= self._due_s.get(device, 0.0):
            self._move_anchor(device)
        anchor = self._anchors.get(device)
        if anchor is None:
            return None
        return tuple(anchor[1] + round(anchor[0].elapsed_time(one) * 1e6) for one in events)

    def _move_anchor(self, device: Any) -> None:
        """Record an anchor; where the device does not pass it in time, the one before stays, and another is tried."""
        import torch

        # CUDA's current device is each thread's own, and this thread's is the first: an event there could not be
        # compared with those of another device, and would cost a context on it.
        event, stream = _new_event(), torch.cuda.Stream(device)  # type: ignore[no-untyped-call, unused-ignore]
        event.record(stream)
        began_s = time.monotonic()
        is_late = began_s >= self._late_s.setdefault(device, began_s + _ANCHOR_LATE_S)
        deadline_s = began_s + (_ANCHOR_PATIENCE_S if is_late else _ANCHOR_WAIT_S)
        while not (is_passed := event.query()) and time.monotonic() < deadline_s:
            time.sleep(_ANCHOR_PAUSE_S if is_late else 0)  # 0 lets go of Python's lock
        if is_passed:
            self._anchors[device] = event, time.monotonic_ns()
            del self._late_s[device]
        self._due_s[device] = time.monotonic() + (_ANCHOR_S if is_passed or is_late else _ANCHOR_AGAIN_S)


class DeviceBoundary:
    """The border of two iterations on the stream that the training thread issues to.

    Make it in that thread, and only where `is_possible`.
    """

    __slots__ = ("_clock", "_event", "_time_ns", "host_ns")

    def __init__(self, clock: DeviceClock) -> None:
        self.host_ns = time.monotonic_ns()
        self._clock = clock
        self._time_ns: int | None = None
        self._event = _new_event()
        self._event.record()

    @staticmethod
    def is_possible() -> bool:
        """Whether an event may be recorded: the process uses a GPU, and its stream is not captured into a graph."""
        import torch

        is_used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call, unused-ignore]
        return is_used and not torch.cuda.is_current_stream_capturing()

    def time_ns(self) -> int | None:
        """Return the time at which the device passed it, ns of the monotonic clock; None: not yet."""
        if self._time_ns is None:
            try:
                if self._event.query() and (times_ns := self._clock.times_ns(self._event)) is not None:
                    self._time_ns = times_ns[0]
            except RuntimeError:  # the device's error, which training will meet itself
                self._time_ns = self.host_ns
        return self._time_ns


class DeviceEvents:
    """Records an event before and one behind each operator, and later reads the times of both.

    `capacity`: of the ring. Events of older operators are let go: their rows are overwritten.
    """

    def __init__(self, finish: Callable[[int, int, int], None], capacity: int = CAPACITY) -> None:
        self._finish, self._capacity = finish, capacity
        self._starts = threading.local()
        self._waiting: deque[tuple[int, Any, Any]] = deque(maxlen=capacity)
        self._lock = threading.Lock()
        self._clock = DeviceClock()

    def record_start(self, op_id: int, tensors: Sequence[Any]) -> bool:
        """Mark the issuing stream; False while it is captured into a graph: CUDA allows no query then."""
        import torch

        self._starts.latest = None
        # A group may have a backend for the host beside that of a device: no stream runs this one.
        if tensors and not tensors[0].is_cuda:
            return True
        if torch.cuda.is_current_stream_capturing():
            return False
        event = _new_event()
        event.record(torch.cuda.current_stream(tensors[0].device if tensors else None))
        self._starts.latest = (op_id, event)
        return True

    def record_end(self, op_id: int, work: Any, ordinal: int) -> bool:
        """Mark the end, on a stream that waits for the operator; False if it does not run on a device."""
        latest = getattr(self._starts, "latest", None)
        if latest is None or latest[0] != op_id:
            return False
        start, self._starts.latest = latest[1], None
        if work is None:  # a synchronous operator runs on the issuing stream itself
            self._add_end(ordinal, start)
        else:
            work.get_future().add_done_callback(lambda _: self._add_end(ordinal, start))
        return True

    def settle(self) -> None:
        """Finish the rows of all operators that have ended; never called by a thread that issues them."""
        with self._lock:
            waiting, self._waiting = self._waiting, deque(maxlen=self._capacity)
        # Without the lock: threads that issue operators must not wait while devices are asked.
        left = [one for one in waiting if not self._settle(*one)]
        with self._lock:
            self._waiting = deque([*left, *self._waiting], self._capacity)

    def _add_end(self, ordinal: int, start: Any) -> None:
        import torch

        end = _new_event()
        end.record(torch.cuda.current_stream(start.device))
        with self._lock:
            self._waiting.append((ordinal, start, end))

    def _settle(self, ordinal: int, start: Any, end: Any) -> bool:
        try:
            if not end.query():
                return False
            times_ns = self._clock.times_ns(start, end)
            if times_ns is None:
                return False
            started_ns, ended_ns = times_ns
            self._finish(ordinal, ended_ns, started_ns)
        except RuntimeError:  # the device's error, which training will meet itself
            self._finish(ordinal, UNSEEN, 0)
        return True


def _new_event() -> Any:
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call, unused-ignore]
