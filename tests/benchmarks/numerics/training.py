"""A small transformer that four processes train, with places into which a fault can be put."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from irregulars import torch_comms
from tests.benchmarks.numerics.faults import Injector

VOCABULARY, BATCH, TOKENS = 64, 4, 32
WARM_UP, DECAY = 30, 400  # steps of the learning rate's schedule


@dataclass(frozen=True, slots=True)
class Setting:
    seed: int
    width: int = 48
    layers: int = 2
    dtype: str = "float32"
    optimizer: str = "adamw"
    rate: float = 3e-3
    dropout: float = 0.0
    audit_every: int = 15
    clip: float | None = 1.0


class Block(nn.Module):
    """One layer of a transformer that sees the past alone."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)
        self.heads = 4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, of the shape of its input."""
        count, length, width = x.shape
        parts = self.attention_in(self.first(x)).view(count, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.attention_out(mixed.transpose(1, 2).reshape(count, length, width)))
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.second(x)))))


class Transformer(nn.Module):
    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, setting.width)
        self.places = nn.Embedding(TOKENS, setting.width)
        self.blocks = nn.Sequential(*(Block(setting.width, setting.dropout) for _ in range(setting.layers)))
        self.norm, self.head = nn.LayerNorm(setting.width), nn.Linear(setting.width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits, for each token but the last."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def batch_of(setting: Setting, rank: int, step: int, *, world: str = "") -> torch.Tensor:
    """Return a rank's batch of a step: walks by a chain in which each token has four followers."""
    rule = np.random.default_rng([setting.seed, 7, len(world)])
    followers = rule.integers(VOCABULARY, size=(VOCABULARY, 4))
    own = np.random.default_rng([setting.seed, rank, step])
    walk = own.integers(VOCABULARY, size=(BATCH, 1))
    choices = own.choice(4, p=[0.7, 0.1, 0.1, 0.1], size=(BATCH, TOKENS))
    for place in range(TOKENS):
        walk = np.concatenate([walk, followers[walk[:, -1], choices[:, place]][:, None]], axis=1)
    return torch.from_numpy(walk)


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of the next tokens."""
    logits = model(batch[:, :-1]).float()
    return nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), batch[:, 1:].reshape(-1))


class Replica:
    """One rank's model and optimizer; `train` does a step, watched and audited by `torch_comms`."""

    def __init__(self, setting: Setting, checksum_steps: int) -> None:
        self.setting = setting
        self.rank, self.ranks = distributed.get_rank(), distributed.get_world_size()
        torch.manual_seed(setting.seed)
        self.model = Transformer(setting).to(getattr(torch, setting.dtype))
        self.parallel = DistributedDataParallel(self.model)
        self.parallel.register_comm_hook(self, _reduce)
        self.parameters = list(self.model.parameters())
        self.optimizer = self._optimizer()
        self.step = 0
        self.injector: Injector | None = None
        # Before the sensors': they must see what a faulty device computed.
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self._local_gradient())
        self.linears = [one for one in self.model.modules() if isinstance(one, nn.Linear)]
        for number, linear in enumerate(self.linears):
            linear.register_forward_hook(self._output(number))
        torch_comms.watch_numerics(self.parallel, self.optimizer, checksum_steps=checksum_steps)
        self.audit = torch_comms.audit(self.parallel, self._compute_audit, every=setting.audit_every)
        self.is_audit = False

    def _optimizer(self) -> torch.optim.Optimizer:
        if self.setting.optimizer == "sgd":
            return torch.optim.SGD(self.parameters, self.setting.rate, momentum=0.9)
        return torch.optim.AdamW(self.parameters, self.setting.rate)

    def state(self) -> dict[str, Any]:
        """Copy all that the steps to come depend on."""
        own = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
        return copy.deepcopy(own) | {"random": torch.get_rng_state()}

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.step = state["step"]
        torch.set_rng_state(state["random"])

    # --- places of faults ---------------------------------------------------------------------------------------

    def _due(self, place: str) -> Injector | None:
        """Return the injector, if this rank is at fault at this place in this step."""
        one = self.injector
        if one is None or one.fault.place != place or one.fault.rank != self.rank or not one.fault.is_due(self.step):
            return None
        return None if self.is_audit and not one.fault.repeats else one  # one that comes once hits the step itself

    def _compute_audit(self, model: nn.Module, batch: torch.Tensor) -> None:
        self.is_audit = True
        before = self.injector.changed if self.injector is not None else 0
        try:
            _compute(model, batch)
        finally:
            self.is_audit = False
        if self.injector is not None:
            self.injector.audits.append(self.injector.changed > before)

    def _output(self, number: int) -> Callable[..., None]:
        def change(_: nn.Module, __: Any, output: torch.Tensor) -> None:
            one = self._due("forward")
            if one is not None and one.choice % len(self.linears) == number:
                one.hit(output.data)

        return change

    def _local_gradient(self) -> Callable[[torch.Tensor], None]:
        def change(parameter: torch.Tensor) -> None:
            one = self._due("local_gradient")
            if one is None or parameter.grad is None:
                return
            # A lane is one of a matrix product, as that of a linear layer's weights.
            hit = self.parameters if one.fault.lane is None else [linear.weight for linear in self.linears]
            if hit[one.choice % len(hit)] is parameter:
                one.hit(parameter.grad)

        return change

    def _hit(self, place: str, tensors: Sequence[torch.Tensor]) -> None:
        one = self._due(place)
        if one is not None:
            one.hit(tensors[one.choice % len(tensors)].data)

    # --- one step -----------------------------------------------------------------------------------------------

    def rate_of(self, step: int) -> float:
        """Return the learning rate: it rises linearly, and falls as a cosine."""
        if step < WARM_UP:
            return self.setting.rate * (step + 1) / WARM_UP
        share = min(1.0, (step - WARM_UP) / DECAY)
        return self.setting.rate * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))

    def _batch_and_rate(self, world: str) -> tuple[torch.Tensor, float]:
        batch, rate = batch_of(self.setting, self.rank, self.step, world=world), self.rate_of(self.step)
        fault = self.injector.fault if self.injector is not None else None
        if fault is None or fault.kind != "loss_spike" or not fault.is_due(self.step):
            return batch, rate
        if fault.place == "learning_rate":
            return batch, rate * fault.size
        if fault.rank in (None, self.rank):
            own, shape = np.random.default_rng([fault.seed, self.rank]), tuple(batch.shape)
            noise, is_bad = own.integers(VOCABULARY, size=shape), own.random(shape) < fault.size
            batch = torch.where(torch.from_numpy(is_bad), torch.from_numpy(noise), batch)
        return batch, rate

    def train(self, number: int, *, world: str = "", evaluates: bool = False) -> float:
        """Do one step as iteration `number` of the recording; return this rank's loss."""
        with torch_comms.iteration(number):
            batch, rate = self._batch_and_rate(world)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.zero_grad()
            self.audit(batch)
            loss = _compute(self.parallel, batch)
            gradients = [one.grad for one in self.parameters if one.grad is not None]
            self._hit("reduced_gradient", gradients)
            norm = nn.utils.clip_grad_norm_(self.parameters, self.setting.clip or math.inf)
            torch_comms.report(loss=loss, grad_norm=norm, tokens=batch[:, 1:].numel())
            states = [one for state in self.optimizer.state.values() for one in state.values() if one.numel() > 1]
            if states:
                self._hit("optimizer_state", states)
            self.optimizer.step()
            self._hit("weight", self.parameters)
            if evaluates:
                with torch_comms.phase("eval"), torch.no_grad():
                    for other in range(4):
                        loss_of(self.model, batch_of(self.setting, self.rank, 1_000_000 + other))
        self.step += 1
        return float(loss)


