"""torch.profiler over a few iterations of this process, where the node's agent asks for it.

The agent asks over the socket on which it gets records, and passes another one along, for the answer: a trace in
sealed memory, or a word why there is none. So no process names a file to another one.
"""

from __future__ import annotations

import fcntl
import math
import os
import select
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from irregulars.producers.torch_hook.loaded_modules import put_back, whole_module
from irregulars.producers.torch_hook.numerics import is_captured

SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
MOST_BYTES: Final = 64 << 20  # of a trace: some 200,000 events
_STEPS: Final = 3
# All ranks begin at the next iteration, and record from the next one, whose number passes a multiple of the power of
# two that takes this long. So the start, which takes seconds at first, is the same for all, without communication.
_TOGETHER_S: Final = 4.0
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
        self._refusal = "" if is_allowed else "torch_comms.start(profiler=False)"
        self._on_error = on_error
        self._reply: socket.socket | None = None
        self._asked_s = self._begun_s = 0.0
        self._before: tuple[int, float] | None = None  # the last iteration since the request, and when it began
        self._every = 0  # iterations that take `_TOGETHER_S`
        self._profile: Any = None
        self._steps = 0  # that are recorded, with the one that runs
        self._is_stepping = False
        self._undo = ExitStack()
        self._result: str | int | None = None  # why there is no trace, or the descriptor of its memory

    def serve(self, connection: socket.socket) -> None:
        """Take a request from the agent's connection, and answer the one before. Never blocks on the agent."""
        result, self._result = self._result, None
        if self._reply is not None and result is not None:
            _send(self._reply, result)
            self._reply = None
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
            self._reply, self._asked_s, self._before, self.is_due = reply, time.monotonic(), None, True

    def step(self, number: int) -> None:
        """Begin an iteration. It takes longer by no fault of a device: the caller marks it."""
        try:
            self._is_stepping = True
            if not is_captured():  # a device can't be waited for then; the next iteration will do
                self._step(number)
        except Exception as error:
            self._refusal = f"it failed: {error}"
            self._end(self._refusal)
            self._on_error(error)
        finally:
            self._is_stepping = False

    def _step(self, number: int) -> None:
        now_s, module = time.monotonic(), whole_module("torch.autograd.profiler")
        before, self._before = self._before, (number, now_s)
        if self._profile is None and (module is None or (before is None and now_s - self._asked_s > _WAIT_S)):
            self._end("no iteration began in time")
        elif self._profile is None and getattr(module, "_is_profiler_enabled", False):
            self._end("another profiler runs")
        elif before is None:
            self._every = 0
        elif self._profile is not None and self._steps:
            if self._steps == _STEPS or now_s - self._begun_s > _MOST_S:
                self._end()
                return
            self._steps += 1
            self._profile.step()
        elif self._profile is None and now_s - before[1] > _LONGEST_S:  # its start may take as long, at first
            self._end(f"an iteration takes {now_s - before[1]:.0f} s, more than {_LONGEST_S:.0f} s")
        else:
            often = math.ceil(math.log2(_TOGETHER_S / max(now_s - before[1], 1e-4)))
            self._every = self._every or 1 << max(often, 1)
            # Numbers may have gaps: of odd ones none is a multiple.
            if number // self._every == before[0] // self._every:
                return
            if self._profile is None:
                self._begin(module, number)
            else:
                self._begun_s, self._steps = now_s, 1
                self._profile.step_num = number - 1  # so that the marks in the trace name our iterations
                self._profile.step()

    def _begin(self, module: Any, number: int) -> None:
        import torch
        from torch.profiler import ProfilerAction, ProfilerActivity, profile

        has_gpu: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call, unused-ignore]
        self._steps = 0
        # Shapes double the price, and only rates of multiplications on a GPU need them.
        self._profile = profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if has_gpu else [])],
            schedule=lambda _: ProfilerAction.RECORD if self._steps else ProfilerAction.WARMUP,
            record_shapes=has_gpu,
        )
        self._profile.start()

        def giving_way(start: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            # Another profiler is started: the script's own must not fail.
            if not self._is_stepping and self._profile is not None:
                self._end("another profiler was started")
            return start(*arguments, **named)

        for name in _STARTS:
            original = getattr(module, name)
            ours = partial(giving_way, original)
            setattr(module, name, ours)
            self._undo.callback(put_back, module, name, ours, original)

    def _end(self, refusal: str | None = None) -> None:
        """Stop what runs, and leave the answer to `serve`: the trace, or why there is none."""
        profile, self._profile, self.is_due = self._profile, None, False
        result: str | int | None = refusal
        with suppress(*([Exception] if refusal else [])):
            if profile is not None:
                profile.stop()
            if profile is not None and refusal is None:
                result = _trace_of(profile)
        self._undo.close()
        self._result = result

    def close(self) -> None:
        """Stop what runs; called where the recording ends."""
        self._end("the recording ended")


def _send(reply: socket.socket, result: str | int) -> None:
    said, descriptors = (b"trace", [result]) if isinstance(result, int) else (result.encode(), [])
    with reply, suppress(OSError):  # of an agent that waits no more
        socket.send_fds(reply, [said], descriptors)
    for descriptor in descriptors:
        os.close(descriptor)


def _trace_of(profile: Any) -> int:
    """Return the descriptor of memory with a profile's trace, which can't be changed any more.

    The training thread writes it: torch lets no other run meanwhile, and this iteration is not judged.
    """
    # Kineto writes a file beside the one that it is given, and renames it: memory is no place for that.
    with tempfile.TemporaryDirectory(prefix="irregulars-") as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"{path.stat().st_size >> 20} MiB, more than {MOST_BYTES >> 20}")
        trace = os.memfd_create("irregulars-trace", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with path.open("rb") as file:
            while os.sendfile(trace, file.fileno(), None, MOST_BYTES):
                pass
    fcntl.fcntl(trace, fcntl.F_ADD_SEALS, SEALS)
    return trace
