"""The training jobs that are recorded: DDP, sharded parameters, and a pipeline with tensor and data parallel ranks.

Small models with real autograd and real communication. A layer's time on its accelerator is waited for, not computed:
16 processes share the few cores of one machine, and a GPU's work costs the host no time either.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel

from tests.benchmarks.recordings.job_shape import JobShape

LEARNING_RATE: Final = 0.01
_BACKWARD_SHARE: Final = 2.0  # a backward pass takes twice the time of a forward pass


class Pace:
    """How long a rank's layers take; `factor` is set anew for each iteration."""

    def __init__(self, shape: JobShape) -> None:
        self.factor = 1.0
        self._device_s, self._burns = shape.device_ms / 1_000, shape.burns
        self._matrix = torch.randn(64, 64)

    def spend(self, share: float) -> None:
        """Compute for nothing, and wait for the accelerator."""
        for _ in range(round(self._burns * share * self.factor)):
            torch.mm(self._matrix, self._matrix)
        time.sleep(self._device_s * share * self.factor)


class _Spend(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """Passes its input on; takes the time of a layer, forward and backward."""

    @staticmethod
    def forward(context: Any, value: Tensor, pace: Pace) -> Tensor:
        context.pace = pace
        pace.spend(1.0)
        return value.view_as(value)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        context.pace.spend(_BACKWARD_SHARE)
        return gradient, None


class _Layer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, pace: Pace) -> None:
        super().__init__()
        self.linear, self._pace = torch.nn.Linear(width, width, bias=False), pace

    def forward(self, value: Tensor) -> Tensor:
        return torch.relu(_Spend.apply(self.linear(value), self._pace))


class Training:
    """One rank of a job.

    Parameters
    ----------
    shape
        The job.
    rank
        This one.
    """

    def __init__(self, shape: JobShape, rank: int) -> None:
        torch.manual_seed(1)
        self.shape, self.rank, self.pace = shape, rank, Pace(shape)
        self._groups = _make_groups(shape, rank)

    def step(self, *, is_forward_alone: bool = False) -> None:
        """Train with one batch, or evaluate one."""
        raise NotImplementedError

    def _batch(self) -> Tensor:
        return torch.randn(self.shape.rows, self.shape.width)


def _make_groups(shape: JobShape, rank: int) -> dict[str, Any]:
    """Make all groups of the job, as every rank must; keep those of this rank."""
    own = {}
    for name, found in shape.groups().items():
        for ranks in found:
            group = distributed.new_group(ranks, group_desc=name)
            if rank in ranks:
                own[name] = group
    return own


class DataParallel(Training):
    """DDP: gradients are shared in buckets beside the backward pass."""

    def __init__(self, shape: JobShape, rank: int) -> None:
        super().__init__(shape, rank)
        layers = torch.nn.Sequential(*(_Layer(shape.width, self.pace) for _ in range(shape.layers)))
        self._model = DistributedDataParallel(layers, bucket_cap_mb=0.5)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LEARNING_RATE)

    def step(self, *, is_forward_alone: bool = False) -> None:
        """Train with one batch, or evaluate one."""
        if is_forward_alone:
            with torch.no_grad():
                value = self._model.module(self._batch()).square().mean()
            distributed.all_reduce(value)
            return
        self._optimizer.zero_grad()
        self._model(self._batch()).square().mean().backward()
        self._optimizer.step()


class _ShardedLinear(torch.autograd.Function):  # type: ignore[misc]
    """A layer whose weights are gathered for each pass, and whose gradient is scattered (as in ZeRO-3)."""

    @staticmethod
    def forward(context: Any, value: Tensor, shard: Tensor, group: Any, pace: Pace) -> Tensor:
        context.save_for_backward(value, shard)
        context.group, context.pace = group, pace
        weight = _gathered(shard, value.shape[1], group)
        pace.spend(1.0)
        return value @ weight

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        value, shard = context.saved_tensors
        weight = _gathered(shard, value.shape[1], context.group)
        context.pace.spend(_BACKWARD_SHARE)
        whole = (value.t() @ gradient).reshape(-1)
        own = torch.empty_like(shard)
        distributed.reduce_scatter_tensor(own, whole, group=context.group)
        return gradient @ weight.t(), own, None, None


def _gathered(shard: Tensor, width: int, group: Any) -> Tensor:
    whole = torch.empty(shard.numel() * distributed.get_world_size(group), dtype=shard.dtype)
    distributed.all_gather_into_tensor(whole, shard.detach(), group=group)
    return whole.view(width, width)


class Sharded(Training):
    """Parameters in shards; where there are several copies, these share their gradients at the end."""

    def __init__(self, shape: JobShape, rank: int) -> None:
        super().__init__(shape, rank)
        size = shape.width * shape.width // shape.shard
        self._shards = [torch.nn.Parameter(torch.randn(size) * shape.width**-0.5) for _ in range(shape.layers)]
        self._optimizer = torch.optim.SGD(self._shards, lr=LEARNING_RATE)
        self._group, self._copies = self._groups.get("dp_shard"), self._groups.get("dp_replicate")

    def step(self, *, is_forward_alone: bool = False) -> None:
        """Train with one batch, or evaluate one."""
        self._optimizer.zero_grad()
        value = self._batch()
        with torch.set_grad_enabled(not is_forward_alone):
            for shard in self._shards:
                value = torch.relu(_ShardedLinear.apply(value, shard, self._group, self.pace))
        if is_forward_alone:
            return
        value.square().mean().backward()
        if self._copies is not None:
            for shard in self._shards:
                distributed.all_reduce(shard.grad, group=self._copies)
        self._optimizer.step()


