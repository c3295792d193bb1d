"""The numbers of each training step, as this rank sees them: norms of gradient and update, and checksums."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from irregulars.producers.torch_hook.iterations import Iterations
from irregulars.producers.torch_hook.replicas import (
    CHECKSUM_MASK,
    inner_of,
    is_sharded,
    local_of,
    shared_parameters,
    sum_of,
)

# Elements of each parameter whose update is measured: of all, it would cost three passes over the parameters. The RMS
# of 1,024 elements is off by about 2 %.
_SAMPLE: Final = 1024
_LOGITS: Final = "current_max_attn_logits"
"""Attribute of Megatron's attention: the largest logit of each head since the last step; None: not measured."""


class DeviceValue:
    """A number that a device may still be computing; reading it waits for it, in the thread that reads."""

    __slots__ = ("_event", "_host")

    def __init__(self, value: Any) -> None:
        import torch

        self._host = torch.empty((), dtype=value.dtype, device="cpu", pin_memory=True)
        self._host.copy_(value.detach().reshape(()), non_blocking=True)
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call, unused-ignore]
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
        self._sum = number_of(value, int)

    def __int__(self) -> int:
        return int(self._sum) & CHECKSUM_MASK


def number_of(value: Any, kind: type[float]) -> Any:
    """Return a number, of a tensor too; one that a device still computes can be read later.

    Raises ValueError, TypeError or RuntimeError if it is no single number: here, and not in the thread that reads it.
    """
    if getattr(value, "is_cuda", False):
        return DeviceValue(value)
    return kind(value.item() if hasattr(value, "item") else value)


