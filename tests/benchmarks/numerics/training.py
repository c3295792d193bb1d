"""A small transformer that four processes train, with places into which a fault can be put."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from irregulars.producers.torch_hook.checksums import checksum
from tests.benchmarks.numerics.faults import Injector

VOCABULARY, BATCH, TOKENS = 64, 4, 32
WARM_UP, DECAY = 30, 400  # steps of the learning rate's schedule


@dataclass(frozen=True, slots=True)
class Setting:
    """A model and how it is trained."""

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
    """Predicts the next token."""

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
    """One rank's model and optimizer; `train` does a step and returns its row."""

    def __init__(self, setting: Setting) -> None:
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
        self.norms: dict[int, float] = {}
        self.not_finite = 0
        self.reduced_ns: tuple[int, int] = (0, 0)
        for number, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(self._local_gradient(number))
        self.linears = [one for one in self.model.modules() if isinstance(one, nn.Linear)]
        for number, linear in enumerate(self.linears):
            linear.register_forward_hook(self._output(number))

    def _optimizer(self) -> torch.optim.Optimizer:
        if self.setting.optimizer == "sgd":
            return torch.optim.SGD(self.parameters, self.setting.rate, momentum=0.9)
        return torch.optim.AdamW(self.parameters, self.setting.rate)

    def state(self) -> dict[str, Any]:
        """Copy all that the steps to come depend on."""
        own = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
        return copy.deepcopy(own) | {"random": torch.get_rng_state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a copy."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.step = state["step"]
        torch.set_rng_state(state["random"])

    # --- places of faults ---------------------------------------------------------------------------------------

    def _is_due(self, place: str) -> bool:
        one = self.injector
        return one is not None and one.fault.place == place and one.fault.rank == self.rank and one.fault.is_due(self.step)

    def _output(self, number: int) -> Callable[..., None]:
        def change(_: nn.Module, __: Any, output: torch.Tensor) -> None:
            if self._is_due("forward") and self.injector.choice % len(self.linears) == number:
                self.injector.hit(output.data)

        return change

    def _local_gradient(self, number: int) -> Callable[[torch.Tensor], None]:
        def look(parameter: torch.Tensor) -> None:
            gradient = parameter.grad
            assert gradient is not None
            if self._is_due("local_gradient") and self.injector.choice % len(self.parameters) == number:
                self.injector.hit(gradient)
            self.norms[number] = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
            if not math.isfinite(self.norms[number]):
                self.not_finite += int((~torch.isfinite(gradient)).sum())

        return look

    # --- one step -----------------------------------------------------------------------------------------------

    def rate_of(self, step: int) -> float:
        """Return the learning rate: it rises linearly, and falls as a cosine."""
        if step < WARM_UP:
            return self.setting.rate * (step + 1) / WARM_UP
        share = min(1.0, (step - WARM_UP) / DECAY)
        return self.setting.rate * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))

    def audit(self, batch: torch.Tensor) -> tuple[int, int]:
        """Compute one rank's gradients as all other ranks do; return the rank and their checksum."""
        of_rank = (self.step // self.setting.audit_every) % self.ranks
        batch, state = batch.clone(), torch.get_rng_state()
        random = state.clone()
        distributed.broadcast(batch, of_rank)
        distributed.broadcast(random, of_rank)
        kept, self_norms, counted = [one.grad for one in self.parameters], self.norms, self.not_finite
        for one in self.parameters:
            one.grad = None
        torch.set_rng_state(random)
        self.norms = {}
        loss_of(self.model, batch).backward()
        found = checksum([one.grad for one in self.parameters if one.grad is not None])
        for one, gradient in zip(self.parameters, kept, strict=True):
            one.grad = gradient
        torch.set_rng_state(state)
        self.norms, self.not_finite = self_norms, counted
        return of_rank, found

    def train(self, *, world: str = "", evaluates: bool = False) -> dict[str, Any]:
        """Do one step; return what a rank knows of it."""
        start_ns = time.time_ns()
        batch = batch_of(self.setting, self.rank, self.step, world=world)
        fault = self.injector.fault if self.injector is not None else None
        rate = self.rate_of(self.step)
        if fault is not None and fault.kind == "loss_spike" and fault.is_due(self.step):
            if fault.place == "learning_rate":
                rate *= fault.size
            elif fault.rank in (None, self.rank):
                own = np.random.default_rng([fault.seed, self.rank])
                noise = own.integers(VOCABULARY, size=tuple(batch.shape))
                batch = torch.where(torch.from_numpy(own.random(tuple(batch.shape)) < fault.size), torch.from_numpy(noise), batch)
        audit = None
        if self.setting.audit_every and self.step % self.setting.audit_every == 0:
            audit = self.audit(batch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        self.norms, self.not_finite = {}, 0
        loss = loss_of(self.parallel, batch)
        loss.backward()
        gradients = [one.grad for one in self.parameters]
        if self._is_due("reduced_gradient"):
            self.injector.hit(gradients[self.injector.choice % len(gradients)])
        limit = self.setting.clip or math.inf
        norm = float(nn.utils.clip_grad_norm_(self.parameters, limit))
        if self._is_due("optimizer_state"):
            states = [one for state in self.optimizer.state.values() for one in state.values() if one.numel() > 1]
            self.injector.hit(states[self.injector.choice % len(states)])
        before = [one.detach().clone() for one in self.parameters]
        self.optimizer.step()
        if self._is_due("weight"):
            self.injector.hit(self.parameters[self.injector.choice % len(self.parameters)].data)
        update = max(
            float(torch.linalg.vector_norm((one.detach() - old).double()) / math.sqrt(old.numel()))
            for one, old in zip(self.parameters, before, strict=True)
        )
        states = [state[name] for state in self.optimizer.state.values() for name in sorted(state) if state[name].numel() > 1]
        row = {
            "iteration": self.step, "start_ns": start_ns, "loss": float(loss), "grad_norm": norm,
            "local_grad_norm": math.sqrt(sum(one * one for one in self.norms.values())), "update_rms": update,
            "not_finite": self.not_finite + int(not math.isfinite(float(loss))),
            "parameters_checksum": checksum([*self.parameters, *states]), "audit": audit, "phase": "train",
            "reduced_ns": self.reduced_ns,
        }  # fmt: skip
        if evaluates:
            row["phase"] = "eval"
            with torch.no_grad():
                for number in range(4):
                    loss_of(self.model, batch_of(self.setting, self.rank, 1_000_000 + number))
        row["elapsed_ns"] = time.time_ns() - start_ns
        self.step += 1
        return row


def _reduce(replica: Replica, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average the ranks' gradients; where a receive buffer is at fault, by a ring that we can reach into."""
    flat = bucket.buffer().div_(replica.ranks)
    start_ns = time.time_ns()
    one = replica.injector
    if one is not None and one.fault.place == "receive_buffer" and one.fault.is_due(replica.step):
        reduce_in_ring(flat, replica.rank, replica.ranks, one if one.fault.rank == replica.rank else None)
    else:
        distributed.all_reduce(flat)
    replica.reduced_ns = start_ns, time.time_ns() - start_ns
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(flat)
    return done


# DDP wants to see the types themselves, and not their names.
_reduce.__annotations__ = {"bucket": distributed.GradBucket, "return": torch.futures.Future[torch.Tensor]}


def reduce_in_ring(flat: torch.Tensor, rank: int, ranks: int, injector: Injector | None) -> None:
    """Sum over the ranks by sends and receives; the injector hits one buffer after it was received.

    In the first ``ranks - 1`` turns partial sums go round, so that a hit alters the sum that all ranks get. In the rest
    whole sums go round: a hit alters what this rank has and hands on.
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

