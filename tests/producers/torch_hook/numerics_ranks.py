"""What four ranks do to try the sensors of numbers, on gloo: ``python numerics_ranks.py TRACE_DIRECTORY``.

Each prints one JSON object: what it found inside. Its rows are in the trace directory, by the numbers of iterations.
"""

from __future__ import annotations

import copy
import json
import math
import os
import sys
import warnings
from datetime import timedelta
from typing import Any

warnings.simplefilter("ignore")

import torch  # noqa: E402
from torch import distributed, nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402

from irregulars import torch_comms  # noqa: E402
from irregulars.producers.torch_hook.replicas import is_sharded, replicas_of  # noqa: E402

RANK, RANKS = int(os.environ["RANK"]), 4
STEPS, AUDIT_EVERY, CHECKSUM_STEPS = 8, 2, 4
SAME, MEASURED, HASTY, FLIPPED, SHARDED = 100, 200, 300, 400, 500  # first iterations of the parts of this script
CULPRIT = 2
UNSENDABLE = 5  # step of the third audit, whose batch no rank can send


def make(seed: int, *, dropout: bool = False, dtype: Any = torch.float32, **how: Any) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    noise = [nn.BatchNorm1d(24), nn.Dropout(0.3)] if dropout else []
    inner = nn.Sequential(nn.Linear(16, 24), *noise, nn.ReLU(), nn.Linear(24, 5)).to(dtype)
    model = nn.parallel.DistributedDataParallel(inner, **how)
    return model, torch.optim.AdamW(model.parameters(), 1e-2)


def compute(model: Any, batch: Any) -> Any:
    loss = model(batch["x"]).float().square().mean()
    loss.backward()
    return loss.detach()


def batch_of(step: int, dtype: Any = torch.float32) -> dict[str, Any]:
    random = torch.Generator().manual_seed(1000 * step + RANK)
    return {"x": torch.randn(12, 16, generator=random).to(dtype), "names": ["a", step]}


def train(first: int | None, *, fails: bool = False, **how: Any) -> list[Any]:
    """Train with all sensors, or with none; return everything that training has changed."""
    model, optimizer = make(5, dropout=True, **how)
    dtype = how.get("dtype", torch.float32)

    def compute_or_fail(inner: Any, batch: Any) -> None:
        compute(inner, batch)
        if fails and RANK == 0:
            raise ArithmeticError("the audit fails on rank 0")

    audit = torch_comms.audit(model, compute_or_fail, every=AUDIT_EVERY)
    if first is not None:
        torch_comms.watch_numerics(model, optimizer, checksum_steps=CHECKSUM_STEPS)
    torch.manual_seed(RANK)
    for step in range(STEPS):
        with torch_comms.iteration(None if first is None else first + step):
            optimizer.zero_grad()
            batch = batch_of(step, dtype)
            audit(batch | {"names": lambda: 0} if fails and step == UNSENDABLE else batch)
            loss = compute(model, batch_of(step, dtype))
            torch_comms.report(loss=loss, grad_norm=nn.utils.clip_grad_norm_(model.parameters(), 0.5))
            optimizer.step()
    own = [*model.parameters(), *model.buffers(), torch.get_rng_state(), torch.tensor(loss)]
    own += [one for state in optimizer.state.values() for one in state.values()]
    return [one.detach().clone() for one in own]


def measure(first: int, **how: Any) -> list[dict[str, float]]:
    """Train, and work out by plain means what the sensors should find."""
    model, optimizer = make(6, **how)
    attention = model.module[0]
    attention.current_max_attn_logits = None  # as Megatron's attention begins
    torch_comms.watch_numerics(model, optimizer, checksum_steps=1)
    found = []
    for step in range(STEPS):
        alone = copy.deepcopy(model.module)
        alone.zero_grad()
        compute(alone, batch_of(step))
        own = torch.cat([one.grad.reshape(-1) for one in alone.parameters()])
        reduced = own.clone()
        distributed.all_reduce(reduced)
        before = [one.detach().clone() for one in model.parameters()]
        with torch_comms.iteration(first + step):
            optimizer.zero_grad()
            torch_comms.report(loss=compute(model, batch_of(step)))
            attention.current_max_attn_logits = torch.tensor([0.5, step + RANK + 1])
            optimizer.step()
        updates = [
            float((one.detach() - old).square().mean().sqrt())
            for one, old in zip(model.parameters(), before, strict=True)
        ]
        norms = {"local_grad_norm": float(own.norm()), "grad_norm": float(reduced.norm() / RANKS)}
        found.append(norms | {"update_rms": max(updates), "attention_logit": step + RANK + 1})
    # At last, a rank computes a gradient that is not finite.
    first_layer = next(model.parameters())
    if RANK == CULPRIT:
        first_layer.register_hook(lambda gradient: gradient.index_fill(0, torch.arange(1), math.inf)[:, :])
    with torch_comms.iteration(first + STEPS):
        optimizer.zero_grad()
        compute(model, batch_of(STEPS))
        optimizer.step()
    return found


