"""A small model trained by several real processes, for ``irregulars demo --live``.

One process per rank, gloo, DDP over all and an all_reduce of activations in each pair. The loader of one rank stalls
for a while. By hand: ``torchrun --nproc-per-node 4 -m irregulars.infra.runs.live_training --trace-dir trace``.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

RANKS = 4
WIDTH = 256
BATCH = 64
WARM_UP = 5  # unmarked steps before the first iteration: connections are made, buckets rebuilt, caches filled


@dataclass(frozen=True, slots=True)
class LivePlan:
    """How long the job is, and who is slow when.

    `first`, `past`: Iterations in which rank `rank` loads its data `stall_s` seconds longer.
    """

    iterations: int = 160
    rank: int = 2
    first: int = 70
    past: int = 110
    stall_s: float = 0.1

    @property
    def text(self) -> str:
        """The planned fault in words."""
        return (
            f"rank {self.rank} loads its data {self.stall_s:g} s longer in iterations {self.first} to {self.past - 1}"
        )


def train(plan: LivePlan, trace_dir: str | None, agent: str | None, job: str, pause_s: float) -> None:
    """Train as one rank; the environment says which (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, ``MASTER_PORT``)."""
    import torch
    from torch import distributed
    from torch.distributed import new_group
    from torch.nn.parallel import DistributedDataParallel

    from irregulars import torch_comms

    torch.set_num_threads(1)
    torch_comms.start(trace_dir=trace_dir, agent=agent, job=job, iterations="marks")
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    pairs: list[Any] = [new_group([first, first + 1], group_desc="tensor") for first in range(0, world, 2)]
    torch.manual_seed(1)
    layers = [layer for _ in range(3) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(load_s: float) -> None:
        time.sleep(load_s)
        optimizer.zero_grad()
        activations = model(torch.randn(BATCH, WIDTH))
        distributed.all_reduce(activations.detach().clone(), group=pairs[rank // 2])
        activations.square().mean().backward()
        optimizer.step()

    for _ in range(WARM_UP):
        step(pause_s)
    for number in range(plan.iterations):
        with torch_comms.iteration(number):
            is_slow = rank == plan.rank and plan.first <= number < plan.past
            step(pause_s + (plan.stall_s if is_slow else 0.0))
    distributed.destroy_process_group()
    torch_comms.stop()


def main() -> None:
    """Read the command line of one rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_mutually_exclusive_group(required=True)
    ways.add_argument("--trace-dir", help="write a trace directory")
    ways.add_argument("--agent", help="send to the agent's socket")
    parser.add_argument("--job", default="live")
    parser.add_argument("--iterations", type=int, default=LivePlan().iterations)
    parser.add_argument("--pause-s", type=float, default=0.03, help="what loading data takes")
    parser.add_argument("--stall-s", type=float, default=LivePlan().stall_s, help="what it takes longer while slow")
    given = parser.parse_args()
    plan = LivePlan(iterations=given.iterations, stall_s=given.stall_s)
    train(plan, given.trace_dir, given.agent, given.job, given.pause_s)


if __name__ == "__main__":
    main()