class _Sample:
    """Some elements of each parameter, from its middle, and room to keep them in: a row of a table for each."""

    def __init__(self, places: list[int], parameters: Sequence[Any]) -> None:
        import torch

        self.places = places  # where the parameters lie: where they move, views show what was there
        firsts = [max(0, one.numel() - _SAMPLE) // 2 for one in parameters]
        self.views = [one[first : first + _SAMPLE] for one, first in zip(parameters, firsts, strict=True)]
        own = {"dtype": torch.float32, "device": parameters[0].device}
        self.table = torch.zeros(len(self.views), _SAMPLE, **own)
        self.kept = [row[: one.numel()] for row, one in zip(self.table, self.views, strict=True)]
        self.factors = torch.tensor([max(one.numel(), 1) ** -0.5 for one in self.views], **own)


class NumericsWatch:
    """Measures the steps of one optimizer, and sets the figures of the iterations in which they fall.

    `every`: measures each iteration whose number this divides. `checksum_steps`: number of measured iterations over
    which the parameters and the optimizer's state are summed once: each sums the part that its number names, the same
    one on all ranks; 0: none. `on_error`: is given each error; training goes on.
    """

    def __init__(
        self, iterations: Iterations, model: Any, optimizer: Any, every: int, checksum_steps: int,
        on_error: Callable[[Exception], None],
    ) -> None:  # fmt: skip
        self._iterations, self._optimizer = iterations, optimizer
        self._every, self._checksum_steps, self._on_error = every, checksum_steps, on_error
        self._ddp = model if inner_of(model) is not model else None
        self._shared = shared_parameters(model)
        self._trained = [one for one in inner_of(model).parameters() if one.requires_grad]
        self._sharded = is_sharded(model)
        self._attentions = [one for one in inner_of(model).modules() if hasattr(one, _LOGITS)]
        # DDP reduces such gradients in place, a bucket as soon as it is full: each must be read before that.
        self._must_hurry = bool(getattr(self._ddp, "gradient_as_bucket_view", False))
        self._norms: dict[int, Any] = {}  # of the local gradient, by parameter
        self._not_finite: dict[int, Any] = {}  # elements of it, by parameter
        self._is_waiting = False  # for the end of a backward pass
        self._latest = 0  # parameter whose gradient came last
        self._sample: _Sample | None = None  # from before a step until after it
        self._made: _Sample | None = None
        self._plan: tuple[int, list[list[tuple[int, str | None, int, int]]]] = (-1, [])
        self._handles = [
            optimizer.register_step_pre_hook(partial(self._call, self._before)),
            optimizer.register_step_post_hook(partial(self._call, self._after)),
        ]
        self._gradient_handles: list[Any] = []
        self._listen(range(len(self._trained)))

    def close(self) -> None:
        """Leave the model and the optimizer as they were."""
        for handle in (*self._handles, *self._gradient_handles):
            handle.remove()

    def _call(self, hook: Callable[..., None], *args: Any) -> None:
        """Call a hook in an iteration that is measured, and keep its errors from training."""
        number = self._iterations.running
        # Between iterations, in those that are not measured, and where a captured stream allows no reading.
        if number is None or number % self._every or is_captured():
            return
        try:
            hook(*args)
        except Exception as error:
            self._on_error(error)

    # --- the gradient before any reduction ------------------------------------------------------------------------

    def _listen(self, numbers: Iterable[int]) -> None:
        """Be called when the gradients of these parameters, and no others, are there, before DDP has seen them."""
        for handle in self._gradient_handles:
            handle.remove()
        numbers = () if self._sharded else numbers
        # Weakly: the optimizer's hooks hold this watch, which holds the parameters. Python's collector can't follow a
        # parameter that has views, as those of the sample: a circle over it would never be freed.
        own = weakref.ref(self)

        def arrived(number: int, parameter: Any) -> None:
            watch = own()
            if watch is not None:
                watch._call(watch._arrived, number, parameter)

        self._gradient_handles = [
            self._trained[one].register_post_accumulate_grad_hook(partial(arrived, one)) for one in numbers
        ]

    def _arrived(self, number: int, parameter: Any) -> None:
        if self._ddp is not None and not self._ddp.require_backward_grad_sync:
            return  # more micro-batches are summed into it
        self._latest = number
        if self._must_hurry:
            (self._norms[number],), self._not_finite[number] = _norms([parameter.grad])
        elif not self._is_waiting:
            from torch.autograd import Variable

            # At the end of the pass, but before DDP, which queues later, puts the averages in the gradients' place.
            Variable._execution_engine.queue_callback(partial(self._call, self._passed))  # type: ignore[attr-defined, unused-ignore]
            self._is_waiting = True

    def _passed(self) -> None:
        self._is_waiting = False
        self._norms, not_finite = self._norms_of_gradients()
        self._not_finite = {0: not_finite}

    def _norms_of_gradients(self) -> tuple[dict[int, Any], Any]:
        own = {number: one.grad for number, one in enumerate(self._trained) if one.grad is not None}
        norms, not_finite = _norms(list(own.values()))
        return dict(zip(own, norms, strict=True)), not_finite

    # --- one step of the optimizer --------------------------------------------------------------------------------

    def _before(self, *_: Any) -> None:
        """Measure the gradients that the optimizer is about to use, and keep a sample of the parameters."""
        import torch

        norms, not_finite = self._norms, sum(self._not_finite.values())
        self._norms, self._not_finite, self._is_waiting = {}, {}, False
        figures: dict[str, Any] = {}
        if norms:
            figures["local_grad_norm"] = _together(list(norms.values()))
        if not self._must_hurry:
            # A call costs 50 µs while caches hold the model and not the interpreter: one is enough, the last.
            self._listen([self._latest] if norms else range(len(self._trained)))
        if not self._sharded and self._iterations.reported("grad_norm") is None:
            reduced, bad = self._norms_of_gradients()
            figures["grad_norm"] = _together(list(reduced.values()))
            not_finite = not_finite if norms else bad
        if figures:
            loss = self._iterations.reported("loss")
            figures["not_finite"] = not_finite + (isinstance(loss, float) and not math.isfinite(loss))
        self._iterations.report({name: number_of(value, float) for name, value in figures.items()})
        self._sample = self._sample_now()
        torch._foreach_copy_(self._sample.kept, self._sample.views)

    def _after(self, *_: Any) -> None:
        """Measure the update that the step made, and sum this iteration's part of what replicas must share."""
        import torch

        figures, checksum = {}, None
        # None: `_before` failed.
        if self._sample is not None:
            one, self._sample = self._sample, None
            torch._foreach_sub_(one.kept, one.views)
            figures["update_rms"] = number_of((torch.linalg.vector_norm(one.table, dim=1) * one.factors).max(), float)
        logits = [own for one in self._attentions if (own := getattr(one, _LOGITS)) is not None]
        if logits and self._iterations.reported("attention_logit") is None:
            figures["attention_logit"] = number_of(torch.stack([one.max() for one in logits]).max(), float)
        if self._checksum_steps:
            number = self._iterations.running or 0
            checksum = Checksum(sum_of(self._part(number // self._every % self._checksum_steps)))
        self._iterations.report(figures, checksum)

    def _sample_now(self) -> _Sample:
        parts = [local_of(one.detach()) for one in self._trained] if self._sharded else self._trained
        places = [one.data_ptr() for one in parts]
        # Parameters may have been given new memory since: by a move to a device, by FSDP.
        if self._made is None or self._made.places != places:
            self._made = _Sample(places, [one.detach().reshape(-1) for one in parts])
        return self._made

    # --- the parts of a checksum ----------------------------------------------------------------------------------

    def _part(self, part: int) -> list[Any]:
        """Return views of one part of the parameters and of the optimizer's state, the same on all replicas."""
        state = self._optimizer.state
        if self._plan[0] != len(state):  # it grows in the first step
            self._plan = len(state), self._planned()
        found = []
        for number, key, first, past in self._plan[1][part]:
            one = self._shared[number]
            whole = local_of(one if key is None else state[one][key])
            found.append(whole.detach().reshape(-1)[first:past])
        return found

    def _planned(self) -> list[list[tuple[int, str | None, int, int]]]:
        """Cut all, put end to end, into parts of equal length: for each its tensors, and from where to where."""
        pieces: list[tuple[int, str | None, int]] = []
        for number, one in enumerate(self._shared):
            own, size = self._optimizer.state.get(one, {}), local_of(one).numel()
            like = sorted(key for key in own if getattr(own[key], "shape", None) == one.shape)
            pieces += [(number, key, size) for key in (None, *like)]
        # All parameters first: so what altered one, and its state, shows in several of the parts.
        pieces.sort(key=lambda piece: piece[1] or "")
        total, parts = sum(size for *_, size in pieces), self._checksum_steps
        return [_between(pieces, total * part // parts, total * (part + 1) // parts) for part in range(parts)]


def _between(
    pieces: Sequence[tuple[int, str | None, int]], first: int, past: int
) -> list[tuple[int, str | None, int, int]]:
    found, start = [], 0
    for number, key, size in pieces:
        # At multiples of 8 elements, and so of words
        low, high = (min(max(at - start, 0) // 8 * 8, size) if at < start + size else size for at in (first, past))
        if low < high:
            found.append((number, key, low, high))
        start += size
    return found


def _norms(gradients: Sequence[Any]) -> tuple[list[Any], Any]:
    """Return the gradients' norms, and how many of their elements are not finite.

    On a device both are tensors, and of the second there are the gradients that hold such an element, since to count
    elements takes a pass more, or the host would have to wait. On the host, a norm whose squares overflow is computed
    anew in float64.
    """
    import torch

    # Squares of 16-bit numbers overflow or vanish in 16 bits: they are summed in 32.
    is_short = gradients[0].element_size() < 4
    norms = torch._foreach_norm(list(gradients), dtype=torch.float32 if is_short else None)
    if norms[0].is_cuda:
        return list(norms), (~torch.isfinite(torch.stack(norms))).sum()
    numbers, not_finite = [norm.item() for norm in norms], 0
    for place, number in enumerate(numbers):
        if not math.isfinite(number):
            bad = int((~torch.isfinite(gradients[place])).sum())
            exact = torch.linalg.vector_norm(gradients[place], dtype=torch.float64).item()
            numbers[place], not_finite = number if bad else exact, not_finite + bad
    return numbers, not_finite


def _together(norms: Sequence[Any]) -> Any:
    """Return the norm of all from the norms of parts."""
    import torch

    if isinstance(norms[0], float):
        # It scales its arguments, so that no square overflows.
        return math.hypot(*norms)
    return torch.linalg.vector_norm(torch.stack(list(norms)).double())


def is_captured() -> bool:
    """Whether the stream is captured into a graph: then nothing may be recorded in it."""
    import torch

    is_used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call, unused-ignore]
    return is_used and torch.cuda.is_current_stream_capturing()
