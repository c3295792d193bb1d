"""One rank of a small training job: DDP over all ranks, a tensor group of pairs, and a pipeline's send and recv.

All ranks share one GPU: ``NCCL_HOSTID`` differs, so that NCCL takes them for ranks on different hosts and
communicates over sockets, as it does between nodes. Ranks take turns on the GPU, in slices of about 2 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from irregulars import torch_comms

WIDTH, HEAVY, PRODUCTS = 1024, 4096, 60
HUNG_S = 40.0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument(
        "--slow", type=int, nargs=3, metavar=("RANK", "FIRST", "PAST"), help="computes more meanwhile"
    )
    parser.add_argument("--hang", type=int, nargs=2, metavar=("RANK", "STEP"), help="sleeps for ever from there on")
    parser.add_argument("--profile", type=int, nargs=2, metavar=("FIRST", "PAST"), help="torch.profiler, these steps")
    parser.add_argument("--ahead", action="store_true", help="never wait for the GPU, as training does")
    return parser.parse_args()


def dump_flight_recorder(path: Path) -> None:
    from torch._C._distributed_c10d import _dump_nccl_trace

    path.write_bytes(_dump_nccl_trace())


def end_a_hang(path: Path) -> None:
    time.sleep(HUNG_S)
    dump_flight_recorder(path)
    os._exit(17)


def profiler(options: argparse.Namespace, path: Path) -> torch.profiler.profile | None:
    if options.profile is None:
        return None
    first, past = options.profile
    schedule = torch.profiler.schedule(wait=first - 2, warmup=2, active=past - first, repeat=1)
    return torch.profiler.profile(schedule=schedule, on_trace_ready=lambda run: run.export_chrome_trace(str(path)))


def main() -> None:
    options = parse()
    out, rank, world = options.out, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    hook = torch_comms.start(trace_dir=out / "trace", job=out.name)
    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", device_id=device)
    pair = [dist.new_group([first, first + 1], group_desc="tp") for first in range(0, world, 2)][rank // 2]
    torch.manual_seed(7)
    layers = (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, WIDTH))
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device), device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    heavy = torch.randn(HEAVY, HEAVY, device=device)
    if options.hang is not None:
        threading.Thread(target=end_a_hang, args=[out / f"nccl_trace_rank_{rank}"], daemon=True).start()
    profile = profiler(options, out / f"kineto-rank{rank}.json.gz")
    if profile is not None:
        profile.start()
    for step in range(options.steps):
        slow, first, past = options.slow or (-1, 0, 0)
        if rank == slow and first <= step < past:
            for _ in range(PRODUCTS):
                heavy @ heavy
        if options.hang == [rank, step]:
            time.sleep(1e6)
        output = model(torch.randn(32, WIDTH, device=device))
        hidden = output.detach().contiguous()
        dist.all_reduce(hidden, group=pair)
        if rank < 2:
            dist.send(hidden, rank + 2)
        elif rank < 4:
            dist.recv(hidden, rank - 2)
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if not options.ahead:
            torch.cuda.synchronize()
        if profile is not None:
            profile.step()
    if profile is not None:
        profile.stop()
    dump_flight_recorder(out / f"nccl_trace_rank_{rank}")
    dist.barrier()
    torch_comms.stop()
    (out / f"hook-{rank}.json").write_text(json.dumps({"hook": hook, "lost_rows": torch_comms.lost_rows()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
