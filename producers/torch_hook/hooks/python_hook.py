"""The hook in Python, for where the native library was not built. Needs torch's collective hooks.

It holds Python's lock for some microseconds per operator. A callback finishes the row of an asynchronous operator,
and waits for that lock while training holds it: up to 5 ms, Python's switch interval. It runs in the backend's
thread, whose state in Python is kept from one callback to the next.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections import Counter
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final

from irregulars.messages.records import OPERATOR_CODES, SEND
from irregulars.producers.torch_hook.hooks.recording_hook import RecordingHook, wait_for_operator
from irregulars.producers.torch_hook.hooks.ring import NO_PEER, UNSEEN

HOOK_ID: Final = 0x1226  # as in hook.cpp: hooks of one group fire in the order of their ids
_FAMILIES: Final = {
    "ALLREDUCE": "all_reduce", "REDUCE_SCATTER": "reduce_scatter", "ALLGATHER": "all_gather",
    "ALLTOALL": "all_to_all", "BROADCAST": "broadcast", "REDUCE": "reduce", "GATHER": "gather", "SCATTER": "scatter",
    "BARRIER": "barrier", "SEND": "send", "RECV": "recv", "ALLREDUCE_COALESCED": "all_reduce",
    "ALLGATHER_BASE": "all_gather", "ALLGATHER_COALESCED": "all_gather",
    "ALLGATHER_INTO_TENSOR_COALESCED": "all_gather", "REDUCE_SCATTER_BASE": "reduce_scatter",
    "REDUCE_SCATTER_TENSOR_COALESCED": "reduce_scatter", "ALLTOALL_BASE": "all_to_all",
}  # fmt: skip
"""Names of torch's ``HookOpName``; those of another torch may be fewer."""

_now_ns = time.monotonic_ns


def has_collective_hooks() -> bool:
    """Whether this torch has what `PythonHook` and the native hook need."""
    from torch.distributed import ProcessGroup

    return hasattr(ProcessGroup, "register_pre_hook")


class PythonHook(RecordingHook):
    """Hooks in Python and the ring that they write into."""

    name = "python"

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        from torch._C._distributed_c10d import HookOpName

        super().__init__(on_error)
        self._codes = {
            int(getattr(HookOpName, name)): OPERATOR_CODES[operator]
            for name, operator in _FAMILIES.items()
            if hasattr(HookOpName, name)
        }
        self._attached: list[weakref.ref[Any]] = []

    def attach(self, process_group: Any, name: str, number: int, device: str) -> bool:
        """Add the hooks to a process group."""
        open_rows: dict[int, int | None] = {}
        self._attached.append(weakref.ref(process_group))
        process_group.register_pre_hook(HOOK_ID, self._before(number, open_rows, device))
        process_group.register_post_hook(HOOK_ID, self._after(open_rows, device))
        return True

    def detach(self) -> None:
        """Remove the hooks from the groups: one that outlives Python must neither call it nor free its objects."""
        for attached in self._attached:
            process_group = attached()
            if process_group is not None:
                process_group.unregister_pre_hook(HOOK_ID)
                process_group.unregister_post_hook(HOOK_ID)
        self._attached.clear()

    def _before(self, number: int, open_rows: dict[int, int | None], device: str) -> Callable[[Any], None]:
        # Training pays for all that runs per operator: names are local, and each attribute of torch's objects is read
        # once, since that costs as much as all the rest of a line.
        from torch._C._distributed_c10d import HookOpName

        names: Any = HookOpName
        codes, add, to_int = self._codes, self.ring.add, names.__int__
        collectives, counts = itertools.count(1), Counter[tuple[int, int]]()
        is_cpu, record_start = device == "cpu", self._devices.record_start
        p2p = self._point_to_point

        def before(args: Any) -> None:
            try:
                issued_ns, thread = _now_ns(), get_ident()
                open_rows[thread] = None  # its row before, if any, failed while it was issued
                if not self._is_on:
                    return
                op = codes.get(to_int(args.name))
                if op is None:
                    return
                tensors = args.input_tensors or args.output_tensors
                size = 0
                for tensor in tensors:
                    size += tensor.nbytes
                if not is_cpu and not record_start(args.op_id, tensors):
                    return
                if op < SEND:
                    open_rows[thread] = add(issued_ns, size, self._iteration, next(collectives), NO_PEER, number, op)
                    return
                peer = args.root
                counts[op, peer] += 1
                ordinal = add(issued_ns, size, self._iteration, counts[op, peer], peer, number, op)
                if is_cpu:
                    p2p.newest = ordinal
                else:
                    open_rows[thread] = ordinal
            except Exception as error:
                self._on_error(error)

        return before

    def _after(self, open_rows: dict[int, int | None], device: str) -> Callable[[Any], None]:
        finish, record_end = self.ring.finish, self._devices.record_end
        is_cpu = device == "cpu"
        watch = self._watcher()

        def after(args: Any) -> None:
            ordinal = open_rows.pop(get_ident(), None)  # the thread that issues runs both hooks
            if ordinal is None:
                return
            try:
                work = args.work
                if not is_cpu and record_end(args.op_id, work, ordinal):
                    return
                if work is None:
                    finish(ordinal, _now_ns())
                elif args.async_op:
                    watch(ordinal, work)
                elif wait_for_operator(work):
                    finish(ordinal, _now_ns())
                # One that failed never ended: its row stays open.
            except Exception as error:
                finish(ordinal, UNSEEN)
                self._on_error(error)

        return after
