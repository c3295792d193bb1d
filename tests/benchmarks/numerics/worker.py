"""One of the processes that train: runs all trials of a plan, and rank 0 writes their trace directories."""

from __future__ import annotations

import os
import sys
import time
import warnings
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import distributed  # noqa: E402

from tests.benchmarks.numerics.faults import Fault, Injector, draw_corruption, draw_spike  # noqa: E402
from tests.benchmarks.numerics.traces import Row, write_trial  # noqa: E402
from tests.benchmarks.numerics.training import Replica, Setting  # noqa: E402

FIRST_FORK, LAST_FORK = 70, 110  # steps at which trials leave the run that they share
ONCE, REPEATED = 30, 60  # steps that are watched after a fault: once, or in each step, so that four audits see it
LOSS_FROM, LOSS_TO = 3, 11  # steps after the fault whose loss is compared with the run without it
HARMFUL = 0.02
SPIKES = 0.15  # share of the trials


def settings_of(seed: int) -> list[Setting]:
    """Return the models, half of them in bfloat16."""
    own = {"seed": seed}
    return [
        Setting(**own), Setting(**own, dtype="bfloat16", rate=1e-3),
        Setting(**own, width=64, layers=3, dropout=0.1), Setting(**own, width=32, layers=4, dtype="bfloat16", rate=1e-3),
    ]  # fmt: skip


class Runs:
    """The trials, in one process group."""

    def __init__(self, out: Path, seed: int) -> None:
        self.out, self.seed = out, seed
        self.written = 0

    def _gather(self, rows: list[Row]) -> list[list[Row]] | None:
        all_rows: list[Any] | None = [None] * distributed.get_world_size() if distributed.get_rank() == 0 else None
        distributed.gather_object(rows, all_rows)
        return all_rows

    def trials(self, count: int) -> None:
        """Run trials, as many on each model."""
        settings = settings_of(self.seed)[: max(1, min(4, count // 15))]
        share = -(-count // len(settings))
        for number, setting in enumerate(settings):
            random = np.random.default_rng([self.seed, number])
            self._trials_of(setting, min(share, count - self.written), random)

    def _trials_of(self, setting: Setting, count: int, random: np.random.Generator) -> None:
        replica = Replica(setting)
        ranks, bits = replica.ranks, 32 if setting.dtype == "float32" else 16
        faults = []
        for _ in range(count):
            draw = draw_spike if random.random() < SPIKES else lambda *own: draw_corruption(*own, bits)
            faults.append(draw(random, int(random.integers(FIRST_FORK, LAST_FORK)), ranks))
        forks = {fault.iteration for fault in faults}
        states, base = {}, []
        for step in range(max(forks) + LOSS_TO + 1):
            if step in forks:
                states[step] = replica.state()
            base.append(replica.train())
        for fault in faults:
            replica.restore(states[fault.iteration])
            self._trial(replica, base, fault)

    def _trial(self, replica: Replica, base: list[Row], fault: Fault) -> None:
        replica.injector = Injector(fault)
        after = [replica.train() for _ in range(REPEATED if fault.repeats else ONCE)]
        changed = replica.injector.changed
        replica.injector = None
        rows = base[: fault.iteration] + _moved(after, base[: fault.iteration])
        watched = slice(fault.iteration + LOSS_FROM, fault.iteration + LOSS_TO + 1)
        own = torch.tensor([[row["loss"] for row in some[watched]] for some in (rows, base)], dtype=torch.float64)
        changed_all = torch.tensor(changed)
        distributed.all_reduce(own)
        distributed.all_reduce(changed_all)
        off = float((own[0] - own[1]).abs().max() / replica.ranks)
        label = {
            **fault.label(), "dtype": replica.setting.dtype, "loss_off": off if np.isfinite(off) else None,
            "is_harmful": not off <= HARMFUL, "elements_changed": int(changed_all), "setting": asdict(replica.setting),
        }  # fmt: skip
        self._write(f"trial-{self.written:03d}", rows, label, replica)

    def clean(self, steps: int) -> None:
        """Run models without faults: with evaluations, changed data, and a restart from a checkpoint."""
        for number, setting in enumerate(clean_settings(self.seed)[:2]):
            replica = Replica(setting)
            rows: list[Row] = []
            checkpoint = replica.state()
            restart, change = steps // 2, 2 * steps // 3
            for step in range(steps):
                if step == restart - 20:
                    checkpoint = replica.state()
                if step == restart and number != 1:
                    replica.restore(checkpoint)
                row = replica.train(world="x" if number and step >= change else "", evaluates=step % 100 == 99)
                rows.append(row | {"iteration": step})
            label = {"kind": "none", "rank": None, "iteration": None, "dtype": setting.dtype, "setting": asdict(setting)}
            label |= {"restart": restart if number != 1 else None, "changed_data": change if number else None}
            self._write(f"clean-{number}", rows, label, replica)

    def _write(self, name: str, rows: list[Row], label: dict[str, Any], replica: Replica) -> None:
        size_bytes = sum(one.numel() * one.element_size() for one in replica.parameters)
        gathered = self._gather([row | {"size_bytes": size_bytes} for row in rows])
        self.written += 1
        if gathered is not None:
            write_trial(self.out / name, f"numerics-{self.seed}-{name}", gathered, label)
            print(name, {k: v for k, v in label.items() if k != "setting"}, flush=True)


def clean_settings(seed: int) -> list[Setting]:
    """Return the models of clean runs."""
    own = {"seed": seed + 1000}
    return [
        Setting(**own), Setting(**own, width=64, layers=3, dtype="bfloat16", rate=1e-3),
        Setting(**own, width=32, layers=4, optimizer="sgd", rate=0.1, dropout=0.1),
    ]  # fmt: skip


def _moved(after: list[Row], before: list[Row]) -> list[Row]:
    """Move rows in time to right behind those of the run that they left."""
    by_ns = before[-1]["start_ns"] + before[-1]["elapsed_ns"] - after[0]["start_ns"]
    return [
        row | {"start_ns": row["start_ns"] + by_ns, "reduced_ns": (row["reduced_ns"][0] + by_ns, row["reduced_ns"][1])}
        for row in after
    ]


def main(out: str, seed: str, trials: str, clean: str) -> None:
    """Run what the command line names."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    distributed.init_process_group(
        "gloo", init_method=f"file://{os.environ['NUMERICS_STORE']}", rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]), timeout=timedelta(minutes=5),
    )  # fmt: skip
    began_s = time.monotonic()
    runs = Runs(Path(out), int(seed))
    runs.trials(int(trials))
    if int(clean):
        runs.clean(int(clean))
    if distributed.get_rank() == 0:
        print(f"{runs.written} directories in {time.monotonic() - began_s:.0f} s", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
