"""What helps against numbers that went wrong, tried: ``python -m tests.benchmarks.numerics.mitigations --seed 1``.

Four processes train the small transformer of `training`. In one step something goes wrong, the step after shows it,
and then one thing is done about it. The table says by how much the loss of steps 20 to 30 after it is off that of the
same run without the fault, and how many steps were trained again.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import distributed

from tests.benchmarks.numerics.__main__ import RANKS, launch
from tests.benchmarks.numerics.faults import Fault, Injector
from tests.benchmarks.numerics.training import Replica, Setting

RANK, STEP = 2, 80
BACK = 20  # steps between the last trusted checkpoint and the fault
FROM, TO = 20, 30

_EXPONENT: Final = 1 << 30
FAULTS: Final[Mapping[str, Fault]] = {
    "weight of one replica, exponent bit": Fault("corruption", RANK, STEP, "weight", mask=_EXPONENT),
    "optimizer state of one replica, exponent bit": Fault(
        "corruption", RANK, STEP, "optimizer_state", mask=_EXPONENT
    ),
    "own gradient of one rank, exponent bit": Fault("corruption", RANK, STEP, "local_gradient", mask=_EXPONENT),
    "learning rate × 30 in one step": Fault("loss_spike", None, STEP, "learning_rate", size=30.0),
    "noise for the batch of all ranks": Fault("loss_spike", None, STEP, "batch_of_all", size=1.0),
}


class Run:
    """One replica that is trained up to the fault, and from there in several ways."""

    def __init__(self, seed: int) -> None:
        self.replica = Replica(Setting(seed), 0)
        self.states: dict[int, dict[str, Any]] = {}
        for step in range(STEP + 1):
            if step in (STEP - BACK, STEP):
                self.states[step] = self.replica.state()
            self.replica.train(step)
        self.after(self.states[STEP])
        self.twin = self.losses()

    def after(self, state: dict[str, Any]) -> None:
        """Go back to a state, as if nothing had been wrong since."""
        self.replica.restore(state)

    def losses(self) -> float:
        """Train to the end; return the mean loss of all ranks in the steps that are compared."""
        kept = []
        while self.replica.step <= STEP + TO:
            loss = self.replica.train(self.replica.step)
            kept += [loss] if self.replica.step > STEP + FROM else []
        total = torch.tensor(kept, dtype=torch.float64).mean()
        distributed.all_reduce(total)
        return float(total) / RANKS

    def spoil(self, fault: Fault, *, clip: float | None = None) -> None:
        """Train the step with the fault, and the one that shows it."""
        self.after(self.states[STEP])
        replica = self.replica
        replica.injector = Injector(fault)
        before = replica.setting
        replica.setting = before if clip is None else Setting(before.seed, clip=clip)
        replica.train(STEP)
        replica.setting, replica.injector = before, None
        replica.train(STEP + 1)

    def copy_good_replica(self) -> None:
        """Send parameters and optimizer state of another rank to all."""
        good = (RANK + 1) % RANKS
        states = self.replica.optimizer.state
        tensors = [one for own in self.replica.parameters for one in states[own].values()]
        for one in [*(own.data for own in self.replica.parameters), *tensors]:
            distributed.broadcast(one, good)


def _nothing(run: Run, fault: Fault) -> int:
    run.spoil(fault)
    return 0


def _again(run: Run, fault: Fault) -> int:
    run.spoil(fault)
    run.after(run.states[STEP])
    return 2


def _skip(run: Run, fault: Fault) -> int:
    run.spoil(fault)
    run.after(run.states[STEP])
    run.replica.step = STEP + 2  # the batches of both steps are never seen
    return 0


def _clip(run: Run, fault: Fault) -> int:
    run.spoil(fault, clip=0.1)
    return 0


def _lower(run: Run, fault: Fault) -> int:
    run.spoil(fault)
    own, usual = run.replica, run.replica.rate_of
    own.rate_of = lambda step: usual(step) * (0.1 if step < STEP + 12 else 1.0)  # type: ignore[method-assign]
    return 0


def _copy(run: Run, fault: Fault) -> int:
    run.spoil(fault)
    run.copy_good_replica()
    return 0


def _back(run: Run, fault: Fault) -> int:
    run.spoil(fault)
    run.after(run.states[STEP - BACK])
    return BACK + 2


ACTIONS: Final[Mapping[str, Callable[[Run, Fault], int]]] = {
    "nothing": _nothing, "compute the step again": _again, "skip the batch": _skip, "clip to 0.1": _clip,
    "a tenth of the rate, 10 steps": _lower, "copy a good replica": _copy, "last trusted checkpoint": _back,
}  # fmt: skip


def rank(seed: int) -> None:
    """Try all, as one of the processes; the first prints the table."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    store = f"file://{os.environ['NUMERICS_STORE']}"
    distributed.init_process_group("gloo", init_method=store, rank=int(os.environ["RANK"]), world_size=RANKS)
    run = Run(seed)
    lines = ["| what went wrong | " + " | ".join(ACTIONS) + " |", "|---|" + "---|" * len(ACTIONS)]
    for name, fault in FAULTS.items():
        cells = []
        for act in ACTIONS.values():
            usual = run.replica.rate_of
            again = act(run, fault)
            off = run.losses() - run.twin
            run.replica.rate_of = usual  # type: ignore[method-assign]
            text = f"{off:+.3f}" if np.isfinite(off) else "not finite"
            cells.append(f"{text}, {again} again" if again else text)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    if distributed.get_rank() == 0:
        print(f"loss without a fault: {run.twin:.3f}\n\n" + "\n".join(lines), flush=True)
    distributed.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    seed = parser.parse_args().seed
    if "NUMERICS_STORE" in os.environ:
        rank(seed)
        return 0
    return launch("tests.benchmarks.numerics.mitigations", "--seed", str(seed))


if __name__ == "__main__":
    sys.exit(main())
