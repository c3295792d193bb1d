"""How a job was logged: clocks, rounding, lost rows, and what the tool didn't write down."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.benchmarks.independent.closed_form.arrays import Flags, Floats, Ints, choose
from tests.benchmarks.independent.closed_form.scenario import Fault
from tests.benchmarks.independent.closed_form.topology import Fabric

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
    """Values to the nearest multiple of a unit."""
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
