"""When operators on a GPU begin and end: events on its streams, compared with our clock by an anchor.

Not run on a GPU by the project's tests: no machine of ours has one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from irregulars.producers.torch_hook.hooks.ring import UNSEEN

_ANCHOR_S: Final = 1.0


class DeviceEvents:
    """Records an event before each operator, one behind it, and later asks both for their times.

    Parameters
    ----------
    finish
        Takes a row's ordinal, its end and its start, ns of the monotonic clock.
    """

    def __init__(self, finish: Callable[[int, int, int], None]) -> None:
        self._finish = finish
        self._starts = threading.local()
        self._waiting: list[tuple[int, Any, Any]] = []
        self._lock = threading.Lock()
        self._anchors: dict[Any, tuple[Any, int]] = {}  # by device

    def record_start(self, op_id: int, tensors: Sequence[Any]) -> bool:
        """Mark the issuing stream; False while it is captured into a graph, where nothing may be asked."""
        import torch

        self._starts.latest = None
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
            waiting, self._waiting = self._waiting, []
        left = [one for one in waiting if not self._settle(*one)]
        with self._lock:
            self._waiting = left + self._waiting

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
            event, event_ns = self._fresh_anchor(end.device)
            started_ns, ended_ns = (event_ns + round(event.elapsed_time(one) * 1e6) for one in (start, end))
            self._finish(ordinal, ended_ns, started_ns)
        except RuntimeError:  # the device's error, which training will meet itself
            self._finish(ordinal, UNSEEN, 0)
        return True

    def _fresh_anchor(self, device: Any) -> tuple[Any, int]:
        """Give an event of the device, and when it was, ns of the monotonic clock.

        CUDA's current device is each thread's own, and this thread's is the first: an event there can't be compared
        with those of another device, and costs a context on it.
        """
        import torch

        anchor = self._anchors.get(device)
        if anchor is None or time.monotonic_ns() - anchor[1] > _ANCHOR_S * 1e9:
            event, stream = _new_event(), torch.cuda.Stream(device)  # type: ignore[no-untyped-call, unused-ignore]
            event.record(stream)
            event.synchronize()
            anchor = self._anchors[device] = (event, time.monotonic_ns())
        return anchor


def _new_event() -> Any:
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call, unused-ignore]
