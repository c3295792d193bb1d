"""torch.profiler over a few iterations of this process, where the node's agent asks for it.

The agent asks over the socket on which it gets records, and passes another one along, for the answer: a trace in
sealed memory, or a word why there is none. So no process names a file to another one.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from irregulars.producers.torch_hook.loaded_modules import put_back, whole_module
from irregulars.producers.torch_hook.numerics import is_captured

SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
MOST_BYTES: Final = 64 << 20  # of a trace: some 200,000 events
_STEPS: Final = 3
# A profiler's first start takes seconds, in which the other ranks wait: all record the iterations from the next
# number on that this divides, once the last of them has started.
_TOGETHER: Final = 4
_WARM_S: Final = 1.0  # from the start of the first to that of the last, without the iteration in which that happens
_MOST_S: Final = 10.0  # after which no further iteration is begun with it: events fill the memory of the job
_LONGEST_S: Final = 20.0  # an iteration; some ten are needed, where they are short
_WAIT_S: Final = 60.0  # for which a request holds: a job that stands has no iterations
_STARTS: Final = ("_prepare_profiler", "_enable_profiler")  # torch refuses a second profiler with an error


class Profiler:
    """Profiles the training thread, which calls `step` while `is_due`; another thread calls `serve`.

    `is_allowed`: by the job. `on_error`: is given the first error, after which no request is granted.
    """

    def __init__(self, is_allowed: bool, on_error: Callable[[Exception], None]) -> None:
        self.is_due = False
        self._refusal = "" if is_allowed else "the job forbids it: torch_comms.start(profiler=False)"
        self._on_error = on_error
        self._reply: socket.socket | None = None
        self._asked_s = self._begun_s = 0.0
        self._before_s: float | None = None  # when the last iteration since the request began
        self._profile: Any = None
        self._steps = 0  # that are recorded, with the one that runs
        self._is_stepping = False
        self._undo: list[Callable[[], object]] = []
        self._result: Any = None  # a profile that was stopped, or why there is none

    def serve(self, connection: socket.socket) -> None:
        """Take a request from the agent's connection, and answer the one before. Never blocks on the agent."""
        result, self._result = self._result, None
        if result is not None:
            self._answer(result)
        waiting = select.poll()
        waiting.register(connection, select.POLLIN)
        if not waiting.poll(0):
            return
        for number in socket.recv_fds(connection, 64, 1, socket.MSG_CMSG_CLOEXEC)[1]:
            reply = socket.socket(fileno=number)
            reply.setblocking(False)
            if self._refusal or self._profile is not None or self._result is not None:
                _send(reply, self._refusal or "the rank is profiled already")
                continue
            self._reply, self._asked_s, self._before_s, self.is_due = reply, time.monotonic(), None, True

    def step(self, number: int, in_phase: Callable[[str], AbstractContextManager[None]]) -> None:
        """Begin an iteration; `in_phase` marks those that are profiled: they take longer by no fault of a device."""
        try:
            self._is_stepping = True
            if not is_captured():  # a device can't be waited for then; the next iteration will do
                self._step(number, in_phase)
        except Exception as error:
            self._refusal = f"it failed before: {error}"
            self._end(f"it failed: {error}")
            self._on_error(error)
        finally:
            self._is_stepping = False

    def _step(self, number: int, in_phase: Callable[[str], AbstractContextManager[None]]) -> None:
        now_s, module = time.monotonic(), whole_module("torch.autograd.profiler")
        if self._profile is not None:
            if self._steps == _STEPS or (self._steps and now_s - self._begun_s > _MOST_S):
                self._end()
                return
            is_warm = self._before_s is not None and self._before_s - self._begun_s >= _WARM_S
            if self._steps:
                self._steps += 1
            elif is_warm and number % _TOGETHER == 0:
                self._begun_s, self._steps = now_s, 1
            self._before_s = now_s
            self._profile.step()
        elif module is None or now_s - self._asked_s > _WAIT_S:
            self._end("no iteration began in time")
        elif getattr(module, "_is_profiler_enabled", False):
            self._end("another profiler runs")
        elif self._before_s is None:
            self._before_s = now_s
        elif now_s - self._before_s > _LONGEST_S:
            self._end(f"an iteration takes {now_s - self._before_s:.0f} s, more than {_LONGEST_S:.0f} s")
        else:
            self._begin(module, number, in_phase)

    def _begin(self, module: Any, number: int, in_phase: Callable[[str], AbstractContextManager[None]]) -> None:
        import torch
        from torch.profiler import ProfilerAction, ProfilerActivity, profile

        has_gpu: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call, unused-ignore]
        marking = in_phase("eval")
        marking.__enter__()
        self._undo.append(lambda: marking.__exit__(None, None, None))
        self._steps = 0
        # Shapes double the price, and only rates of multiplications on a GPU need them.
        self._profile = profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if has_gpu else [])],
            schedule=lambda _: ProfilerAction.RECORD if self._steps else ProfilerAction.WARMUP,
            record_shapes=has_gpu,
        )
        self._profile.step_num = number  # so that the marks in the trace name our iterations
        self._profile.start()
        self._begun_s = time.monotonic()
        for name in _STARTS:
            original = getattr(module, name)
            ours = self._giving_way(original)
            setattr(module, name, ours)
            self._undo.append(partial(put_back, module, name, ours, original))

    def _giving_way(self, start: Callable[..., Any]) -> Callable[..., Any]:
        """Return torch's function that starts a profiler, before which ours ends: the script's own must not fail."""

        def start_other(*arguments: Any, **named: Any) -> Any:
            if not self._is_stepping and self._profile is not None:
                self._end("another profiler was started")
            return start(*arguments, **named)

        return start_other

    def _end(self, refusal: str | None = None) -> None:
        """Stop what runs, and leave the answer to `serve`: the trace, or why there is none."""
        profile, self._profile, self.is_due = self._profile, None, False
        try:
            if profile is not None:
                profile.stop()
        except Exception:
            if refusal is None:
                raise
        while self._undo:
            self._undo.pop()()
        self._result = refusal or profile

    def close(self) -> None:
        """Stop what runs; called where the recording ends."""
        if self._profile is not None:
            self._end("the recording ended")

    def _answer(self, result: Any) -> None:
        reply, self._reply = self._reply, None
        if reply is None:
            return
        if isinstance(result, str):
            _send(reply, result)
            return
        trace = os.memfd_create("irregulars-trace", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            _write_trace(result, trace)
            _send(reply, "", trace)
        except Exception as error:
            self._on_error(error)
            _send(reply, f"its trace can't be written: {error}")
        finally:
            os.close(trace)


def _send(reply: socket.socket, refusal: str, *descriptors: int) -> None:
    with reply, suppress(OSError):  # of an agent that waits no more
        socket.send_fds(reply, [(refusal or "trace").encode()], descriptors)


def _write_trace(profile: Any, trace: int) -> None:
    """Write a profile's trace into memory that can't be changed any more."""
    # Kineto writes a file beside the one that it is given, and renames it: memory is no place for that.
    with tempfile.TemporaryDirectory(prefix="irregulars-") as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"{path.stat().st_size >> 20} MiB, more than {MOST_BYTES >> 20}")
        with path.open("rb") as file:
            while os.sendfile(trace, file.fileno(), None, MOST_BYTES):
                pass
    fcntl.fcntl(trace, fcntl.F_ADD_SEALS, SEALS)