def _compute(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss = loss_of(model, batch)
    loss.backward()
    return loss.detach()


def _reduce(replica: Replica, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the ranks' gradients; where a receive buffer is at fault, by a ring that we can reach into."""
    flat = bucket.buffer().div_(replica.ranks)
    one = replica.injector
    if one is not None and one.fault.place == "receive_buffer" and one.fault.is_due(replica.step):
        reduce_in_ring(flat, replica.rank, replica.ranks, one if one.fault.rank == replica.rank else None)
    else:
        distributed.all_reduce(flat)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(flat)
    return done


# DDP wants to see the types themselves, and not their names.
_reduce.__annotations__ = {"bucket": distributed.GradBucket, "return": torch.futures.Future[torch.Tensor]}


def reduce_in_ring(flat: torch.Tensor, rank: int, ranks: int, injector: Injector | None) -> None:
    """Sum over the ranks by sends and receives; the injector hits one buffer after it was received.

    In the first ``ranks - 1`` turns partial sums go round, so that a hit alters the sum that all ranks get. In the
    rest whole sums go round: a hit alters what this rank has and hands on.
    """
    chunks = list(flat.chunk(ranks))
    chunks += [flat[:0]] * (ranks - len(chunks))
    turn_hit = injector.choice % (2 * (ranks - 1)) if injector is not None else -1
    for turn in range(2 * (ranks - 1)):
        sent, got = chunks[(rank - turn) % ranks], chunks[(rank - turn - 1) % ranks]
        buffer = torch.empty_like(got)
        work = distributed.isend(sent.contiguous(), (rank + 1) % ranks)
        distributed.recv(buffer, (rank - 1) % ranks)
        work.wait()
        if turn == turn_hit and injector is not None:
            injector.hit(buffer)
        if turn < ranks - 1:
            got += buffer
        else:
            got.copy_(buffer)
