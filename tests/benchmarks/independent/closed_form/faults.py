"""Draws who is at fault, how and when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tests.benchmarks.independent.closed_form.arrays import Flags, choose, log_uniform
from tests.benchmarks.independent.closed_form.program import Program
from tests.benchmarks.independent.closed_form.scenario import Fault
from tests.benchmarks.independent.closed_form.topology import Fabric

FAULTS = ("gpu", "host", "nic", "link", "switch", "stage", "imbalance", "hang")
UNDISTURBED = 12  # iterations before a fault that comes later
COMPUTE_WORDS = {
    "clock": "all its compute takes longer",
    "loader": "late at the start of every iteration",
    "cpu": "late at every launch",
}


@dataclass
class _Draft:
    """When a fault acts, and how much it is to cost."""

    onset: str
    window: tuple[int, int]
    active: Flags
    seed: int = 0
    target: float = 1.0

    def fault(self, kind: str, device: str | None, ranks: ArrayLike, mode: str, words: str) -> Fault:
        """The fault, once it is known who is to blame and for what."""
        return Fault(
            kind=kind,
            device=device,
            ranks=np.sort(np.asarray(ranks, int)),
            mode=mode,
            onset=self.onset,
            iterations=self.window,
            active=self.active,
            words=words,
            target=self.target,
            seed=self.seed,
        )


def _draw_window(rng: np.random.Generator, iterations: int) -> _Draft:
    onset = choose(rng, ("lasting", "while", "fluctuating", "start"))
    if onset == "start":
        window = (0, iterations)
    elif onset == "lasting":
        window = (int(rng.integers(UNDISTURBED + 3, int(iterations * 0.65))), iterations)
    else:
        length = min(int(rng.integers(15, 31)), iterations - UNDISTURBED - 6)
        first = int(rng.integers(UNDISTURBED, iterations - length - 1))
        window = (first, first + length)
    active = np.zeros(iterations, bool)
    active[slice(*window)] = True
    if onset == "fluctuating":
        at = np.arange(*window)
        on = np.zeros(len(at), bool)
        state = True
        for i in range(len(at)):  # bursts, 60 % of the time on
            on[i] = state
            state = rng.random() < (0.75 if state else 0.375)
        on[0] = True
        active[at] = on
        window = (int(at[on][0]), int(at[on][-1]) + 1)
    return _Draft(onset, window, active)


def draw_fault(rng: np.random.Generator, kind: str, fabric: Fabric, program: Program, iterations: int) -> Fault:
    """The culprit and what it does; its strength is set later."""
    draft = _draw_window(rng, iterations)
    draft.seed = int(rng.integers(2**31))
    is_weak = rng.random() < 0.12
    draft.target = log_uniform(rng, 1.03, 1.1) if is_weak else log_uniform(rng, 1.1, 2.0)
    if kind in ("gpu", "host"):
        return _draw_slow_rank(rng, draft, kind, fabric)
    if kind in ("nic", "switch"):
        return _draw_slow_nics(rng, draft, kind, fabric)
    if kind == "link":
        return _draw_slow_link(rng, draft, fabric, program)
    if kind == "imbalance":
        words = "other replicas get more data each iteration"
        return draft.fault("imbalance", None, [], "replica", words)
    if kind == "hang":
        return _draw_hang(rng, draft, fabric, program, iterations)
    lanes = fabric.layout.lanes
    stage = int(rng.integers(fabric.layout.pp))
    draft.onset, draft.window, draft.active = "start", (0, iterations), np.ones(iterations, bool)
    ranks = np.arange(lanes) + stage * lanes
    return draft.fault("slow_stage", "stage", ranks, "stage", f"stage {stage} has more work")


def _draw_slow_rank(rng: np.random.Generator, draft: _Draft, device: str, fabric: Fabric) -> Fault:
    mode = choose(rng, ("clock", "clock", "loader", "cpu"))
    rank = int(rng.integers(fabric.layout.size))
    ranks = [rank] if device == "gpu" else np.flatnonzero(fabric.host == fabric.host[rank]).tolist()
    return draft.fault("slow_rank", device, ranks, mode, COMPUTE_WORDS[mode])


def _draw_slow_nics(rng: np.random.Generator, draft: _Draft, device: str, fabric: Fabric) -> Fault:
    if device == "nic":
        nic = int(rng.integers(fabric.nics))
        direction = choose(rng, ("both", "both", "tx", "rx"))
        words = f"NIC {nic} slow, {direction}"
        fault = draft.fault("slow_nic", "nic", np.flatnonzero(fabric.nic == nic), "network", words)
        fault.nics, fault.direction = np.array([nic]), direction
    else:
        switch = int(rng.integers(fabric.switches))
        ranks = np.flatnonzero(fabric.switch == switch)
        fault = draft.fault("slow_communicator", "switch", ranks, "network", f"leaf-{switch} slow")
        fault.nics = np.unique(fabric.nic[ranks])
    fault.network = True
    return fault


def _draw_slow_link(rng: np.random.Generator, draft: _Draft, fabric: Fabric, program: Program) -> Fault:
    lanes = fabric.layout.lanes
    message = choose(rng, list(program.messages.values()))
    lane = int(rng.integers(lanes))
    a, b = lane + message.source * lanes, lane + message.target * lanes
    fault = draft.fault("slow_link", "link", [a, b], "network", f"path {a} to {b} slow")
    fault.network, fault.peer = True, b
    fault.direction = choose(rng, ("both", "both", "one"))
    return fault


def _draw_hang(rng: np.random.Generator, draft: _Draft, fabric: Fabric, program: Program, iterations: int) -> Fault:
    lanes = fabric.layout.lanes
    stage, at = int(rng.integers(fabric.layout.pp)), int(rng.integers(10, iterations))
    ranks = [int(rng.integers(lanes)) + stage * lanes]
    if rng.random() < 0.35:
        ranks.append(int((ranks[0] % lanes + rng.integers(1, lanes)) % lanes + stage * lanes))
    draft.onset, draft.window, draft.active = "hang", (at, at + 1), np.arange(iterations) == at
    fault = draft.fault("hang", "gpu", ranks, "hang", "never arrives at its next operator")
    # Before the optimizer: others wait for it.
    fault.hang_at = int(rng.integers(len(program.compute_work[stage]) - 1))
    return fault
