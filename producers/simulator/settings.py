"""Settings of one simulated job: its shape, its cluster, its speed, its noise and its faults.

By default all untidiness of real jobs is left out, byte for byte. Where a constant is not ours, its source
is beside it.

How untidy jobs are: in one place for the demo, the tests, the benchmarks and the command line.

==============  ======================================================================================================
``default``     `SimulatorSettings` as they are: noise of single operators
``tidy``        no noise of work and transfers, no drift: any crude rule detects effects
``suite``       the noise of the simulated suite: gaps 3 %, transfers 10 %, one in 200 transfers takes several times
                its length, 10 % drift; and otherwise as untidy as recordings are: ranks and hosts of different speed,
                micro-batches of different weight, transfers that hang and are nobody's fault
``field``       reality as a whole: times to the microsecond, durations on another clock, slow phases of hosts, heavy
                tails of sequences and pauses, iterations that compile and warm up; healthy times vary by 1 to 8 %
``untidy``      the suite, and more that makes recordings hard to read: buckets on a second stream, rooted
                operators, a barrier that no rank logged, rows lost in bursts, and rows that come twice
``off_clocks``  clocks of hosts are milliseconds apart and drift; a job may have it besides another preset
==============  ======================================================================================================

Shapes of jobs as they are run: parallel dimensions, streams, and the ranks that log.

===============  =====================================================================================================
``pipeline``     the default job: dp × pp × tp, 1F1B, gradients after the last backward
``ddp``          replicas alone: gradients in buckets beside the backward
``fsdp``         all parameters sharded over all ranks, gathered one unit ahead, in each pass
``hybrid``       the same inside groups of 16, and all-reduced between these
``interleaved``  1F1B with two model chunks a stage, sends and recvs of both directions in one batch
``cp_ring``      context parallel ranks on two hosts, keys and values go round
``moe``          expert parallel ranks on two hosts, tokens as the router deals them
``shared_nics``  four ranks to a NIC, which groups contend for
``unlogged``     two ranks in five, drawn from the seed, write no row
===============  =====================================================================================================

Sizes may be changed (``dp``, say): a shape is a start, and 64 to 128 ranks large.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Final, get_type_hints

import msgspec
from msgspec import Meta

from irregulars.errors import InputError
from irregulars.producers.simulator.faults import Fault
from irregulars.validation import (
    LARGEST,
    Count,
    NotNegative,
    Positive,
    Share,
    Text,
    checked,
    describe,
    nearest,
    one_of,
)

COMPILED_ITERATIONS: Final = 2  # Number of first iterations in which something is compiled
NS_PER_S: Final = 1e9
NS_PER_MS: Final = 1_000_000.0
NS_PER_US: Final = 1_000.0
MIB: Final = 1 << 20
_AtLeastOne = Annotated[int, Meta(ge=1, le=LARGEST)]
_Half = Annotated[float, Meta(ge=0, le=0.5)]
_Groups = tuple[Annotated[str, one_of("tp", "cp", "ep", "barrier")], ...]
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

    job: Text = "simulated"
    attempt: _AtLeastOne = 1
    dp: _AtLeastOne = 4
    pp: _AtLeastOne = 4
    tp: _AtLeastOne = 4
    cp: _AtLeastOne = 1
    ep: _AtLeastOne = 1
    shards: _AtLeastOne = 1
    rank_order: Annotated[str, one_of("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")] = "tp-cp-ep-dp-pp"
    model_chunks: _AtLeastOne = 1
    micro_batches: _AtLeastOne = 8
    iterations: _AtLeastOne = 160
    seed: Count = 0
    gpus_per_host: _AtLeastOne = 8
    gpus_per_nic: _AtLeastOne = 1
    hosts_per_switch: _AtLeastOne = 4
    nic_bytes_per_s: Positive = 40e9
    nvlink_bytes_per_s: Positive = 300e9
    network_latency_us: NotNegative = 15.0
    nvlink_latency_us: NotNegative = 8.0
    forward_ms: NotNegative = 6.0
    backward_ms: NotNegative = 12.0
    data_loading_ms: NotNegative = 3.0
    optimizer_ms: NotNegative = 5.0
    idle_ms: NotNegative = 2.0
    tp_operators: Count = 2
    cp_operators: Count = 1
    ep_operators: Count = 2
    activation_bytes: Count = 16 * MIB
    gradient_bytes: Count = 256 * MIB
    expert_gradient_bytes: Count = 64 * MIB
    gradient_sync: Annotated[str, one_of("sharded", "all_reduce", "fsdp")] = "sharded"
    gradient_buckets: _AtLeastOne = 1
    is_gradient_overlapped: bool = False
    has_data_broadcast: bool = False
    has_loss_reduction: bool = False
    has_tied_embeddings: bool = False
    is_send_buffered: bool = False
    gap_noise_ratio: NotNegative = 0.03
    transfer_noise_ratio: NotNegative = 0.10
    spike_probability: NotNegative = 1 / 200
    spike_factor_low: NotNegative = 3.0
    spike_factor_high: NotNegative = 8.0
    rank_spread_ratio: NotNegative = 0.0
    micro_batch_spread_ratio: NotNegative = 0.0
    host_slow_probability: NotNegative = 0.0
    host_slow_iterations: Positive = 5.0
    host_slow_ratio: NotNegative = 0.05
    stalls_per_iteration: NotNegative = 0.0
    drift_ratio: NotNegative = 0.03
    workload_changes: tuple[tuple[Count, Positive], ...] = ()
    clock: Annotated[str, one_of("shared", "per_host")] = "shared"
    clock_offset_ms: NotNegative = 5.0
    clock_drift_ppm: NotNegative = 0.0
    checkpoint_every: Count = 0
    checkpoint_ms: NotNegative = 400.0
    is_checkpoint_marked: bool = True
    evaluate_every: Count = 0
    evaluation_passes: _AtLeastOne = 1
    is_evaluation_marked: bool = True
    hidden: _Groups = ()
    logged: Annotated[str, one_of("all", "tp_leaders", "some_ranks", "some_hosts")] = "all"
    loss_ratio: _Half = 0.0
    loss_burst_rows: Positive = 20.0
    repeat_ratio: _Half = 0.0
    recorded_after_hang_s: Positive = 60.0
    bandwidth_period_ms: NotNegative = 100.0
    tokens_per_micro_batch: Count = 4096
    time_resolution_ns: _AtLeastOne = 1
    elapsed_clock_ppm: NotNegative = 0.0
    shared_clock_error_us: NotNegative = 0.0
    is_launched_ahead: bool = False
    fsdp_units: _AtLeastOne = 4
    cp_exchange: Annotated[str, one_of("collective", "ring")] = "collective"
    expert_spread_ratio: NotNegative = 0.0
    expert_work_ratio: Share = 0.5
    is_nic_contended: bool = False
    unlogged_ratio: Annotated[float, Meta(ge=0, le=0.9)] = 0.5
    host_phase_ratio: NotNegative = 0.0
    host_phase_iterations: Positive = 25.0
    replica_spread_ratio: NotNegative = 0.0
    iteration_spread_ratio: NotNegative = 0.0
    micro_batch_tail: NotNegative = 0.0
    pause_probability: NotNegative = 0.0
    pause_ms: NotNegative = 3.0
    pause_tail_index: Positive = 2.0
    warmup_iterations: Count = 0
    warmup_ratio: NotNegative = 0.3
    compile_ms: NotNegative = 0.0
    connect_ms: NotNegative = 0.0
    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        for name, rule in _RULES.items():
            checked(getattr(self, name), rule, name, "simulator settings")
        _need(self.world_size >= 2, "dp * pp * tp * cp * ep * shards must be 2 or more", self.world_size)
        least, most = self.spike_factor_low, self.spike_factor_high
        _need(most >= least, f"spike_factor_high must be at least spike_factor_low = {least!r}", most)
        # With two stages forward and backward would share an ordered pair: their messages could not be told apart.
        has_chunks, pp = self.model_chunks > 1, self.pp
        _need(pp >= 3 or not has_chunks, "pp must be 3 or more where model_chunks is above 1", pp)
        rule = f"micro_batches must be a multiple of pp = {pp} where model_chunks is above 1"
        _need(not has_chunks or self.micro_batches % pp == 0, rule, self.micro_batches)
        firsts = [first for first, _ in self.workload_changes]
        _need(firsts == sorted(set(firsts)), "iterations of workload_changes must ascend", firsts)

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


_RULES: Final = {
    name: kind for name, kind in get_type_hints(SimulatorSettings, include_extras=True).items() if name != "faults"
}


def _need(is_right: bool, rule: str, value: object) -> None:
    if not is_right:
        raise InputError(f"{rule}; got {value!r} (simulator settings)")


# Of models of one to some ten billion parameters, with bfloat16 gradients.
_ALONE: Final[Mapping[str, Any]] = {"pp": 1, "tp": 1, "is_launched_ahead": True}
SHAPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "pipeline": {},
    "ddp": {
        **_ALONE, "dp": 64, "micro_batches": 1, "forward_ms": 70.0, "backward_ms": 140.0,
        "gradient_sync": "all_reduce", "is_gradient_overlapped": True, "gradient_buckets": 10,
        "gradient_bytes": 2560 * MIB,
    },
    "fsdp": {
        **_ALONE, "dp": 64, "micro_batches": 2, "forward_ms": 40.0, "backward_ms": 80.0, "gradient_sync": "fsdp",
        "fsdp_units": 8, "gradient_bytes": 6144 * MIB,
    },
    "hybrid": {
        **_ALONE, "dp": 8, "shards": 16, "micro_batches": 2, "forward_ms": 40.0, "backward_ms": 80.0,
        "gradient_sync": "fsdp", "fsdp_units": 8, "gradient_bytes": 6144 * MIB,
    },
    "interleaved": {"dp": 8, "pp": 4, "tp": 4, "model_chunks": 2},
    "cp_ring": {
        "dp": 4, "pp": 2, "tp": 4, "cp": 4, "cp_exchange": "ring", "cp_operators": 2, "is_launched_ahead": True,
    },
    "moe": {"dp": 4, "pp": 2, "tp": 2, "ep": 8, "tp_operators": 1, "expert_spread_ratio": 0.15},
    "shared_nics": {"dp": 8, "pp": 4, "tp": 4, "gpus_per_nic": 4, "is_nic_contended": True},
    "unlogged": {"dp": 8, "pp": 4, "tp": 4, "logged": "some_ranks", "unlogged_ratio": 0.4},
}  # fmt: skip


def with_shape(settings: SimulatorSettings, name: str) -> SimulatorSettings:
    """Return a job of this shape, and otherwise as it is.

    Raises InputError if there is no such shape.

    >>> with_shape(SimulatorSettings(), "hybrid").world_size
    128
    """
    _need(name in SHAPES, f"shape must be one of {', '.join(SHAPES)}", name)
    return replace(settings, **SHAPES[name])


TIDY: Final[Mapping[str, Any]] = {
    "gap_noise_ratio": 0.0, "transfer_noise_ratio": 0.0, "spike_probability": 0.0, "drift_ratio": 0.0,
}  # fmt: skip
SUITE: Final[Mapping[str, Any]] = {
    "gap_noise_ratio": 0.03, "transfer_noise_ratio": 0.10, "spike_probability": 1 / 200, "drift_ratio": 0.10,
    "rank_spread_ratio": 0.01, "micro_batch_spread_ratio": 0.03, "host_slow_probability": 0.002,
    "host_slow_iterations": 5.0, "host_slow_ratio": 0.05, "stalls_per_iteration": 0.02,
}  # fmt: skip
UNTIDY: Final[Mapping[str, Any]] = {
    **SUITE, "is_gradient_overlapped": True, "gradient_buckets": 4, "has_data_broadcast": True,
    "has_loss_reduction": True, "hidden": ("barrier",), "loss_ratio": 0.002, "repeat_ratio": 0.001,
}  # fmt: skip
FIELD: Final[Mapping[str, Any]] = {
    "gap_noise_ratio": 0.03, "transfer_noise_ratio": 0.10, "spike_probability": 1 / 200, "drift_ratio": 0.03,
    "rank_spread_ratio": 0.01, "host_phase_ratio": 0.045, "host_phase_iterations": 25.0,
    "iteration_spread_ratio": 0.015, "replica_spread_ratio": 0.01, "micro_batch_spread_ratio": 0.06,
    "micro_batch_tail": 5.0, "pause_probability": 0.001, "pause_ms": 3.0, "pause_tail_index": 2.0,
    "warmup_iterations": 5, "warmup_ratio": 0.3, "compile_ms": 3000.0,
    "connect_ms": 20.0, "time_resolution_ns": 1000, "elapsed_clock_ppm": 5.0, "shared_clock_error_us": 20.0,
    "is_launched_ahead": True,
}  # fmt: skip
# Clocks of every other case of the suite.
OFF_CLOCKS: Final[Mapping[str, Any]] = {"clock": "per_host", "clock_offset_ms": 5.0, "clock_drift_ppm": 5.0}
PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "default": {}, "tidy": TIDY, "suite": SUITE, "untidy": UNTIDY, "field": FIELD, "off_clocks": OFF_CLOCKS,
}  # fmt: skip


def with_preset(settings: SimulatorSettings, name: str) -> SimulatorSettings:
    """Return the same job, as untidy as the preset says; InputError if there is no such preset."""
    _need(name in PRESETS, f"preset must be one of {', '.join(PRESETS)}", name)
    return replace(settings, **PRESETS[name])


_OTHERS: Final = {"faults": "--fault"}  # settings that have a flag of their own, whose text is no single value


def with_values(settings: SimulatorSettings, assignments: Iterable[str]) -> SimulatorSettings:
    """Return the job with other settings; where a key is given twice, the last one counts.

    Lists are separated by commas, and the parts of a pair by a colon: ``workload_changes=80:1.5,120:1``.

    Raises InputError if a key is unknown, a value has not its type, or the job is not possible.

    >>> with_values(SimulatorSettings(), ["dp=2", "hidden=tp,barrier", "workload_changes=80:1.5"]).hidden
    ('tp', 'barrier')
    """
    kinds = get_type_hints(SimulatorSettings)
    values: dict[str, Any] = {}
    for text in assignments:
        key, sign, value = text.partition("=")
        if not sign:
            raise InputError(f"a setting of the job must be KEY=VALUE; got {text!r} (--set)")
        if key in _OTHERS or key not in kinds:
            hint = f"; it is given by {_OTHERS[key]}" if key in _OTHERS else nearest(key, kinds)
            raise InputError(f"a setting of the job must be a known key; got {key!r} (--set {text}){hint}")
        parts: Any = value
        if key == "workload_changes":
            parts = [part.split(":") for part in value.split(",") if part]
        elif key == "hidden":
            parts = [part for part in value.split(",") if part]
        try:
            values[key] = msgspec.convert(parts, kinds[key], strict=False)
        except msgspec.ValidationError:
            rule = "pairs ITERATION:FACTOR, as 80:1.5" if key == "workload_changes" else describe(kinds[key])
            raise InputError(f"{key} must be {rule}; got {value!r} (--set {key}={value})") from None
    return replace(settings, **values)


def described_keys() -> Iterator[tuple[str, str]]:
    """Yield the keys that are explained together, with their defaults, and the first sentence about them.

    Both come from the dataclass: ``("loss_ratio=0.0, loss_burst_rows=20.0", "Part of the operators … .")``.
    """
    defaults = {field.name: field.default for field in fields(SimulatorSettings)}
    explained = inspect.getdoc(SimulatorSettings) or ""
    for names, text in re.findall(r"^(\w[\w, ]*): (.*\n?(?:    .*\n?)*)", explained, re.MULTILINE):
        keys = [name for name in names.split(", ") if name not in _OTHERS]
        if keys:
            text = " ".join(text.split())
            if not text.startswith("``"):  # else a list of the values that it may have
                text = text.split(". ")[0].rstrip(".") + "."
            yield ", ".join(f"{key}={_shown(defaults[key])}" for key in keys), text.replace("``", "`")


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
