"""What each step of training computes, seen on this rank: norms of its gradient and update, checksums of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from irregulars.producers.torch_hook.checksums import sum_of
from irregulars.producers.torch_hook.iterations import Iterations
from irregulars.producers.torch_hook.replicas import inner_of, is_sharded, local_of, tensors_of

# Elements of each parameter whose update is measured: of all, it would cost three passes over the parameters. The RMS
# of 4,096 elements is off by about 1 %.
_SAMPLE: Final = 4096
_BITS: Final = 62  # of a checksum


class DeviceValue:
    """A number that a device may still be computing; reading it waits for it, in the thread that reads."""

    __slots__ = ("_event", "_host")

    def __init__(self, value: Any) -> None:
        import torch

        self._host = torch.empty(value.shape, dtype=value.dtype, device="cpu", pin_memory=True)
        self._host.copy_(value.detach(), non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def __float__(self) -> float:
        self._event.synchronize()
        return float(self._host)

    def __int__(self) -> int:
        self._event.synchronize()
        return int(self._host)


class Checksum:
    """The low 62 bits of an int64 that is, or will be, known."""

    __slots__ = ("_sum",)

    def __init__(self, value: Any) -> None:
        self._sum = readable(value)

    def __int__(self) -> int:
        return int(self._sum) & ((1 << _BITS) - 1)


def readable(value: Any) -> Any:
    """Return a number that can be read later, whatever becomes of the tensor that it comes in."""
    if getattr(value, "is_cuda", False):
        return DeviceValue(value)
    return value.item() if hasattr(value, "item") else value


class NumericsWatch:
    """Measures the steps of one optimizer, and sets the figures of the iterations in which they fall.

    Parameters
    ----------
    every
        Measures each iteration whose number this divides.
    checksum_steps
        Number of measured iterations over which the parameters and the optimizer's state are summed once: each sums
        the part that its number names, the same one on all ranks. 0: none.
    on_error
        Is given what goes wrong; training goes on.
    """

    def __init__(
        self, iterations: Iterations, model: Any, optimizer: Any, every: int, checksum_steps: int,
        on_error: Callable[[Exception], None],
    ) -> None:  # fmt: skip
        self._iterations, self._optimizer = iterations, optimizer
        self._every, self._checksum_steps, self._on_error = every, checksum_steps, on_error
        self._model = model
        self._trained = [one for one in inner_of(model).parameters() if one.requires_grad]
        self._sharded = is_sharded(model)
        self._ddp = model if inner_of(model) is not model else None
        self._norms: list[Any] = [None] * len(self._trained)
        self._not_finite = 0
        self._samples: tuple[list[int], list[Any], list[Any]] = ([], [], [])
        self._is_sampled = False
        self._plan: tuple[Any, list[list[tuple[int, str | None, int, int]]]] = (None, [])
        self._handles = [
            optimizer.register_step_pre_hook(self._kept(self._before)),
            optimizer.register_step_post_hook(self._kept(self._after)),
        ]
        if not self._sharded:
            self._handles += [
                one.register_post_accumulate_grad_hook(self._kept(self._local_gradient, number))
                for number, one in enumerate(self._trained)
            ]

    def close(self) -> None:
        """Leave the model and the optimizer as they were."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _kept(self, hook: Callable[..., None], *first: Any) -> Callable[..., None]:
        """Keep errors of a hook from training."""

        def call(*args: Any) -> None:
            number = self._iterations.running
            if number is None or number % self._every:
                return
            try:
                hook(*first, *args)
            except Exception as error:
                self._on_error(error)

        return call

    def _local_gradient(self, number: int, parameter: Any) -> None:
        """Measure one parameter's gradient, summed over this rank's micro-batches so far, and not over ranks yet.

        Torch calls this before DDP puts the gradient into a bucket.
        """
        if self._ddp is None or self._ddp.require_backward_grad_sync:
            self._norms[number], count = _norm(parameter.grad)
            self._not_finite += count

    def _before(self, *_: Any) -> None:
        """Look at the gradients that the optimizer is about to use, and keep a sample of the parameters."""
        import torch

        norms, self._norms = [one for one in self._norms if one is not None], [None] * len(self._norms)
        not_finite, self._not_finite = self._not_finite, 0
        figures: dict[str, Any] = {}
        if norms:
            figures["local_grad_norm"] = _together(norms)
        if not self._sharded and self._iterations.reported("grad_norm") is None:
            own = [one.grad for one in self._trained if one.grad is not None]
            if own and not own[0].is_cuda:
                found = [_norm(one) for one in own]
                figures["grad_norm"] = _together([norm for norm, _ in found])
                not_finite += 0 if norms else sum(count for _, count in found)
            elif own:
                figures["grad_norm"] = _together(torch._foreach_norm(own))
        if norms or "grad_norm" in figures:
            loss = self._iterations.reported("loss")
            is_loss_bad = isinstance(loss, float) and not math.isfinite(loss)
            figures["not_finite"] = _bad(norms) if norms and hasattr(norms[0], "is_cuda") else not_finite + is_loss_bad
        self._iterations.report({name: readable(value) for name, value in figures.items()})
        _, now, kept = self._sampled()
        torch._foreach_copy_(kept, now)
        self._is_sampled = True

    def _after(self, *_: Any) -> None:
        """Measure the update that the step made, and sum this iteration's part of what replicas must share."""
        import torch

        figures, checksum = {}, None
        if self._is_sampled:
            self._is_sampled = False
            _, now, kept = self._sampled()
            torch._foreach_sub_(kept, now)
            updates = torch._foreach_mul(torch._foreach_norm(kept), [one.numel() ** -0.5 for one in kept])
            figures["update_rms"] = readable(torch.stack(updates).max())
        if self._checksum_steps:
            number = self._iterations.running or 0
            checksum = Checksum(sum_of(self._part(number // self._every % self._checksum_steps)))
        self._iterations.report(figures, checksum)

    def _sampled(self) -> tuple[list[int], list[Any], list[Any]]:
        """Return where parameters lie, views of a sample of each, and room to keep the sample."""
        import torch

        places = [one.data_ptr() for one in self._trained]
        if places != self._samples[0]:
            views = [_sample(local_of(one.detach())) for one in self._trained]
            views = [one for one in views if one.numel()]
            self._samples = (places, views, [torch.empty_like(one) for one in views])
        return self._samples

    # --- the parts of a checksum --------------------------------------------------------------------------------------

    def _part(self, part: int) -> list[Any]:
        """Return views of one part of the parameters and of the optimizer's state, the same on all replicas."""
        state = self._optimizer.state
        tensors = tensors_of(self._model)
        if self._plan[0] != (len(tensors), len(state)):
            self._plan = (len(tensors), len(state)), self._planned(tensors)
        parameters = list(inner_of(self._model).parameters())
        found = []
        for number, key, first, past in self._plan[1][part]:
            whole = tensors[number] if key is None else local_of(state[parameters[number]][key])
            found.append(whole.detach().reshape(-1)[first:past])
        return found

    def _planned(self, tensors: Sequence[Any]) -> list[list[tuple[int, str | None, int, int]]]:
        """Cut all, put end to end, into parts of equal length: for each its tensors, and from where to where."""
        pieces: list[tuple[int, str | None, int]] = [(n, None, one.numel()) for n, one in enumerate(tensors)]
        if len(tensors) == sum(1 for _ in inner_of(self._model).parameters()):
            for number, parameter in enumerate(inner_of(self._model).parameters()):
                own = self._optimizer.state.get(parameter, {})
                pieces += [
                    (number, key, tensors[number].numel())
                    for key in sorted(own)
                    if getattr(own[key], "shape", None) == parameter.shape
                ]
        total, parts = sum(size for *_, size in pieces), self._checksum_steps
        return [_between(pieces, total * part // parts, total * (part + 1) // parts) for part in range(parts)]


def _between(pieces: Sequence[tuple[int, str | None, int]], first: int, past: int) -> list[tuple[int, str | None, int, int]]:
    found, start = [], 0
    for number, key, size in pieces:
        low, high = max(first - start, 0), min(past - start, size)
        if low < high:
            found.append((number, key, low, high))
        start += size
    return found


def _sample(tensor: Any) -> Any:
    """Return a view of the middle of a tensor."""
    flat = tensor.reshape(-1)
    first = max(0, flat.numel() - _SAMPLE) // 2
    return flat[first : first + _SAMPLE]


def _norm(gradient: Any) -> tuple[Any, int]:
    """Return a gradient's norm, and how many elements are not finite; on a device a tensor, and 0: to count must wait.

    A norm is not finite too where squares overflow; then float64 holds it.
    """
    import torch

    kind = torch.float32 if gradient.element_size() < 4 else None
    norm = torch.linalg.vector_norm(gradient, dtype=kind)
    if norm.is_cuda:
        return norm, 0
    number = norm.item()
    if math.isfinite(number):
        return number, 0
    count = int((~torch.isfinite(gradient)).sum())
    return (number if count else torch.linalg.vector_norm(gradient, dtype=torch.float64).item()), count


def _together(norms: Sequence[Any]) -> Any:
    """Return the norm of all from the norms of parts."""
    import torch

    if isinstance(norms[0], float):
        return math.hypot(*norms)
    return torch.linalg.vector_norm(torch.stack(list(norms)).double())


def _bad(norms: Sequence[Any]) -> Any:
    """Return how many gradients hold a number that is not finite: on a device, to count elements costs a pass more."""
    import torch

    return (~torch.isfinite(torch.stack(list(norms)))).sum()
