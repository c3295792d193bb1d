"""What the ranks of the tests' training jobs do, on gloo: ``python ranks.py SCENARIO TRACE_DIRECTORY HOOK``."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

warnings.simplefilter("ignore")

import torch  # noqa: E402
from torch import distributed  # noqa: E402

from irregulars import torch_comms  # noqa: E402

ROUNDS = 3
FIRST_MARKED = 100
QUEUED = 50


def join(store: str = "store") -> int:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    distributed.init_process_group(
        "gloo", init_method=f"file://{os.getcwd()}/{store}", rank=rank, world_size=world, timeout=timedelta(minutes=5)
    )
    return rank


def model_and_optimizer() -> tuple[Any, Any]:
    torch.manual_seed(1)
    layers = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def step(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 32)).square().mean().backward()
    optimizer.step()


def steps_of_ddp() -> None:
    model, optimizer = model_and_optimizer()
    for number in range(ROUNDS):
        step(model, optimizer)
        if number == 1:
            with torch_comms.phase("checkpoint"):
                time.sleep(0.01)


def queue(rank: int) -> None:
    """Issue four at once, while the other rank is late: gloo's two threads take two of them."""
    tensors = [torch.ones(QUEUED) for _ in range(4)]
    distributed.barrier()
    if rank == 1:
        time.sleep(0.5)
    works = [distributed.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()


def training() -> None:
    """Train by steps, then marked iterations with every operator, then what queues up."""
    rank = join()
    steps_of_ddp()
    # Run each operator once a round, 100 floats each.
    pair = distributed.new_group([0, 1], group_desc="mesh_tp")
    tensor, parts = torch.ones(100), [torch.zeros(100) for _ in range(2)]
    for number in range(FIRST_MARKED, FIRST_MARKED + ROUNDS):
        with torch_comms.iteration(number):
            distributed.all_reduce(tensor, group=pair)
            distributed.all_reduce(tensor, async_op=True).wait()
            distributed.all_gather(parts, tensor)
            distributed.all_gather_into_tensor(torch.zeros(200), tensor)
            distributed.reduce_scatter_tensor(tensor, torch.ones(200))
            distributed.all_to_all_single(torch.zeros(100), tensor)
            distributed.broadcast(tensor, 0)
            distributed.reduce(tensor, 0)
            distributed.gather(tensor, parts if rank == 0 else None, 0)
            distributed.scatter(tensor, parts if rank == 0 else None, 0)
            distributed.barrier()
            if rank == 0:
                distributed.send(tensor, 1)
                distributed.isend(tensor, 1).wait()
            else:
                distributed.recv(tensor, 0)
                distributed.irecv(tensor, 0).wait()
    queue(rank)


class Numbers(torch.utils.data.Dataset):  # type: ignore[misc, unused-ignore]
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


def survival() -> None:
    """Fork workers of a loader, destroy the group, make it anew, fork by hand, and train on."""
    for store in ("first", "second"):
        join(store)
        model, optimizer = model_and_optimizer()
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=1)
        for _ in loader:
            step(model, optimizer)
        child = os.fork()
        if child == 0:
            torch_comms.stop()
            sys.exit(0)  # runs the exit handlers of the parent
        assert os.waitpid(child, 0)[1] == 0
        distributed.destroy_process_group()


def survival_and_hang() -> None:
    """At last rank 0 enters an operator that rank 1 never does."""
    survival()
    if join("third") == 0:
        distributed.all_reduce(torch.ones(1), async_op=True)
        time.sleep(0.2)
    torch_comms.stop()
    os._exit(0)


SCENARIOS: dict[str, Callable[[], None]] = {"training": training, "survival": survival_and_hang}


def main(scenario: str, trace_dir: str, hook: str) -> None:
    torch.set_num_threads(1)
    print("hook", torch_comms.start(trace_dir=trace_dir, job="test", hook=hook), flush=True)
    SCENARIOS[scenario]()
    if distributed.is_initialized():
        distributed.destroy_process_group()
    torch_comms.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