class _SumOverParts(torch.autograd.Function):  # type: ignore[misc]
    """Adds the partial sums of tensor parallel ranks: activations forward, their gradients backward."""

    @staticmethod
    def forward(context: Any, value: Tensor, group: Any) -> Tensor:
        context.group = group
        summed = value.clone()
        distributed.all_reduce(summed, group=group)
        return summed

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        summed = gradient.clone()
        distributed.all_reduce(summed, group=context.group)
        return summed, None


class Pipeline(Training):
    """One stage: one forward, one backward in turn, and gradients shared beside the last backward pass."""

    def __init__(self, shape: JobShape, rank: int) -> None:
        super().__init__(shape, rank)
        self._layers = torch.nn.ModuleList(_Layer(shape.width, self.pace) for _ in range(shape.layers))
        self._optimizer = torch.optim.SGD(self._layers.parameters(), lr=LEARNING_RATE)
        size = shape.dp * shape.tp
        self._stage = rank // size
        self._before = rank - size if self._stage > 0 else None
        self._behind = rank + size if self._stage < shape.pp - 1 else None
        self._sharing: list[Any] | None = None
        for layer in self._layers:
            layer.linear.weight.register_post_accumulate_grad_hook(self._share)

    def step(self, *, is_forward_alone: bool = False) -> None:
        """Train with one batch, or evaluate one."""
        if is_forward_alone:
            with torch.no_grad():
                for _ in range(self.shape.microbatches):
                    self._send(self._forward(self._receive(self._before)), self._behind)
            return
        self._optimizer.zero_grad()
        waiting: deque[tuple[Tensor, Tensor]] = deque()
        count = self.shape.microbatches
        ahead = min(self.shape.pp - self._stage - 1, count)
        for _ in range(ahead):
            self._send(self._pushed(self._receive(self._before), waiting), self._behind)
        value = self._receive(self._before) if ahead < count else None
        for number in range(count - ahead):
            output = self._pushed(value, waiting)
            gradient = self._exchange(output, self._behind)
            is_last = number == count - ahead - 1
            past = self._backward(gradient, waiting, is_last=is_last and not ahead)
            if is_last:
                self._send(past, self._before)
            else:
                value = self._exchange(past, self._before)
        for number in range(ahead):
            past = self._backward(self._receive(self._behind), waiting, is_last=number == ahead - 1)
            self._send(past, self._before)
        for work in self._sharing or ():
            work.wait()
        self._sharing = None
        self._optimizer.step()

    def _forward(self, value: Tensor | None) -> Tensor:
        found = self._batch() if value is None else value
        for layer in self._layers:
            found = layer(found)
            if "tp" in self._groups:
                found = _SumOverParts.apply(found / self.shape.tp, self._groups["tp"])
        return found

    def _pushed(self, value: Tensor | None, waiting: deque[tuple[Tensor, Tensor]]) -> Tensor:
        given = self._batch() if value is None else value
        given.requires_grad_()
        output = self._forward(given)
        waiting.append((given, output))
        return output.detach()

    def _backward(self, gradient: Tensor | None, waiting: deque[tuple[Tensor, Tensor]], *, is_last: bool) -> Tensor:
        given, output = waiting.popleft()
        self._sharing = [] if is_last else None
        output.backward(torch.ones_like(output) / output.numel() if gradient is None else gradient)
        assert given.grad is not None
        return given.grad

    def _share(self, weight: Tensor) -> None:
        if self._sharing is not None and "dp" in self._groups:
            self._sharing.append(distributed.all_reduce(weight.grad, group=self._groups["dp"], async_op=True))

    def _receive(self, peer: int | None) -> Tensor | None:
        if peer is None:
            return None
        value = torch.empty(self.shape.rows, self.shape.width)
        distributed.recv(value, peer, group=self._groups["pp"])
        return value

    def _send(self, value: Tensor, peer: int | None) -> None:
        if peer is not None:
            distributed.send(value, peer, group=self._groups["pp"])

    def _exchange(self, value: Tensor, peer: int | None) -> Tensor | None:
        """Send to a neighbour and receive from it at once: two that only send would wait for each other for ever."""
        if peer is None:
            return None
        received = torch.empty(self.shape.rows, self.shape.width)
        coming = distributed.irecv(received, peer, group=self._groups["pp"])
        going = distributed.isend(value, peer, group=self._groups["pp"])
        going.wait()
        coming.wait()
        return received


TRAININGS: Final[dict[str, Callable[[JobShape, int], Training]]] = {
    "ddp": DataParallel, "sharded": Sharded, "pipeline": Pipeline,
}  # fmt: skip
