"""What is told of training in which nothing is wrong: ``python -m tests.benchmarks.numerics.clean_steps --out DIR``.

Four processes train three small models, in float32 and then in bfloat16, while much changes as it does in healthy
jobs (`EVENTS`). Each start of a job becomes a trace directory below DIR; those that are there are not trained again.
Each is judged in the forms in which other sources might have written it: checksums each 1, 10 or 64 steps, the loss
rounded, norms in 16 bits. Markdown on output: the verdicts by form, and alarms of the published rules.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from irregulars.infra.runs.analysis import analyze
from irregulars.messages.records import UNKNOWN, Batch
from irregulars.producers.trace.directory import Trace, read_trace
from tests.benchmarks.numerics.__main__ import launch
from tests.benchmarks.numerics.table import OURS, measure, series_of, table

CYCLE: Final = 425  # steps after which the plan begins again: eight times in 3,400 steps
EVENTS: Final = {
    0: "schedule", 60: "batch size", 120: "batch size", 170: "schedule", 220: "schedule", 270: "data", 320: "padding",
    380: "restart",
}  # fmt: skip
"""What changes in a cycle, and at which of its steps: the rate falls as a cosine and begins anew; the batch is twice
as large for a while, and the rate a tenth; data of another rule come; one batch is padded by half; in each second
cycle the job is started anew from its checkpoint of 40 steps ago."""

LARGE, SLOW, DATA, PADDED, RESTART = (60, 120), (170, 220), 270, 320, 380
BACK, WARM_UP = 40, 150
EVALUATE_EVERY, EVALUATIONS = 200, 10  # steps
NEAR: Final = 20  # iterations after an event in which what is told of the job is told of the event
EVERY: Final = (1, 10, 64)  # steps between two checksums
FORMS: Final = {"as trained": (None, False), "loss of 2 digits": (2, False), "loss of 3 digits": (3, False),
                "loss of 4 digits, norms in 16 bits": (4, True)}  # fmt: skip


def work(out: str, dtype: str, steps: str, seed: str) -> None:
    import torch

    from tests.benchmarks.numerics.traces import Trial
    from tests.benchmarks.numerics.training import TOKENS, Replica, Setting, batch_of
    from tests.benchmarks.numerics.worker import recorded

    class Planned(Replica):
        def rate_of(self, step: int) -> float:
            at = step % CYCLE
            rate = self.setting.rate * min(1.0, (step + 1) / WARM_UP)
            return rate * (0.55 + 0.45 * math.cos(math.pi * at / CYCLE)) * (0.1 if SLOW[0] <= at < SLOW[1] else 1.0)

        def _batch_and_rate(self, world: str) -> tuple[torch.Tensor, float]:
            at, own = self.step % CYCLE, (self.setting, self.rank)
            batch = batch_of(*own, self.step, world=world)
            if LARGE[0] <= at < LARGE[1]:
                batch = torch.cat([batch, batch_of(*own, self.step + 1_000_000, world=world)])
            return batch[:, : TOKENS // 2] if at == PADDED else batch, self.rate_of(self.step)

    def attempts(setting: Setting, name: str, first: int) -> Iterator[Trial]:
        replica, number, done, events = Planned(setting, checksum_steps=1), first, set[int](), list[Any]()
        checkpoint = replica.state()

        def attempt() -> Trial:
            label = {"kind": "none", "rank": None, "iteration": None, "dtype": dtype, "events": list(events)}
            return Trial(f"{name}-{len(done)}", [(first, number)], label)

        while replica.step < int(steps):
            cycle, at = divmod(replica.step, CYCLE)
            if at == RESTART - BACK:
                checkpoint = replica.state()
            if at == RESTART and cycle % 2 and cycle not in done:
                events.append((number - first, "restart"))
                yield attempt()
                done.add(cycle)
                replica.restore(checkpoint)
                first, events = number, []
                continue
            if at in EVENTS and at != RESTART:
                events.append((number - first, EVENTS[at]))
            if replica.step >= EVALUATE_EVERY and not replica.step % EVALUATE_EVERY:
                events.append((number - first, "evaluation"))
            evaluates = replica.step >= EVALUATE_EVERY and replica.step % EVALUATE_EVERY < EVALUATIONS
            world = "x" * ((replica.step + CYCLE - DATA) // CYCLE % 2)
            replica.train(number, world=world, evaluates=evaluates)
            number += 1
        yield attempt()

    rate, trials, number = 3e-3 if dtype == "float32" else 1e-3, list[Trial](), 0
    settings = {
        "adamw": Setting(int(seed), dtype=dtype, rate=rate),
        "dropout": Setting(int(seed), width=64, layers=3, dtype=dtype, rate=rate, dropout=0.1),
        "sgd": Setting(int(seed), width=96, dtype=dtype, optimizer="sgd", rate=0.1),
    }
    with recorded(Path(out), f"clean-{dtype}", trials):
        for name, setting in settings.items():
            trials += attempts(setting, name, number)
            number = trials[-1].stretches[-1][1]


def as_written(trace: Trace, every: int, digits: int | None, is_short: bool) -> Trace:
    """Return a trace as another source would have written its numbers."""

    def changed(batch: Batch) -> Batch:
        own = dict(batch.columns)
        own["parameters_checksum"] = np.where(own["iteration"] % every == 0, own["parameters_checksum"], UNKNOWN)
        if digits is not None:
            own["loss"] = np.round(own["loss"], digits)
        if is_short:  # as bfloat16: the upper half of a float32, rounded
            bits = own["local_grad_norm"].astype(np.float32).view(np.uint32)
            own["local_grad_norm"] = ((bits + 0x8000) & 0xFFFF0000).view(np.float32).astype(np.float64)
        return Batch(batch.header, own)

    return replace(trace, iterations={rank: changed(batch) for rank, batch in trace.iterations.items()})


def told(trace: Trace, events: Sequence[tuple[int, str]]) -> Counter[str]:
    """Count the verdicts on numbers, by what they are."""
    counts: Counter[str] = Counter()
    for one in analyze(trace).verdicts:
        if one.kind in OURS:
            since = [one.iterations[0] - at for at, _ in events]
            is_near = any(0 <= distance < NEAR for distance in since)
            nobody = f"loss_spike of nobody, {'at an event' if is_near else 'else'}"
            corrupt = one.kind == "corruption"
            counts["a rank named" if one.suspects else "corruption of nobody" if corrupt else nobody] += 1
    return counts


def lines_of(folders: Sequence[Path]) -> Iterator[str]:
    """Judge all directories in all forms; yield the report."""
    traces = [read_trace(folder) for folder in folders]
    events = [json.loads((folder / "label.json").read_text())["events"] for folder in folders]
    steps = sum(len(series_of(trace)[0]) for trace in traces)
    counted = Counter(name for own in events for _, name in own)
    yield f"{steps:,} steps in {len(folders)} starts: " + ", ".join(f"{n} × {name}" for name, n in counted.items())
    spikes = [f"loss_spike of nobody, {where}" for where in ("at an event", "else")]
    columns = ["a rank named", "corruption of nobody", *spikes]
    yield "\n| form | checksum each | " + " | ".join(f"{one}, in 1,000 steps" for one in columns) + " |"
    yield "|---|---|" + "---|" * len(columns)
    for (form, how), every in product(FORMS.items(), EVERY):
        found: Counter[str] = Counter()
        for trace, own in zip(traces, events, strict=True):
            found += told(as_written(trace, every, *how), own)
        cells = [f"{1000 * found[one] / steps:.2f} ({found[one]})" for one in columns]
        yield f"| {form} | {every} | {' | '.join(cells)} |"
    yield ""
    yield from table(measure(folders))


def main() -> int:
    """Train what is not there yet, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=8 * CYCLE, help="of each of six runs; 8 cycles")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    for dtype in ("float32", "bfloat16"):
        out = given.out.resolve() / dtype
        if not list(out.glob("*/label.json")):
            out.mkdir(parents=True, exist_ok=True)
            what = (str(out), dtype, str(given.steps), str(given.seed))
            if status := launch("tests.benchmarks.numerics.clean_steps", "--work", *what):
                return status
    for line in lines_of(sorted(one.parent for one in given.out.glob("*/*/label.json"))):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    else:
        sys.exit(main())
