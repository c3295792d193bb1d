"""Microseconds that the hook adds to an all_reduce of 1 KiB on NCCL, one rank, with and without it in turns."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist

from irregulars import torch_comms

OPERATORS = 20_000
TURNS = 4


def one_us(tensor: torch.Tensor) -> float:
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    for _ in range(OPERATORS):
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    return (time.perf_counter() - began_s) / OPERATORS * 1e6


def main() -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29611", "RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    tensor = torch.ones(256, device="cuda")
    one_us(tensor)
    for _ in range(TURNS):
        without_us = one_us(tensor)
        with tempfile.TemporaryDirectory() as trace:
            hook = torch_comms.start(trace_dir=trace, iterations="marks", hook=sys.argv[1])
            with_us = one_us(tensor)
            torch_comms.stop()
        print(json.dumps({"hook": hook, "without_us": without_us, "with_us": with_us}))


if __name__ == "__main__":
    main()