def flip(first: int) -> None:
    """Train; the culprit's audits are off by one bit, and later one bit of its weights is."""
    model, optimizer = make(7)

    def compute_wrongly(inner: Any, batch: Any) -> None:
        compute(inner, batch)
        if RANK == CULPRIT:
            next(inner.parameters()).grad.view(torch.int32)[0, 0] ^= 1

    audit = torch_comms.audit(model, compute_wrongly, every=AUDIT_EVERY)
    torch_comms.watch_numerics(model, optimizer, checksum_steps=CHECKSUM_STEPS)
    for step in range(3 * CHECKSUM_STEPS):
        with torch_comms.iteration(first + step):
            optimizer.zero_grad()
            audit(batch_of(step))
            compute(model, batch_of(step))
            torch_comms.report(loss=torch.zeros(2))  # not one number
            optimizer.step()
        if RANK == CULPRIT and step == CHECKSUM_STEPS - 1:
            next(model.parameters()).data.view(torch.int32)[0, 0] ^= 1


def shard(first: int) -> None:
    """Train in two replicas of two shards each."""
    torch.manual_seed(9)
    model = nn.Linear(8, 8)
    fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    torch_comms.watch_numerics(model, optimizer, checksum_steps=1)
    torch_comms.audit(model, compute)
    for step in range(STEPS):
        with torch_comms.iteration(first + step):
            optimizer.zero_grad()
            torch_comms.report(loss=compute(model, {"x": batch_of(step)["x"][:, :8]}))
            optimizer.step()


def groups() -> dict[str, Any]:
    """Return which ranks are replicas of this one, in several kinds of training."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    hybrid, whole = nn.Linear(8, 8), nn.Linear(8, 8)
    for model, places in ((hybrid, (Replicate(), Shard(0))), (whole, (Shard(0), Shard(0)))):
        for name, one in list(model.named_parameters()):
            setattr(model, name, nn.Parameter(distribute_tensor(one.detach(), mesh, places)))
    plain = nn.Linear(8, 8)
    return {
        "ddp": replicas_of(make(1)[0]), "hybrid": replicas_of(hybrid), "sharded": replicas_of(whole),
        "plain": replicas_of(plain), "given": replicas_of(plain, mesh.get_group("shard")),
        "is_sharded": [is_sharded(hybrid), is_sharded(plain)],
    }  # fmt: skip


def main(trace_dir: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{os.getcwd()}/store", rank=RANK, world_size=RANKS, timeout=timedelta(minutes=5)
    )
    ways: list[dict[str, Any]] = [{}, {"gradient_as_bucket_view": True}, {"dtype": torch.bfloat16}]
    plain = [train(None, **way) for way in ways]
    torch_comms.start(trace_dir=trace_dir, job="numerics", iterations="marks", hook="python")
    same = []
    for number, way in enumerate(ways):
        watched = train(SAME + number * STEPS, fails=number == 0, **way)
        same.append(all(torch.equal(one, two) for one, two in zip(plain[number], watched, strict=True)))
    expected = {MEASURED: measure(MEASURED), HASTY: measure(HASTY, gradient_as_bucket_view=True)}
    flip(FLIPPED)
    shard(SHARDED)
    pair = distributed.new_group([0, 1]), distributed.new_group([2, 3])
    torch_comms.audit(make(8)[0], compute, process_group=pair[RANK // 2])({"x": torch.zeros(1)})
    torch_comms.audit(nn.Linear(2, 2), compute)({"x": torch.zeros(1)})
    found = {"same": same, "expected": expected, "replicas": groups()}
    distributed.destroy_process_group()
    torch_comms.stop()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
