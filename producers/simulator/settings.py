"""What one simulated job is: its shape, its cluster, its speed, its noise and its faults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from producers.simulator.faults import Fault
from streams.errors import InputError

NS_PER_MS: Final = 1_000_000.0
NS_PER_US: Final = 1_000.0
MIB: Final = 1 << 20
CLOCKS: Final = ("shared", "per_host")
GRADIENT_SYNCS: Final = ("sharded", "all_reduce")

_POSITIVE: Final = frozenset(
    {"attempt", "dp", "pp", "tp", "micro_batches", "iterations", "gpus_per_host", "gpus_per_nic", "hosts_per_switch",
     "gradient_buckets", "nic_bytes_per_s", "nvlink_bytes_per_s"}
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSettings:
    """Settings of one simulated training job; the defaults are 64 GPUs with iterations of about a quarter second.

    Parameters
    ----------
    dp, pp, tp
        Sizes of the parallel dimensions; the world has ``dp * pp * tp`` ranks.
    micro_batches
        Micro-batches that one iteration sends through the pipeline.
    iterations
        Length of the run.
    seed
        All randomness comes from it; a fault draws nothing from the generators of the healthy job.
    gpus_per_host, gpus_per_nic, hosts_per_switch
        Shape of the cluster.
    nic_bytes_per_s, nvlink_bytes_per_s
        What a transfer reaches on a healthy device when it has the device for itself.
    network_latency_us, nvlink_latency_us
        Time of one step of a collective between hosts and inside one.
    forward_ms, backward_ms
        Work of one stage for one micro-batch, without communication.
    data_loading_ms, optimizer_ms, idle_ms
        Work before the first micro-batch, after the gradients, and the pause between two iterations.
    tp_operators
        Collectives over tensor parallel ranks in each forward and in each backward of a stage.
    activation_bytes, gradient_bytes
        Payload of a pipeline or tensor parallel operator, and of all gradients of one rank.
    gradient_sync
        ``sharded``: reduce_scatter, optimizer, all_gather. ``all_reduce``: all_reduce, optimizer.
    gradient_buckets
        Into how many operators the gradients are cut.
    is_send_buffered
        A send that is not batched with a recv returns when its bytes are copied, not when they are taken.
    gap_noise_ratio, transfer_noise_ratio
        Standard deviation of work and transfers, relative to their length.
    spike_probability, spike_factor_low, spike_factor_high
        One transfer in ``1 / spike_probability`` takes so many times its length.
    drift_ratio
        By how much all work gets longer from the first iteration to the last.
    clock, clock_offset_ms
        ``per_host``: each host's clock is off by up to so much to either side.
    checkpoint_every, checkpoint_ms, is_checkpoint_marked
        Every so many iterations (0: never) the ranks write for so long at the end, and say so in ``phase`` or not.
    bandwidth_period_ms
        Time between two samples of a NIC; 0: none.
    tokens_per_micro_batch
        For the column ``tokens``.
    faults
        What is broken, see `producers.simulator.faults.parse_fault`.

    Raises
    ------
    InputError
        If a value is out of its range.
    """

    job: str = "simulated"
    attempt: int = 1
    dp: int = 4
    pp: int = 4
    tp: int = 4
    micro_batches: int = 8
    iterations: int = 160
    seed: int = 0
    gpus_per_host: int = 8
    gpus_per_nic: int = 1
    hosts_per_switch: int = 4
    nic_bytes_per_s: float = 40e9
    nvlink_bytes_per_s: float = 300e9
    network_latency_us: float = 15.0
    nvlink_latency_us: float = 8.0
    forward_ms: float = 6.0
    backward_ms: float = 12.0
    data_loading_ms: float = 3.0
    optimizer_ms: float = 5.0
    idle_ms: float = 2.0
    tp_operators: int = 2
    activation_bytes: int = 16 * MIB
    gradient_bytes: int = 256 * MIB
    gradient_sync: str = "sharded"
    gradient_buckets: int = 1
    is_send_buffered: bool = False
    gap_noise_ratio: float = 0.03
    transfer_noise_ratio: float = 0.10
    spike_probability: float = 1 / 200
    spike_factor_low: float = 3.0
    spike_factor_high: float = 8.0
    drift_ratio: float = 0.03
    clock: str = "shared"
    clock_offset_ms: float = 5.0
    checkpoint_every: int = 0
    checkpoint_ms: float = 400.0
    is_checkpoint_marked: bool = True
    bandwidth_period_ms: float = 100.0
    tokens_per_micro_batch: int = 4096
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            self._check_number(field.name, getattr(self, field.name))
        _one_of("clock", self.clock, CLOCKS)
        _one_of("gradient_sync", self.gradient_sync, GRADIENT_SYNCS)
        if not self.job:
            raise InputError(f"job must be a text that is not empty; got {self.job!r} (simulator settings)")
        if self.world_size < 2:
            raise InputError(f"dp * pp * tp must be 2 or more; got {self.world_size!r} (simulator settings)")
        if self.spike_factor_high < self.spike_factor_low:
            raise InputError(
                f"spike_factor_high must be at least spike_factor_low = {self.spike_factor_low!r}; "
                f"got {self.spike_factor_high!r} (simulator settings)"
            )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.dp * self.pp * self.tp

    def _check_number(self, name: str, value: object) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return
        if name in _POSITIVE and not value > 0:
            raise InputError(f"{name} must be above 0; got {value!r} (simulator settings)")
        if not value >= 0:
            raise InputError(f"{name} must be 0 or more; got {value!r} (simulator settings)")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{name} must be one of {', '.join(known)}; got {value!r} (simulator settings)")
