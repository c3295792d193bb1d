"""One of the processes that train: all run the same trials, and rank 0 writes their trace directories."""

from __future__ import annotations

import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import distributed  # noqa: E402

from irregulars import torch_comms  # noqa: E402
from irregulars.producers.torch_hook.trace_parts import assemble  # noqa: E402
from tests.benchmarks.numerics.faults import Fault, Injector, draw_corruption, draw_spike  # noqa: E402
from tests.benchmarks.numerics.traces import Trial, cut_into_trials  # noqa: E402
from tests.benchmarks.numerics.training import Replica, Setting  # noqa: E402

FIRST_FORK, LAST_FORK = 70, 110  # steps at which trials leave the run that they share
ONCE, REPEATED = 30, 60  # steps that follow a fault: once, or in each step, so that three audits see it
LOSS_FROM, LOSS_TO = 3, 11  # steps after the fault whose loss is compared with the run without it
HARMFUL = 0.02
SPIKES = 0.15  # share of the trials
PER_MODEL = 10  # trials, at least


def settings_of(seed: int) -> list[Setting]:
    """Return the models, half of them in bfloat16."""
    return [
        Setting(seed), Setting(seed, dtype="bfloat16", rate=1e-3), Setting(seed, width=64, layers=3, dropout=0.1),
        Setting(seed, width=32, layers=4, dtype="bfloat16", rate=1e-3),
    ]  # fmt: skip


def clean_settings(seed: int) -> list[Setting]:
    """Return the models of clean runs, which are others."""
    return [
        Setting(seed + 1000), Setting(seed + 1000, width=64, layers=3, dtype="bfloat16", rate=1e-3),
        Setting(seed + 1000, width=32, layers=4, optimizer="sgd", rate=0.1, dropout=0.1),
    ]  # fmt: skip


class Runs:
    """The trials, in one process group and one recording."""

    def __init__(self, seed: int, checksum_steps: int) -> None:
        self.trials: list[Trial] = []
        self._seed, self._checksum_steps = seed, checksum_steps
        self._iterations = 0

    def corrupt(self, count: int) -> None:
        """Run trials, about as many on each model."""
        settings = settings_of(self._seed)[: max(1, min(4, count // PER_MODEL))]
        for number, setting in enumerate(settings):
            share = count // len(settings) + (number < count % len(settings))
            self._trials_of(setting, share, np.random.default_rng([self._seed, number]))

    def _trials_of(self, setting: Setting, count: int, random: np.random.Generator) -> None:
        replica = Replica(setting, self._checksum_steps)
        bits = 32 if setting.dtype == "float32" else 16
        faults = []
        for _ in range(count):
            at = int(random.integers(FIRST_FORK, LAST_FORK))
            is_spike = random.random() < SPIKES
            one = (
                draw_spike(random, at, replica.ranks)
                if is_spike
                else draw_corruption(random, at, replica.ranks, bits)
            )
            faults.append(one)
        states, losses, first = {}, [], self._iterations
        forks = {fault.iteration for fault in faults}
        for step in range(max(forks) + LOSS_TO + 1):
            if step in forks:
                states[step] = replica.state()
            losses.append(self._step(replica))
        for fault in faults:
            replica.restore(states[fault.iteration])
            self._trial(replica, fault, losses, first)

    def _step(self, replica: Replica, **how: Any) -> float:
        self._iterations += 1
        return replica.train(self._iterations - 1, **how)

    def _trial(self, replica: Replica, fault: Fault, base: list[float], base_first: int) -> None:
        replica.injector, first = Injector(fault), self._iterations
        losses = [self._step(replica) for _ in range(REPEATED if fault.repeats else ONCE)]
        changed, acted, replica.injector = replica.injector.changed, replica.injector.audits, None
        twins = base[fault.iteration :]
        both = torch.tensor([some[LOSS_FROM : LOSS_TO + 1] for some in (losses, twins)], dtype=torch.float64)
        elements = torch.tensor([changed, *acted])
        distributed.all_reduce(both)
        distributed.all_reduce(elements)
        off = float((both[0] - both[1]).abs().max() / replica.ranks)
        label = fault.label() | {
            "dtype": replica.setting.dtype, "setting": asdict(replica.setting), "elements_changed": int(elements[0]),
            "audits_acted": elements[1:].tolist(),
            "loss_off": off if np.isfinite(off) else None, "is_harmful": not off <= HARMFUL,
        }  # fmt: skip
        stretches = (base_first, base_first + fault.iteration), (first, self._iterations)
        self.trials.append(Trial(f"trial-{len(self.trials):03d}", stretches, label))

    def clean(self, steps: int) -> None:
        """Run models without faults: with evaluations, changed data, and a restart from a checkpoint."""
        restart, change = steps // 2, 2 * steps // 3
        for number, setting in enumerate(clean_settings(self._seed)):
            replica, first, has_restart, has_change = (
                Replica(setting, self._checksum_steps),
                self._iterations,
                number != 1,
                number > 0,
            )
            checkpoint = replica.state()
            for step in range(steps):
                if step == max(0, restart - 20):
                    checkpoint = replica.state()
                if step == restart and has_restart:
                    replica.restore(checkpoint)
                self._step(replica, world="x" if has_change and step >= change else "", evaluates=step % 100 == 99)
            label: dict[str, Any] = {"kind": "none", "rank": None, "iteration": None, "dtype": setting.dtype}
            label |= {"restart": restart if has_restart else None, "changed_data": change if has_change else None}
            label["setting"] = asdict(setting)
            self.trials.append(Trial(f"clean-{number}", [(first, self._iterations)], label))


@contextmanager
def recorded(out: Path, job: str, trials: Sequence[Trial]) -> Iterator[None]:
    """Record all that is trained meanwhile, and write the directories of the trials, which may come until its end."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    distributed.init_process_group(
        "gloo", init_method=f"file://{os.environ['NUMERICS_STORE']}", rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]), timeout=timedelta(minutes=5),
    )  # fmt: skip
    recording, is_first, began_s = out / ".recording", distributed.get_rank() == 0, time.monotonic()
    torch_comms.start(trace_dir=recording, job=job, iterations="marks", hook="python")
    yield
    distributed.destroy_process_group()
    torch_comms.stop()
    if is_first:
        parts, deadline_s = recording / "parts", time.monotonic() + LAST_WAIT_S
        while parts.exists() and time.monotonic() < deadline_s:
            time.sleep(0.1)
        if parts.exists():
            assemble(recording)
        cut_into_trials(recording, trials, out, job)
        shutil.rmtree(recording)
        print(f"{len(trials)} directories in {time.monotonic() - began_s:.0f} s", flush=True)


LAST_WAIT_S = 100.0  # for the other ranks to end, the last of which puts the recording together


def main(out: str, seed: str, trials: str, clean: str, checksum_steps: str) -> None:
    """Run what the command line names."""
    runs = Runs(int(seed), int(checksum_steps))
    with recorded(Path(out), f"numerics-{seed}", runs.trials):
        if int(trials):
            runs.corrupt(int(trials))
        if int(clean):
            runs.clean(int(clean))


if __name__ == "__main__":
    main(*sys.argv[1:])
