"""One of the processes that train: all run the same trials, and each trial is a recording of its own."""

from __future__ import annotations

import gc
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

import torch  # noqa: E402
from torch import distributed, nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from irregulars import torch_comms  # noqa: E402
from tests.benchmarks.causes.trials import WRITTEN_BYTES_PER_S, Trial  # noqa: E402

WIDTH = 96
ONE_PROCESSOR = {min(os.sched_getaffinity(0))}
RIVALS = 6  # busy processes that share a processor with one rank
DEVICE_S = 0.012  # of a step in which the device would compute: the processor sleeps


class Samples(Dataset[torch.Tensor]):
    """Random rows; each takes `each_s` to load."""

    def __init__(self, count: int, seed: int) -> None:
        self.each_s = 0.0
        self._rows = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: int) -> torch.Tensor:
        if self.each_s:
            time.sleep(self.each_s)
        return self._rows[at]


class Fault:
    """What goes wrong on this rank, in some of a trial's steps."""

    def __init__(self, trial: Trial, samples: Samples, scratch: Path) -> None:
        self._trial, self._samples, self._scratch = trial, samples, scratch
        self._kept: list[Any] = []
        # Started and ended outside of the steps: that would be work of this rank.
        self._rivals: list[subprocess.Popen[bytes]] = []
        self._is_on = False
        if trial.kind == "cpu_wait" and distributed.get_rank() in trial.ranks:
            os.sched_setaffinity(0, ONE_PROCESSOR)
            self._rivals = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(RIVALS)]
            self._share_a_processor(is_on=False)
        self._written = torch.ones(round(trial.extra_s * 100e6) if trial.kind == "checkpoint_write" else 0)
        self._file = None
        if trial.kind == "io_wait":  # past the page cache, as a quota of the group's writes holds back nothing else
            self._file = os.open(scratch / "log", os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        self._group = Path(os.environ["CAUSES_CPU"]) if os.environ.get("CAUSES_CPU") else None

    def before_loading(self, is_on: bool) -> None:
        """Set what lasts: how slow rows are, and the quota."""
        if is_on == self._is_on:
            return  # a quota that is set anew may be spent anew
        self._is_on = is_on
        kind, seconds = self._trial.kind, self._trial.extra_s
        self._samples.each_s = seconds / 8 if is_on and kind == "data_loader" else 0.0
        if kind == "cpu_throttled" and self._group is not None:
            quota_us = int(100_000 * self._trial.share) if is_on else -1
            (self._group / "cpu.cfs_quota_us").write_text(str(quota_us))
        if kind == "cpu_wait":
            self._share_a_processor(is_on)

    def _share_a_processor(self, is_on: bool) -> None:
        """Let this thread and some busy processes have one processor, or end that."""
        os.sched_setaffinity(0, ONE_PROCESSOR if is_on else range(os.cpu_count() or 1))
        for one in self._rivals:
            one.send_signal(signal.SIGCONT if is_on else signal.SIGSTOP)

    def within_step(self) -> None:
        """Do what takes longer, once a step."""
        kind, seconds = self._trial.kind, self._trial.extra_s
        if kind == "garbage_collection":
            if not self._kept:
                self._kept = [[number] for number in range(round(seconds * 6e6))]
            gc.collect()
        elif kind == "checkpoint_write":
            torch.save(self._written, self._scratch / "checkpoint.pt")
        elif kind == "io_wait":
            os.pwrite(self._file, mmap.mmap(-1, round(1.5 * seconds * WRITTEN_BYTES_PER_S) >> 12 << 12), 0)
        elif kind == "compute":
            compute(seconds)

    def end(self) -> None:
        self._kept = []
        if self._file is not None:
            os.close(self._file)
        self.before_loading(is_on=False)
        for one in self._rivals:
            one.kill()
            one.wait()


def compute(seconds: float) -> None:
    """Use a processor for some seconds, however long that takes."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        torch.mm(torch.ones(64, 64), torch.ones(64, 64))


def run_trial(trial: Trial, out: Path | None, agent: Path | None) -> None:
    rank = distributed.get_rank()
    torch.manual_seed(1)
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(WIDTH, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    samples = Samples(8 * trial.steps, rank)
    gc.collect()
    distributed.barrier()
    way: dict[str, Any] = {"trace_dir": out / trial.name} if out is not None else {"agent": agent}
    torch_comms.start(**way, job=trial.name)
    with tempfile.TemporaryDirectory() as scratch:
        fault = Fault(trial, samples, Path(scratch))
        batches = iter(DataLoader(samples, batch_size=8))
        for step in range(trial.steps):
            is_on = rank in trial.ranks and step in trial.faulty
            if rank in trial.ranks:
                fault.before_loading(is_on)
            rows = next(batches)
            compute(DEVICE_S / 2 if trial.kind == "cpu_throttled" else 0.0)
            time.sleep(DEVICE_S)
            optimizer.zero_grad()
            if is_on:
                fault.within_step()
            loss = (model(rows) - rows.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
        torch_comms.stop()
        fault.end()
    distributed.barrier()


@contextmanager
def process_group() -> Iterator[None]:
    distributed.init_process_group("gloo", timeout=timedelta(seconds=120))
    try:
        yield
    finally:
        distributed.destroy_process_group()


def main() -> None:
    """Run all trials; the first argument says where recordings go, the second is a file of trials."""
    out, trials = Path(sys.argv[1]), [Trial(**one) for one in json.loads(Path(sys.argv[2]).read_text())]
    random.seed(0)
    is_agent = out.suffix == ".sock"
    with process_group():
        for trial in trials:
            run_trial(trial, None if is_agent else out, out if is_agent else None)


if __name__ == "__main__":
    main()
