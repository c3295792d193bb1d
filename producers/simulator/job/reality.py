"""Settings for the untidiness of real jobs. Each default leaves it out, byte for byte.

Where a constant is not ours, its source stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CP_EXCHANGES: Final = ("collective", "ring")
LOGGED: Final = ("all", "tp_leaders", "some_ranks", "some_hosts")

COMPILED_ITERATIONS: Final = 2
"""In so many iterations something is compiled."""

POSITIVE: Final = frozenset({"time_resolution_ns", "fsdp_units", "host_phase_iterations", "pause_tail_index"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RealitySettings:
    """The part of `producers.simulator.job.settings.SimulatorSettings` that makes a job untidy as real ones are.

    Parameters
    ----------
    time_resolution_ns
        ``start_ns`` and ``elapsed_ns`` are rounded to it, each by itself: 1, or 1,000 as Kineto and NCCL Inspector
        write, or 10,000.
    elapsed_clock_ppm
        Durations are taken on a clock of the device, off by up to so much, and another for each rank; starts are not.
        Crystals of servers: up to 50 ppm, disciplined ones some ppm.
    shared_clock_error_us
        Where clocks are shared: by how much they differ all the same, to either side (the contract allows 100).
    is_launched_ahead
        Kernels wait in the queue of their stream: an operator beside the work begins when it is ready and at once
        when the one before on its stream has ended. False: it is launched after that, which takes a moment.
    fsdp_units
        With ``gradient_sync="fsdp"``: into how many units a stage is wrapped. Each is gathered before its forward and
        its backward, one ahead, and its gradients are scattered after its backward (torch's FullyShardedDataParallel
        with ``BACKWARD_PRE``, Zhao et al., VLDB'23, section 3.3.2). Between replicas they are then all-reduced
        (``HYBRID_SHARD``).
    cp_exchange
        ``collective``: keys and values are gathered. ``ring``: they go round in batches of one isend and one irecv,
        beside the attention over the block that is there (Liu et al., "Ring attention", 2023; Megatron's
        ``cp_comm_type=p2p``).
    expert_spread_ratio
        Standard deviation of the tokens that a rank's experts get, relative to their mean: most of it lasts, since
        what a router prefers changes slowly, the rest is of each batch.
    expert_work_ratio
        Part of a stage's work that the experts do.
    is_nic_contended
        Transfers that cross a NIC at the same time share its rate as long as they overlap. False: ranks that share a
        NIC have their part of it at all times, and groups do not disturb each other.
    unlogged_ratio
        With ``logged`` ``some_ranks`` or ``some_hosts``: the part that writes no row, drawn from the seed.
    host_phase_ratio, host_phase_iterations
        Each host has slow phases, up to two thirds to four thirds of this ratio slower, which come and go with so
        many iterations of memory (a thermal state, a neighbour on the host).
    replica_spread_ratio, iteration_spread_ratio
        Standard deviation of the work of one replica, and of the whole job, in an iteration: which sequences it got.
    micro_batch_tail
        Degrees of freedom of the micro-batches' weights (Student's t, in logarithms); 0: normal.
    pause_probability, pause_ms, pause_tail_index
        A rank pauses in an iteration with this probability, anywhere, for this long or longer: Pareto, of this index
        (garbage collection, page faults, a daemon).
    warmup_iterations, warmup_ratio
        In the first iterations all work takes longer, by this ratio at first and evenly less (caching allocator,
        cuBLAS and cuDNN heuristics, clocks).
    compile_ms
        In the first iteration every rank compiles for about so long, and in the second for a fifth of it:
        torch.compile takes a size for dynamic when it sees a second one, and compiles again.
    connect_ms
        The first transfer of each communicator and pair takes so much longer: NCCL connects when it is first used.
    """

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

    @property
    def warm_from(self) -> int:
        """First iteration that is as long as all later ones."""
        return max(self.warmup_iterations, COMPILED_ITERATIONS if self.compile_ms else 0, int(self.connect_ms > 0))
