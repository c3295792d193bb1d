"""A process of a job that comes to stand, or slow, one way or another: run with the agent's socket, job and way."""

from __future__ import annotations

import sys
import time
import warnings
from datetime import timedelta

warnings.simplefilter("ignore")

import torch  # noqa: E402
from torch import distributed  # noqa: E402

from irregulars import torch_comms  # noqa: E402
from irregulars.producers.torch_hook import source  # noqa: E402

CULPRIT = 2
STEPS = 30  # of health
SAMPLE = torch.randn(50_000)
WAYS = ("other_operator", "other_size", "sleep", "circle_of_sends")


def fall_asleep() -> None:
    """Stand outside of communication, as a rank whose storage does not answer."""
    time.sleep(3600)


def call_another() -> None:
    """Call an operator that the others do not call."""
    distributed.all_gather([torch.empty(4096) for _ in range(distributed.get_world_size())], torch.ones(4096))


def decode_jpeg() -> None:
    """Take long over a sample."""
    until_s = time.monotonic() + 0.15
    while time.monotonic() < until_s:
        torch.sort(SAMPLE)


def go_wrong(way: str, rank: int) -> None:
    values = torch.ones(4096)
    if way == "circle_of_sends" and rank < 2:
        distributed.recv(values, 1 - rank)  # each waits for what the other sends behind its own
        distributed.send(values, 1 - rank)
    if rank == CULPRIT and way == "sleep":
        fall_asleep()
    elif rank == CULPRIT and way == "other_operator":
        call_another()
    else:
        distributed.all_reduce(torch.ones(8192) if rank == CULPRIT and way == "other_size" else values)


def main() -> None:
    """Train without a model: two operators a step."""
    socket, job, way = sys.argv[1:]
    source.STUCK_S = 2.0  # a minute, before an operator is sent as open
    distributed.init_process_group("gloo", timeout=timedelta(seconds=3600))
    rank = distributed.get_rank()
    torch_comms.start(agent=socket, job=job)
    for step in range(STEPS if way in WAYS else 100 * STEPS):
        with torch_comms.iteration(step):
            time.sleep(0.05)
            if rank == CULPRIT and step >= STEPS and way not in WAYS:
                decode_jpeg()
            distributed.all_reduce(torch.ones(4096))
            distributed.barrier()
    with torch_comms.iteration(STEPS):
        go_wrong(way, rank)
    distributed.barrier()
    time.sleep(3600)


main()
