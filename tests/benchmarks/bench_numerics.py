"""What the sensors of numbers cost a step: ``python -m tests.benchmarks.bench_numerics``. Markdown on output.

Three processes (gloo, one thread each) train a transformer; each second step is watched, so that whatever else runs
on the machine hits both alike. Audits are timed by themselves, each second call being one. The figures are medians of
rank 0: of processor time (all threads, what training pays even on a busy machine) and of wall time.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from irregulars.producers.torch_hook.numerics import NumericsWatch
from tests.benchmarks.numerics.__main__ import launch

RANKS = 3
WARM_UP = 6
TOKENS = 128
WIDTH, LAYERS, VOCABULARY = 128, 4, 512
AUDIT_EVERY = 50
SEED = 1


def work(steps: int, batch_size: int) -> None:
    """Be one of the processes; rank 0 prints the table."""
    import torch
    from torch import distributed, nn

    from irregulars import torch_comms

    torch.set_num_threads(1)
    rank, store = int(os.environ["RANK"]), Path(os.environ["NUMERICS_STORE"])
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=timedelta(minutes=10)
    )
    inside_ns = _count_time_inside()
    torch_comms.start(trace_dir=store.with_name("trace"), job="bench", hook="python")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
            layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.layers(self.tokens(tokens)))

    def compute(model: Any, batch: Any) -> Any:
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), batch[:, 1:].reshape(-1))
        loss.backward()
        return loss

    torch.manual_seed(SEED)
    model = nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    torch_comms.watch_numerics(model, optimizer, every=2)
    audit = torch_comms.audit(model, compute, every=2)
    torch.manual_seed(rank)
    times: dict[str, list[tuple[float, float, float]]] = {"plain": [], "watched": [], "audit": []}

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        loss = compute(model, batch)
        torch_comms.report(loss=loss.detach(), grad_norm=nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()

    for number in range(WARM_UP + 2 * steps):
        batch = torch.randint(VOCABULARY, (batch_size, TOKENS + 1))
        distributed.barrier()
        with torch_comms.iteration(number):
            inside_ns[0] = 0
            spent = _timed(lambda batch=batch: step(batch))
        if number >= WARM_UP:
            times["plain" if number % 2 else "watched"].append((*spent, inside_ns[0] / 1e6))
        if number % 10 == 0:
            distributed.barrier()
            audit(batch)  # none: each second call is
            spent = _timed(lambda batch=batch: audit(batch))
            if number > WARM_UP:
                times["audit"].append((*spent, math.nan))
    if rank == 0:
        parameters = sum(one.numel() for one in model.parameters())
        print(
            _table({name: np.array(one) for name, one in times.items()}, parameters, batch_size * TOKENS), flush=True
        )
    distributed.destroy_process_group()
    torch_comms.stop()


def _count_time_inside() -> list[int]:
    """Add up the processor time that is spent inside the sensors' hooks, ns."""
    inside_ns = [0]
    call = NumericsWatch._call

    def timed(self: NumericsWatch, hook: Callable[..., None], *args: Any) -> None:
        before_ns = time.thread_time_ns()
        call(self, hook, *args)
        inside_ns[0] += time.thread_time_ns() - before_ns

    NumericsWatch._call = timed  # type: ignore[method-assign]
    return inside_ns


def _timed(call: Callable[[], object]) -> tuple[float, float]:
    wall_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    call()
    return (time.process_time_ns() - cpu_ns) / 1e6, (time.perf_counter_ns() - wall_ns) / 1e6


def _table(times: dict[str, np.ndarray], parameters: int, tokens: int) -> str:
    random = np.random.default_rng(SEED)
    added = times["watched"] - times["plain"]
    draws = random.integers(len(added), size=(1000, len(added)))
    inside = float(np.median(times["watched"][:, 2]))
    lines = [
        f"{RANKS} processes on gloo, {parameters:,} parameters in float32, {tokens:,} tokens a step, AdamW, clipped;",
        f"{len(added)} pairs of steps. Medians, ms. Inside: processor time in the sensors' hooks. Added: of the",
        "pairs' differences, with 95 % interval.", "",
        "| time | plain step | inside `watch_numerics` | of a step | added | of a step | an audit | at 1 of 50 |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for column, name in enumerate(("processor", "wall")):
        plain, audit = float(np.median(times["plain"][:, column])), float(np.median(times["audit"][:, column]))
        own = float(np.median(added[:, column]))
        low, high = np.percentile(np.median(added[:, column][draws], axis=1), [2.5, 97.5])
        cells = [name, f"{plain:.1f}", *((f"{inside:.2f}", f"{inside / plain:.2%}") if column == 0 else ("", ""))]
        cells += [
            f"{own:.2f} ({low:.2f} to {high:.2f})",
            f"{own / plain:.2%} ({low / plain:.2%} to {high / plain:.2%})",
        ]
        cells += [f"{audit:.1f}", f"{audit / plain / AUDIT_EVERY:.2%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=32, help=f"sequences of {TOKENS} tokens")
    given = parser.parse_args()
    if "NUMERICS_STORE" in os.environ:
        work(given.steps, given.batch)
        return 0
    options = ("--steps", str(given.steps), "--batch", str(given.batch))
    return launch("tests.benchmarks.bench_numerics", *options, count=RANKS)


if __name__ == "__main__":
    sys.exit(main())
