"""The hook in Python for a torch without collective hooks: kernels in front of the operators of ``c10d``.

All of `torch.distributed` and DDP's own C++ go through torch's dispatcher. Kernels at the autograd keys, where these
operators have none, record each call and pass it on. It records the same as `PythonHook`, and costs more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from irregulars.messages.records import OPERATOR_CODES, SEND
from irregulars.producers.torch_hook.hooks.recording_hook import RecordingHook, wait_for_operator
from irregulars.producers.torch_hook.hooks.ring import NO_PEER, UNSEEN

_FAMILIES: Final = {
    "allreduce_": ("all_reduce", 0), "allreduce_coalesced_": ("all_reduce", 0), "broadcast_": ("broadcast", 0),
    "reduce_": ("reduce", 0), "allgather_": ("all_gather", 1), "_allgather_base_": ("all_gather", 1),
    "allgather_coalesced_": ("all_gather", 1), "allgather_into_tensor_coalesced_": ("all_gather", 1),
    "reduce_scatter_": ("reduce_scatter", 1), "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1), "alltoall_": ("all_to_all", 1),
    "alltoall_base_": ("all_to_all", 1), "gather_": ("gather", 1), "scatter_": ("scatter", 1),
    "barrier": ("barrier", None), "send": ("send", 0), "recv_": ("recv", 0),
}  # fmt: skip
"""Operators of ``c10d``: ours, and which argument is the payload of this rank."""

_KEYS: Final = ("AutogradCPU", "AutogradCUDA")
_PEER: Final = 2  # which argument of send and recv_
_now_ns = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class _Group:
    number: int
    is_cpu: bool
    counts: dict[Any, int]
    watch: Callable[[int, Any], None]


class DispatcherHook(RecordingHook):
    """Kernels in front of torch's own, and the ring that they write into."""

    name = "dispatcher"

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        super().__init__(on_error)
        self._groups: dict[str, _Group] = {}
        import torch
        from torch._C._distributed_c10d import Work

        self._unbox: Any = Work.unbox
        library: Any = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call, unused-ignore]
        for name, (family, payload) in _FAMILIES.items():
            packet = getattr(torch.ops.c10d, name, None)
            # Versions of torch differ in the operators that they have.
            if packet is not None:
                kernel = self._kernel(packet.default, OPERATOR_CODES[family], payload)
                for key in _KEYS:
                    library.impl(name, kernel, key, with_keyset=True)
        self._library = library

    def attach(self, process_group: Any, name: str, number: int, device: str) -> bool:
        """Record the operators of a process group from now on."""
        self._groups[name] = _Group(number, device == "cpu", {}, self._watcher())
        return True

    def detach(self) -> None:
        """Forget the groups, and remove the kernels."""
        self._groups.clear()
        self._library = None

    def _kernel(self, operator: Any, op: int, payload: int | None) -> Callable[..., Any]:
        import torch
        from torch._C._distributed_c10d import ProcessGroup

        below: Any = torch._C._after_autograd_keyset
        names = [argument.name for argument in operator._schema.arguments]
        group_at = names.index("process_group")
        async_at = names.index("async_op") if "async_op" in names else None

        def kernel(keyset: Any, *args: Any) -> Any:
            begun = None
            try:
                if self._is_on:
                    begun = self._begin(ProcessGroup.unbox(args[group_at]), op, payload, args)
            except Exception as error:
                self._on_error(error)
            result = operator.redispatch(keyset & below, *args)
            if begun is not None:
                # The dispatcher leaves out a last argument that has its default: then it is the caller's to wait.
                is_sync = async_at is not None and len(args) > async_at and not args[async_at]
                work = result[-1] if isinstance(result, (tuple, list)) else result
                self._watch(begun, work, is_sync)
            return result

        return kernel

    def _begin(
        self, process_group: Any, op: int, payload: int | None, args: Sequence[Any]
    ) -> tuple[int, int, _Group] | None:
        group = self._groups.get(process_group.group_name)
        if group is None:
            return None
        issued_ns = _now_ns()
        # Only the root of a scatter has inputs: the payload of the other ranks is their output.
        tensors = [] if payload is None else _flat(args[payload]) or _flat(args[0])
        if not group.is_cpu and not self._devices.record_start(issued_ns, tensors):
            return None
        peer = args[_PEER] if op >= SEND else NO_PEER
        # All collectives of a group share one sequence; sends have one for each peer, and so have recvs.
        key = (op, peer) if op >= SEND else None
        sequence = group.counts[key] = group.counts.get(key, 0) + 1
        size = sum(tensor.nbytes for tensor in tensors)
        ordinal = self.ring.add(issued_ns, size, self._iteration, sequence, peer, group.number, op)
        if group.is_cpu and op >= SEND:
            self._point_to_point.newest = ordinal
            return None
        return ordinal, issued_ns, group

    def _watch(self, begun: tuple[int, int, _Group], boxed: Any, is_sync: bool) -> None:
        ordinal, op_id, group = begun
        try:
            work = self._unbox(boxed)
            if not group.is_cpu and self._devices.record_end(op_id, work, ordinal):
                return
            if not is_sync:
                group.watch(ordinal, work)
            elif wait_for_operator(work):
                self.ring.finish(ordinal, _now_ns())
            # One that failed never ended: its row stays open.
        except Exception as error:
            self.ring.finish(ordinal, UNSEEN)
            self._on_error(error)


def _flat(argument: Any) -> list[Any]:
    """Return the tensors of an argument that is a tensor, a list of them, or a list of lists."""
    if not isinstance(argument, (list, tuple)):
        return [argument]
    return [tensor for one in argument for tensor in _flat(one)]
