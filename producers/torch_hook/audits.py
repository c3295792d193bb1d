"""Audits: each rank of a set of replicas computes one rank's micro-batch, and readers compare the checksums.

Before gradients are reduced, replicas differ by their data, so that a small error hides. Here all have the same
parameters and data, and must get the same bits.
"""

from __future__ import annotations

import logging
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from irregulars.producers.torch_hook.iterations import Iterations
from irregulars.producers.torch_hook.numerics import Checksum
from irregulars.producers.torch_hook.replicas import group_of, inner_of, is_sharded, sum_of

_LOG: Final = logging.getLogger("irregulars.torch")
LEAST_VOTERS: Final = 3
"""Of two that differ neither is known to be the one that errs."""

_ALIGNED: Final = 16  # bytes: of every tensor in a message, so that each can be seen as its own type


@dataclass(frozen=True, slots=True)
class _Place:
    """Takes the place of a tensor in the pickled batch."""

    number: int
    is_on_device: bool


def declined(model: Any, every: int, group: Any) -> Callable[[Any], None]:
    """Return the callable of a rank that can't audit: it votes so once, since the others wait for its vote."""
    try:
        return _Vote(model, every, group, can_audit=False)
    except Exception:  # without torch, or with a model that we don't know, no rank waits
        return lambda batch: None


class _Vote:
    """Counts the calls; at the first that is due all ranks of the group vote whether they can audit."""

    def __init__(self, model: Any, every: int, group: Any, *, can_audit: bool) -> None:
        self._every, self._wrapper, self._model = every, model, inner_of(model)
        self._group = group_of(model) if group is None else group
        self._calls = 0
        self._obstacle_found = self._obstacle()
        self._can_audit = can_audit
        # An obstacle lies in the model and its group, so that all ranks find the same one: they need no vote.
        self._is_agreed: bool | None = None if self._obstacle_found is None else False

    def __call__(self, batch: Any) -> None:
        self._calls += 1
        # The vote is a collective: it falls due at the same call as on the ranks that can audit.
        if not self._calls % self._every:
            self._agree()

    def _agree(self) -> bool:
        if self._is_agreed is None:
            self._is_agreed = self._all_can(self._can_audit)
        return self._is_agreed

    def _obstacle(self) -> str | None:
        from torch import distributed

        if is_sharded(self._wrapper):
            return "ranks hold parts of the parameters, and none computes a gradient alone"
        if self._group is None:
            return "no process group is known whose ranks hold the same parameters"
        voters = distributed.get_world_size(self._group)
        if voters < LEAST_VOTERS:
            return f"voters must be at least {LEAST_VOTERS}; got {voters}"
        if getattr(self._wrapper, "find_unused_parameters", False):
            return "DDP with find_unused_parameters would count the audit's use of parameters"
        return None

    def _all_can(self, can: bool) -> bool:
        """Whether something went well on all ranks of the group."""
        import torch
        from torch import distributed

        votes = torch.tensor([int(can)], dtype=torch.int32, device=self._device())
        distributed.all_reduce(votes, distributed.ReduceOp.MIN, group=self._group)
        return bool(int(votes))

    def _device(self) -> Any:
        from torch import distributed

        # NCCL reduces tensors of its device alone; every other backend takes those of the host.
        is_nccl = "nccl" in str(distributed.get_backend(self._group))
        return next(self._model.parameters()).device if is_nccl else "cpu"


