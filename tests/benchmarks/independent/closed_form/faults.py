"""Draws who is at fault, how and when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tests.benchmarks.independent.closed_form.engine import Fault
from tests.benchmarks.independent.closed_form.program import Program
from tests.benchmarks.independent.closed_form.topology import Fabric, Flags, Floats, Ints, choose, log_uniform

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


EPOCH_NS = 1_764_000_000_000_000_000
INTERVALS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
PER_HOST = {"tidy": 0, "untidy": 0.5, "ddp": 0.4, "dims": 0.4, "large": 0.4}  # the chance of clocks that differ
DEVICE_KEYS = ("host", "gpu", "nic", "switch")


@dataclass
class Measurement:
    """How the log was taken. Clocks differ by host; elapsed is the GPU's own clock, some ppm apart."""

    clock: str  # shared, per_host
    offset: Floats  # seconds by host
    drift: Floats  # ppm by host
    elapsed_ppm: Floats  # by rank
    logged: Flags  # by rank
    round_start: int = 1  # ns
    round_elapsed: int = 1
    dropped: float = 0.0
    duplicated: float = 0.0
    iteration_values: str = "all"  # all, some, none
    sizes: str = "all"  # all, none
    order: str = "iteration"  # iteration, rank, shuffled
    first_iteration: int = 0
    first_sequence: int = 0
    iterations_table: bool = True
    phase_column: bool = True
    lost_rows: bool = False
    logged_key: bool = False
    device_keys: tuple[str, ...] = DEVICE_KEYS
    bandwidth_interval: float | None = None
    recorded_until: float | None = None  # seconds

    def to_local(self, seconds: Floats, host: Ints) -> Ints:
        """Times of the simulation as ns of the hosts' clocks."""
        s = seconds * (1 + self.drift[host] * 1e-6) + self.offset[host]
        return EPOCH_NS + np.round(s * 1e9).astype(np.int64)


def rounded(value: Ints, unit: int) -> Ints:
    return value if unit == 1 else (value + unit // 2) // unit * unit


def draw_measurement(
    rng: np.random.Generator, suite: str, fabric: Fabric, fault: Fault | None, elapsed: float
) -> Measurement:
    """How a job that takes `elapsed` seconds was logged."""
    size = fabric.layout.size
    per_host = rng.random() < PER_HOST[suite]
    m = Measurement(
        clock="per_host" if per_host else "shared",
        offset=rng.normal(0, 2e-3 if per_host else 1e-5, fabric.hosts),
        drift=rng.normal(0, 8 if per_host else 0.005, fabric.hosts),
        elapsed_ppm=np.zeros(size),
        logged=np.ones(size, bool),
    )
    m.first_iteration = choose(rng, (0, 0, 1, 1200))
    m.first_sequence = choose(rng, (0, 1, 1, 40000))
    m.order = choose(rng, ("iteration", "rank"))
    m.iterations_table = rng.random() < 0.7
    m.lost_rows = suite != "tidy" and rng.random() < 0.3
    if suite == "untidy" or (rng.random() < 0.4 and suite != "tidy"):
        m.round_start, m.round_elapsed = choose(rng, (1, 1000, 10000)), choose(rng, (1, 1000, 10000))
        m.elapsed_ppm = rng.normal(0, 10, size) if rng.random() < 0.5 else np.zeros(size)
    if suite == "untidy":
        _draw_untidiness(rng, m)
    _draw_logged(rng, suite, m, fabric, fault)
    if suite == "untidy":
        device = fault.device if fault is not None else None
        needed = {"host": ("host",), "nic": ("host", "nic"), "switch": ("host", "nic", "switch")}
        kept = needed.get(device or "", ())
        m.device_keys = tuple(k for k in DEVICE_KEYS if k in kept or rng.random() < 0.85)
    is_network = suite == "ddp" and fault is not None and fault.device in ("nic", "switch")
    if rng.random() < (0.7 if is_network else 0.33):
        finest = max(0.001, fabric.nics * elapsed * 1.3 / 600_000)  # keeps the table below so many rows
        m.bandwidth_interval = next((x for x in INTERVALS_S if x >= finest), None)
    return m


def _draw_untidiness(rng: np.random.Generator, m: Measurement) -> None:
    m.dropped = choose(rng, (0, rng.uniform(0.001, 0.005)))
    m.duplicated = choose(rng, (0, rng.uniform(0.0005, 0.003)))
    m.lost_rows = m.dropped > 0 and rng.random() < 0.4
    m.order = choose(rng, ("iteration", "rank", "shuffled"))
    m.iteration_values = choose(rng, ("all", "all", "all", "some", "none"))
    m.sizes = choose(rng, ("all", "all", "none"))
    m.phase_column = rng.random() < 0.6
    if m.iteration_values == "none":
        m.iterations_table = True


def _draw_logged(rng: np.random.Generator, suite: str, m: Measurement, fabric: Fabric, fault: Fault | None) -> None:
    """Which ranks write a log; a culprit that is one rank or one device does."""
    size, tp = fabric.layout.size, fabric.layout.dims["tp"]
    culprits = fault.ranks if fault is not None else np.zeros(0, int)
    if rng.random() < {"tidy": 0, "untidy": 0.45}.get(suite, 0.15):
        if tp > 1 and rng.random() < 0.4:  # one rank of each tp group logs
            leader = int(culprits[0]) % tp if len(culprits) else 0
            m.logged = np.arange(size) % tp == leader
        else:
            silent = rng.choice(size, max(1, int(size * rng.uniform(0.005, 0.04))), replace=False)
            m.logged[silent] = False
        if fault is not None and fault.device in ("gpu", "link", "nic", "host"):
            m.logged[culprits] = True
    m.logged_key = rng.random() < (0.8 if not m.logged.all() else 0.3)
