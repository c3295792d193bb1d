"""Settings of one simulated job: its shape, its cluster, its speed, its noise and its faults.

By default all untidiness of real jobs is left out, byte for byte. Where a constant is not ours, its source
is beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final

from irregulars.errors import InputError
from irregulars.producers.simulator.faults import Fault

_KNOWN: Final = {
    "clock": ("shared", "per_host"),
    "gradient_sync": ("sharded", "all_reduce", "fsdp"),
    "rank_order": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp"),
    "logged": ("all", "tp_leaders", "some_ranks", "some_hosts"),
    "cp_exchange": ("collective", "ring"),
    "hidden": ("tp", "cp", "ep", "barrier"),
}
COMPILED_ITERATIONS: Final = 2  # Number of first iterations in which something is compiled
NS_PER_S: Final = 1e9
NS_PER_MS: Final = 1_000_000.0
NS_PER_US: Final = 1_000.0
MIB: Final = 1 << 20
_POSITIVE: Final = frozenset(
    {"attempt", "dp", "pp", "tp", "cp", "ep", "shards", "model_chunks", "micro_batches", "iterations",
     "gpus_per_host", "gpus_per_nic", "hosts_per_switch", "gradient_buckets", "nic_bytes_per_s", "nvlink_bytes_per_s",
     "loss_burst_rows", "host_slow_iterations", "evaluation_passes", "recorded_after_hang_s",
     "time_resolution_ns", "fsdp_units", "host_phase_iterations", "pause_tail_index"}
)  # fmt: skip
_LARGEST: Final = {"loss_ratio": 0.5, "repeat_ratio": 0.5, "expert_work_ratio": 1.0, "unlogged_ratio": 0.9}
# Start of a simulated job where none is given: fixed, so that the same settings give the same rows.
RECORDED_START_NS: Final = 1_800_000_000_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSettings:
    """Settings of one simulated training job; the defaults are 64 GPUs with iterations of about a quarter second.

    Raises InputError if a value is out of its range.

    job, attempt: Name of the job, and which start of it this is, from 1.
    dp, pp, tp, cp, ep, shards: Sizes of the parallel dimensions: replicas of the data, pipeline stages, tensor,
        context and expert parallel ranks, and shards of the optimizer's state inside a replica group. The world has
        their product of ranks; gradients are reduced over ``dp * shards * ep * cp`` of them.
    rank_order: How ranks are counted, the fastest dimension first, as in Megatron's option of this name.
    model_chunks: Above 1: interleaved 1F1B, each stage holds so many parts of the model.
    micro_batches: Micro-batches that one iteration sends through the pipeline.
    iterations: Length of the run.
    seed: All randomness comes from it; a fault draws nothing from the generators of the healthy job.
    gpus_per_host, gpus_per_nic, hosts_per_switch: Shape of the cluster.
    nic_bytes_per_s, nvlink_bytes_per_s: Rate that a transfer reaches on a healthy device when it has the device for
        itself.
    network_latency_us, nvlink_latency_us: Time of one step of a collective between hosts and inside one.
    forward_ms, backward_ms: Work of one stage for one micro-batch, without communication.
    data_loading_ms, optimizer_ms, idle_ms: Work before the first micro-batch, after the gradients, and the pause
        between two iterations.
    tp_operators, cp_operators, ep_operators: Collectives over ranks of these groups in each forward and in each
        backward of a stage.
    activation_bytes, gradient_bytes, expert_gradient_bytes: Payload of a pipeline or tensor parallel operator, of all
        dense gradients of one rank, and of its experts'.
    gradient_sync: ``sharded``: reduce_scatter, optimizer, all_gather. ``all_reduce``: all_reduce, optimizer.
        ``fsdp``: parameters are gathered unit by unit, and gradients scattered, beside the work.
    gradient_buckets: Into how many operators the gradients are cut.
    is_gradient_overlapped: The buckets go out on a second stream, each as soon as the last backward has made it,
        while the work goes on.
    has_data_broadcast: The first rank of each tensor parallel group loads the data and broadcasts it to the others.
    has_loss_reduction: At the end of an iteration the losses of each data parallel group are reduced to its first
        rank.
    has_tied_embeddings: The first and the last stage share a matrix, and all_reduce its gradients.
    is_send_buffered: A send that is not batched with a recv returns when its bytes are copied, not when they are
        taken.
    gap_noise_ratio, transfer_noise_ratio: Standard deviation of work and transfers, relative to their length.
    spike_probability, spike_factor_low, spike_factor_high: One transfer in ``1 / spike_probability`` takes so many
        times its length.
    rank_spread_ratio: Standard deviation of the ranks' own speeds, which last: no two GPUs are equal.
    micro_batch_spread_ratio: Standard deviation of the micro-batches' weights, relative to their mean.
    host_slow_probability, host_slow_iterations, host_slow_ratio: In an iteration each host begins, with this
        probability, to do all its work slower by up to this ratio, for so many iterations on average.
    stalls_per_iteration: How many transfers of the whole job hang in an iteration on average, for 50 to 200 % of its
        time. Whose they are is chance.
    drift_ratio: By how much all work gets longer from the first iteration to the last.
    workload_changes: ``(iteration, factor)``: from there on sequences are so many times as long as at the start; all
        compute and the sizes of activations follow.
    clock, clock_offset_ms, clock_drift_ppm: ``per_host``: each host's clock is off by up to so much to either side,
        and drifts by up to so much.
    checkpoint_every, checkpoint_ms, is_checkpoint_marked: Every so many iterations (0: never) the ranks write for so
        long at the end, and name it in ``phase`` or not.
    evaluate_every, evaluation_passes, is_evaluation_marked: Every so many iterations (0: never) one is an evaluation,
        of so many times the forward passes of a training iteration and nothing else, named in ``phase`` or not.
    hidden: Operators that the job waits for and no rank logs: any of ``tp``, ``cp``, ``ep`` (those of
        that group) and ``barrier`` (of all ranks, before the optimizer).
    logged: ``all`` ranks write their operators, or the ``tp_leaders`` alone: the first of each tensor parallel group;
        or ``some_ranks``, or all ranks of ``some_hosts`` (see ``unlogged_ratio``).
    loss_ratio, loss_burst_rows: Part of the operators that the exporter drops, and how many in a row on average.
    repeat_ratio: Part of the operators that the exporter sends twice.
    recorded_after_hang_s: How long recording goes on after the last rank of a hung job has come to a standstill.
    bandwidth_period_ms: Time between two samples of a NIC; 0: none.
    tokens_per_micro_batch: For the column ``tokens``.
    time_resolution_ns: ``start_ns`` and ``elapsed_ns`` are rounded to it, each by itself: 1, or 1,000 as Kineto and
        NCCL Inspector write, or 10,000.
    elapsed_clock_ppm: Durations are taken on a clock of the device, off by up to so much, and another for each rank;
        starts are not. Crystals of servers: up to 50 ppm, disciplined ones some ppm.
    shared_clock_error_us: Where clocks are shared: by how much they differ all the same, to either side (the contract
        allows 100).
    is_launched_ahead: Kernels wait in the queue of their stream: an operator beside the work begins when it is ready
        and at once when the one before on its stream has ended. False: it is launched after that, which takes a
        moment.
    fsdp_units: With ``gradient_sync="fsdp"``: into how many units a stage is wrapped. Each is gathered before its
        forward and its backward, one ahead, and its gradients are scattered after its backward (torch's
        FullyShardedDataParallel with ``BACKWARD_PRE``, Zhao et al., VLDB'23, section 3.3.2). Between replicas they
        are then all-reduced (``HYBRID_SHARD``).
    cp_exchange: ``collective``: keys and values are gathered. ``ring``: they go round in batches of one isend and one
        irecv, beside the attention over the block that is there (Liu et al., "Ring attention", 2023; Megatron's
        ``cp_comm_type=p2p``).
    expert_spread_ratio: Standard deviation of the tokens that a rank's experts get, relative to their mean: most of
        it lasts, since a router's preferences change slowly, the rest is of each batch.
    expert_work_ratio: Part of a stage's work that the experts do.
    is_nic_contended: Transfers that cross a NIC at the same time share its rate as long as they overlap. False: ranks
        that share a NIC have their part of it at all times, and groups do not disturb each other.
    unlogged_ratio: With ``logged`` ``some_ranks`` or ``some_hosts``: the part that writes no row, drawn from the
        seed.
    host_phase_ratio, host_phase_iterations: Each host has slow phases, up to two thirds to four thirds of this ratio
        slower, which come and go with so many iterations of memory (a thermal state, a neighbour on the host).
    replica_spread_ratio, iteration_spread_ratio: Standard deviation of the work of one replica, and of the whole job,
        in an iteration: which sequences it got.
    micro_batch_tail: Degrees of freedom of the micro-batches' weights (Student's t, in logarithms); 0: normal.
    pause_probability, pause_ms, pause_tail_index: A rank pauses in an iteration with this probability, anywhere, for
        this long or longer: Pareto, of this index (garbage collection, page faults, a daemon).
    warmup_iterations, warmup_ratio: In the first iterations all work takes longer, by this ratio at first and evenly
        less (caching allocator, cuBLAS and cuDNN heuristics, clocks).
    compile_ms: In the first iteration every rank compiles for about so long, and in the second for a fifth of it:
        torch.compile takes a size for dynamic when it sees a second one, and compiles again.
    connect_ms: The first transfer of each communicator and pair takes so much longer: NCCL connects when it is first
        used.
    faults: The faults of the job, see `producers.simulator.faults.parse_fault`.
    """

    job: str = "simulated"
    attempt: int = 1
    dp: int = 4
    pp: int = 4
    tp: int = 4
    cp: int = 1
    ep: int = 1
    shards: int = 1
    rank_order: str = "tp-cp-ep-dp-pp"
    model_chunks: int = 1
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
    cp_operators: int = 1
    ep_operators: int = 2
    activation_bytes: int = 16 * MIB
    gradient_bytes: int = 256 * MIB
    expert_gradient_bytes: int = 64 * MIB
    gradient_sync: str = "sharded"
    gradient_buckets: int = 1
    is_gradient_overlapped: bool = False
    has_data_broadcast: bool = False
    has_loss_reduction: bool = False
    has_tied_embeddings: bool = False
    is_send_buffered: bool = False
    gap_noise_ratio: float = 0.03
    transfer_noise_ratio: float = 0.10
    spike_probability: float = 1 / 200
    spike_factor_low: float = 3.0
    spike_factor_high: float = 8.0
    rank_spread_ratio: float = 0.0
    micro_batch_spread_ratio: float = 0.0
    host_slow_probability: float = 0.0
    host_slow_iterations: float = 5.0
    host_slow_ratio: float = 0.05
    stalls_per_iteration: float = 0.0
    drift_ratio: float = 0.03
    workload_changes: tuple[tuple[int, float], ...] = ()
    clock: str = "shared"
    clock_offset_ms: float = 5.0
    clock_drift_ppm: float = 0.0
    checkpoint_every: int = 0
    checkpoint_ms: float = 400.0
    is_checkpoint_marked: bool = True
    evaluate_every: int = 0
    evaluation_passes: int = 1
    is_evaluation_marked: bool = True
    hidden: tuple[str, ...] = ()
    logged: str = "all"
    loss_ratio: float = 0.0
    loss_burst_rows: float = 20.0
    repeat_ratio: float = 0.0
    recorded_after_hang_s: float = 60.0
    bandwidth_period_ms: float = 100.0
    tokens_per_micro_batch: int = 4096
    time_resolution_ns: int = 1
    elapsed_clock_ppm: float = 0.0
    shared_clock_error_us: float = 0.0
    is_launched_ahead: bool = False
    fsdp_units: int = 4
    cp_exchange: str = "collective"
    expert_spread_ratio: float = 0.0
    expert_work_ratio: float = 0.5
    is_nic_contended: bool = False
    unlogged_ratio: float = 0.5
    host_phase_ratio: float = 0.0
    host_phase_iterations: float = 25.0
    replica_spread_ratio: float = 0.0
    iteration_spread_ratio: float = 0.0
    micro_batch_tail: float = 0.0
    pause_probability: float = 0.0
    pause_ms: float = 3.0
    pause_tail_index: float = 2.0
    warmup_iterations: int = 0
    warmup_ratio: float = 0.3
    compile_ms: float = 0.0
    connect_ms: float = 0.0
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            # A bool is an int in Python, and has no range.
            if isinstance(value, int | float) and not isinstance(value, bool):
                _need(name not in _POSITIVE or value > 0, f"{name} must be above 0", value)
                _need(value >= 0 and math.isfinite(value), f"{name} must be 0 or more", value)
        for name, known in _KNOWN.items():
            for value in self.hidden if name == "hidden" else [getattr(self, name)]:
                _need(value in known, f"{name} must be one of {', '.join(known)}", value)
        _need(bool(self.job), "job must be a text that is not empty", self.job)
        _need(self.world_size >= 2, "dp * pp * tp * cp * ep * shards must be 2 or more", self.world_size)
        _need(
            self.spike_factor_high >= self.spike_factor_low,
            f"spike_factor_high must be at least spike_factor_low = {self.spike_factor_low!r}",
            self.spike_factor_high,
        )
        for ratio, largest in _LARGEST.items():
            value = getattr(self, ratio)
            _need(value <= largest, f"{ratio} must be at most {largest}", value)
        # With two stages forward and backward would share an ordered pair: their messages could not be told apart.
        has_chunks, pp = self.model_chunks > 1, self.pp
        _need(pp >= 3 or not has_chunks, "pp must be 3 or more where model_chunks is above 1", pp)
        rule = f"micro_batches must be a multiple of pp = {pp} where model_chunks is above 1"
        _need(not has_chunks or self.micro_batches % pp == 0, rule, self.micro_batches)
        firsts = [first for first, _ in self.workload_changes]
        _need(firsts == sorted(set(firsts)), "iterations of workload_changes must ascend", firsts)
        for first, factor in self.workload_changes:
            is_usable = first >= 0 and 0 < factor < math.inf
            _need(is_usable, "workload_changes must hold iterations from 0 and factors above 0", (first, factor))

    @property
    def warm_from(self) -> int:
        """First iteration that is as long as all later ones."""
        return max(self.warmup_iterations, COMPILED_ITERATIONS if self.compile_ms else 0, int(self.connect_ms > 0))

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.stage_ranks * self.pp

    @property
    def stage_ranks(self) -> int:
        """Ranks of one pipeline stage."""
        return self.replicas * self.cp * self.tp

    @property
    def replicas(self) -> int:
        """How many ranks of a stage have data of their own."""
        return self.dp * self.shards * self.ep

    def workload_factor(self, iteration: int) -> float:
        """How long sequences are in this iteration, relative to those at the start."""
        return next((factor for first, factor in reversed(self.workload_changes) if first <= iteration), 1.0)


def _need(is_right: bool, rule: str, value: object) -> None:
    if not is_right:
        raise InputError(f"{rule}; got {value!r} (simulator settings)")