class Audit(_Vote):
    """Called with this rank's micro-batch before each step; each `every`-th call audits one rank, in turn.

    `compute(model, batch)` computes a loss and calls `backward`. It is given the model inside DDP, which reduces
    nothing. Gradients, random numbers and the model's buffers are as before when a call returns.
    """

    def __init__(
        self, iterations: Iterations, model: Any, compute: Callable[[Any, Any], object], every: int, group: Any,
        on_error: Callable[[Exception], None],
    ) -> None:  # fmt: skip
        super().__init__(model, every, group, can_audit=True)
        self._iterations, self._compute, self._on_error = iterations, compute, on_error
        if self._obstacle_found is not None:
            self._log_none(self._obstacle_found)

    def __call__(self, batch: Any) -> None:
        """Audit, if it is time to; a collective of the group then."""
        self._calls += 1
        if self._is_agreed is False or self._calls % self._every:
            return
        try:
            if self._agree():
                self._audit(batch)
            else:
                self._log_none("a rank of the group can't audit")
        except Exception as error:
            self._on_error(error)

    def _log_none(self, reason: str) -> None:
        _LOG.warning("event=torch_comms_no_audits reason=%r training=unaffected", reason)

    def _audit(self, batch: Any) -> None:
        from torch import distributed

        ranks = distributed.get_process_group_ranks(self._group)
        number = self._calls // self._every - 1
        of_rank = ranks[number % len(ranks)]
        sent = self._sent(batch) if of_rank == distributed.get_rank() else None
        with self._iterations.auditing() as give:
            given = self._received(sent, of_rank)
            # All ranks leave here together: `_received` agrees on both of its reasons by collectives.
            if given is None:
                return
            found = self._gradients(given)
            # In the first audit all compute twice: bits that differ by themselves would accuse healthy ranks.
            if number == 0 and not self._is_repeatable(found, self._gradients(given)):
                self._is_agreed = False
                self._log_none("most ranks got other bits from the same computation: it is not deterministic")
            elif found is not None:
                give(of_rank, Checksum(found))

    def _is_repeatable(self, first: Any, second: Any) -> bool:
        """Whether most ranks computed the same twice. One that did not may be the one that errs."""
        import torch
        from torch import distributed

        differs = torch.tensor(
            [first is None or second is None or int(first) != int(second)], dtype=torch.int32, device=self._device()
        )
        distributed.all_reduce(differs, group=self._group)
        return 2 * int(differs) < distributed.get_world_size(self._group)

    # --- the input that all ranks compute from --------------------------------------------------------------------

    def _sent(self, batch: Any) -> tuple[bytes, list[tuple[Any, Any]]] | None:
        """Return the batch, with buffers and random states, as its tree, and its tensors' kinds and bytes.

        None: it can't be sent. Between two collectives nothing may raise: the others would wait.
        """
        import torch

        tensors: list[tuple[Any, Any]] = []

        def place_of(one: Any) -> _Place:
            own = one.detach().contiguous().reshape(-1).view(torch.uint8)
            tensors.append(((one.dtype, tuple(one.shape)), own))
            return _Place(len(tensors) - 1, one.is_cuda)

        try:
            return pickle.dumps(_replaced((batch, list(self._model.buffers()), _random_states()), place_of)), tensors
        except Exception as error:
            self._on_error(error)
            return None

    def _received(
        self, sent: tuple[bytes, list[tuple[Any, Any]]] | None, of_rank: int
    ) -> Callable[[], tuple[Any, Any, Any]] | None:
        """Send to, or receive from, all ranks; return the function that restores the input; None: there is none."""
        import torch
        from torch import distributed

        device = self._device()
        head: list[Any] = [None]
        if sent is not None:
            head = [(sent[0], [kind for kind, _ in sent[1]])]
        distributed.broadcast_object_list(head, of_rank, group=self._group)
        if head[0] is None:
            return None
        tree, kinds = head[0]
        lengths = [dtype.itemsize * int(np.prod(shape, dtype=np.int64)) for dtype, shape in kinds]
        # Each length is rounded up to `_ALIGNED`: tensors of 5 and 20 bytes begin at 0 and 16, and 48 bytes are sent.
        starts = np.cumsum([0, *(-(-one // _ALIGNED) * _ALIGNED for one in lengths)]).tolist()
        packed = torch.empty(0, dtype=torch.uint8)
        has_room = True
        try:
            packed = torch.zeros(starts[-1], dtype=torch.uint8, device=device)
        except Exception as error:  # no memory, on this rank alone
            self._on_error(error)
            has_room = False
        # Asked before the broadcast, in which the others would wait for a rank without a buffer.
        if not self._all_can(has_room):
            return None
        parts = [packed[start : start + length] for start, length in zip(starts, lengths, strict=False)]
        if sent is not None:
            for part, (_, own) in zip(parts, sent[1], strict=True):
                part.copy_(own)
        distributed.broadcast(packed, of_rank, group=self._group)
        place = next(self._model.parameters()).device

        def tensor_of(one: _Place) -> Any:
            dtype, shape = kinds[one.number]
            # A copy: torch crashes where the state of a generator is a view into another tensor.
            return parts[one.number].view(dtype).reshape(shape).clone().to(place if one.is_on_device else "cpu")

        return lambda: _replaced(pickle.loads(tree), tensor_of, _Place)

    def _gradients(self, given: Callable[[], tuple[Any, Any, Any]]) -> Any:
        """Compute, and return the sum over the gradients' bits; None: it failed on this rank."""
        import torch

        parameters = [one for one in self._model.parameters() if one.requires_grad]
        try:
            with self._as_before(parameters):
                batch, buffers, states = given()
                with torch.no_grad():
                    # Running statistics and random states (dropout) are inputs too: those of the audited rank.
                    for own, other in zip(self._model.buffers(), buffers, strict=True):
                        own.copy_(other)
                _set_random_states(states)
                self._compute(self._model, batch)
                return sum_of([one.grad for one in parameters if one.grad is not None])
        except Exception as error:
            self._on_error(error)
            return None

    @contextmanager
    def _as_before(self, parameters: Sequence[Any]) -> Iterator[None]:
        """Set gradients aside, and bring back all that a computation changes."""
        import torch

        gradients, states = [one.grad for one in parameters], _random_states()
        buffers = [one.detach().clone() for one in self._model.buffers()]
        is_deterministic, is_lenient = (
            torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
        )  # fmt: skip
        try:
            for one in parameters:
                one.grad = None
            # Where the script did not ask for it, an operator without a deterministic form must not raise.
            torch.use_deterministic_algorithms(True, warn_only=is_lenient or not is_deterministic)
            yield
        finally:
            torch.use_deterministic_algorithms(is_deterministic, warn_only=is_lenient)
            for one, gradient in zip(parameters, gradients, strict=True):
                one.grad = gradient
            with torch.no_grad():
                for buffer, kept in zip(self._model.buffers(), buffers, strict=True):
                    buffer.copy_(kept)
            _set_random_states(states)


def _random_states() -> tuple[Any, ...]:
    import torch

    # To ask a GPU's generator would initialise CUDA in a process that does not use it.
    on_device = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call, unused-ignore]
    return torch.get_rng_state(), on_device, random.getstate(), np.random.get_state()


def _set_random_states(states: tuple[Any, ...]) -> None:
    import torch

    on_host, on_device, of_python, of_numpy = states
    torch.set_rng_state(on_host)
    if on_device is not None:
        torch.cuda.set_rng_state(on_device)
    random.setstate(of_python)
    np.random.set_state(of_numpy)


def _replaced(value: Any, replace: Callable[[Any], Any], kind: Any = None) -> Any:
    """Copy nested dicts, lists and tuples with each tensor, or each instance of `kind`, replaced."""
    import torch

    if isinstance(value, kind or torch.Tensor):
        return replace(value)
    if isinstance(value, dict):
        return {key: _replaced(own, replace, kind) for key, own in value.items()}
    if isinstance(value, list | tuple):
        own = [_replaced(one, replace, kind) for one in value]
        # A named tuple takes its elements as separate arguments.
        return type(value)(*own) if hasattr(value, "_fields") else type(value)(own)
    # Any other object is pickled whole, with the tensors inside it.
    return value
