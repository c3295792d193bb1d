"""``irregulars simulate``: write the trace directory of a simulated job, with its truth."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from irregulars.infra.commands.options import Json, open_console, print_json, program
from irregulars.printing import counted

if TYPE_CHECKING:
    from rich.console import Console

    from irregulars.producers.simulator.job.settings import SimulatorSettings

_FAULT_HELP = (
    "What goes wrong: KIND:KEY=VALUE,…; may stand several times. Kinds: slow_rank, slow_host, slow_stage, slow_nic, "
    "slow_link, slow_switch, uneven_data, hang. Times: from, to, shape (lasting, spike, fluctuating, from_start, and "
    "ramp or sawtooth with over=ITERATIONS). Strength: factor, add_ms or spread, or excess=0.2: the mean iteration "
    "gets 20 % longer."
)


# --- flags that stand for one setting of the simulator each, of which they have the name ----------------------------
# None: as the shape, the preset or the simulator says.

_SHAPE: Final = "Shape of the job"
_STREAMS: Final = "Streams and network"
_RUN: Final = "What happens in it"
_NOISE: Final = "Untidiness"
_LOG: Final = "What is written"


def _option(panel: str, text: str, *flags: str, least: float | None = None, most: float | None = None) -> Any:
    return typer.Option(*flags, help=text, min=least, max=most, rich_help_panel=panel)


def _count(panel: str, text: str, *flags: str) -> Any:
    return _option(panel, text, *flags, least=1)


def _ratio(text: str, most: float | None = None) -> Any:
    return _option(_NOISE, text, least=0, most=most)


Dp = Annotated[int | None, _count(_SHAPE, "Replicas of the data (4).")]
Pp = Annotated[int | None, _count(_SHAPE, "Pipeline stages (4).")]
Tp = Annotated[int | None, _count(_SHAPE, "Tensor parallel ranks (4).")]
Cp = Annotated[int | None, _count(_SHAPE, "Context parallel ranks (1).")]
Ep = Annotated[int | None, _count(_SHAPE, "Expert parallel ranks (1).")]
Shards = Annotated[int | None, _count(_SHAPE, "Shards of the optimizer's state, or of a hybrid's parameters (1).")]
Chunks = Annotated[
    int | None, _count(_SHAPE, "Model chunks of a stage; above 1: interleaved 1F1B, batched sends (1).", "--chunks")
]
MicroBatches = Annotated[int | None, _count(_SHAPE, "Micro-batches of an iteration (8).")]
GradientSync = Annotated[
    str | None, _option(_SHAPE, "Gradients: sharded (reduce_scatter, all_gather), all_reduce, or fsdp (by units).")
]
Buckets = Annotated[int | None, _count(_SHAPE, "Operators that the gradients are cut into (1).", "--buckets")]
Units = Annotated[int | None, _count(_SHAPE, "Of fsdp: units, each gathered one ahead (4).", "--units")]
CpExchange = Annotated[
    str | None, _option(_SHAPE, "Keys and values: collective, or ring (batched isend and irecv beside the work).")
]
ExpertSpread = Annotated[float | None, _ratio("Standard deviation of the tokens of a rank's experts, of their mean.")]
ExpertWork = Annotated[float | None, _ratio("Part of the work that experts do (0.5).", 1.0)]

Overlapped = Annotated[
    bool | None,
    _option(_STREAMS, "Buckets go out beside the last backward, or after it.", "--overlapped/--not-overlapped"),
]
Queued = Annotated[
    bool | None,
    _option(_STREAMS, "Operators beside the work begin at once when the one before ends.", "--queued/--not-queued"),
]
GpusPerHost = Annotated[int | None, _count(_STREAMS, "GPUs of a host (8).")]
GpusPerNic = Annotated[int | None, _count(_STREAMS, "Ranks that share a NIC (1).")]
Contended = Annotated[
    bool | None,
    _option(_STREAMS, "Transfers share a NIC while they overlap, or by fixed parts.", "--contended/--fixed-parts"),
]

Phases = Annotated[float | None, _ratio("Slow phases of hosts: by about so much, as 0.045.")]
PhaseLength = Annotated[float | None, _option(_NOISE, "Iterations that a slow phase lasts (25).", least=1)]
IterationSpread = Annotated[float | None, _ratio("Standard deviation of all work from iteration to iteration.")]
ReplicaSpread = Annotated[float | None, _ratio("The same, of one replica.")]
MicroBatchSpread = Annotated[float | None, _ratio("The same, of one micro-batch of a replica, as 0.12.")]
MicroBatchTail = Annotated[
    float | None, _ratio("Heavy tails of micro-batches: degrees of freedom of Student's t, as 5; 0: none.")
]
PauseProbability = Annotated[float | None, _ratio("How often a rank pauses in an iteration, as 0.001.", 1.0)]
PauseMs = Annotated[float | None, _ratio("Shortest pause, ms (3).")]
PauseTail = Annotated[float | None, _option(_NOISE, "Index of their Pareto tail; less: heavier (2).", least=0.1)]
Stalls = Annotated[float | None, _ratio("Transfers that hang for a while, of the whole job, per iteration.")]
WarmupIterations = Annotated[int | None, _option(_NOISE, "Iterations in which the job warms up.", least=0)]
WarmupRatio = Annotated[float | None, _ratio("By how much the first of them is longer (0.3).")]
CompileMs = Annotated[float | None, _ratio("Time that each rank compiles in the first iteration, ms.")]
ConnectMs = Annotated[float | None, _ratio("Time to connect each communicator in the first iteration, ms.")]

Resolution = Annotated[int | None, _count(_LOG, "Start and duration are each rounded to so many ns, as 1000.")]
ElapsedPpm = Annotated[float | None, _option(_LOG, "Durations are taken on clocks so many ppm off.", least=0)]
ClockError = Annotated[
    float | None, _option(_LOG, "By how many µs clocks differ that are said to be shared.", least=0)
]
Logged = Annotated[str | None, _option(_LOG, "Who logs: all, tp_leaders, some_ranks, some_hosts.")]
Unlogged = Annotated[
    float | None, _option(_LOG, "Of some_ranks, some_hosts: the part without rows.", least=0, most=0.9)
]

CheckpointEvery = Annotated[int | None, _option(_RUN, "Iterations from checkpoint to checkpoint.", least=0)]
EvaluateEvery = Annotated[int | None, _option(_RUN, "Iterations from evaluation to evaluation.", least=0)]


def simulate(
    context: typer.Context,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The trace directory to write.")],
    shape: Annotated[
        str,
        typer.Option(help="A start: pipeline, ddp, fsdp, hybrid, interleaved, cp_ring, moe, shared_nics, unlogged."),
    ] = "pipeline",
    preset: Annotated[
        str, typer.Option(help="How untidy the job is: default, tidy, suite, untidy, field.")
    ] = "default",
    iterations: Annotated[int, typer.Option(min=1, help="Length of the run.")] = 160,
    seed: Annotated[int, typer.Option(min=0, help="All randomness comes from it.")] = 0,
    faults: Annotated[list[str] | None, typer.Option("--fault", metavar="FAULT", help=_FAULT_HELP)] = None,
    clock: Annotated[str | None, typer.Option(help="shared, or per_host: clocks of hosts are off by ms.")] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(metavar="ITERATION:FACTOR", help="From there on sequences are so many times as long."),
    ] = None,
    is_marked: Annotated[
        bool, typer.Option("--marked/--unmarked", help="Whether checkpoints and evaluations say so.")
    ] = True,
    dp: Dp = None,
    pp: Pp = None,
    tp: Tp = None,
    cp: Cp = None,
    ep: Ep = None,
    shards: Shards = None,
    model_chunks: Chunks = None,
    micro_batches: MicroBatches = None,
    gradient_sync: GradientSync = None,
    gradient_buckets: Buckets = None,
    fsdp_units: Units = None,
    cp_exchange: CpExchange = None,
    expert_spread_ratio: ExpertSpread = None,
    expert_work_ratio: ExpertWork = None,
    is_gradient_overlapped: Overlapped = None,
    is_launched_ahead: Queued = None,
    gpus_per_host: GpusPerHost = None,
    gpus_per_nic: GpusPerNic = None,
    is_nic_contended: Contended = None,
    checkpoint_every: CheckpointEvery = None,
    evaluate_every: EvaluateEvery = None,
    host_phase_ratio: Phases = None,
    host_phase_iterations: PhaseLength = None,
    iteration_spread_ratio: IterationSpread = None,
    replica_spread_ratio: ReplicaSpread = None,
    micro_batch_spread_ratio: MicroBatchSpread = None,
    micro_batch_tail: MicroBatchTail = None,
    pause_probability: PauseProbability = None,
    pause_ms: PauseMs = None,
    pause_tail_index: PauseTail = None,
    stalls_per_iteration: Stalls = None,
    warmup_iterations: WarmupIterations = None,
    warmup_ratio: WarmupRatio = None,
    compile_ms: CompileMs = None,
    connect_ms: ConnectMs = None,
    time_resolution_ns: Resolution = None,
    elapsed_clock_ppm: ElapsedPpm = None,
    shared_clock_error_us: ClockError = None,
    logged: Logged = None,
    unlogged_ratio: Unlogged = None,
    json: Json = False,
) -> None:
    """Simulate a training job, and write what its ranks log as a trace directory, with the truth in label.json.

    The same call writes the same bytes. Status 2 if the job or a fault is not possible.

    Example: irregulars simulate out --fault slow_nic:rank=17,from=60,to=80,excess=0.3

    Example: irregulars simulate out --dp 32 --pp 8 --tp 8 --iterations 55 --preset suite
    --fault slow_rank:rank=5,from=30,to=50,excess=0.1,shape=fluctuating

    Example: irregulars simulate out --clock per_host --preset untidy --fault hang:rank=9,from=100

    Example: irregulars simulate out --shape fsdp --dp 128 --preset field
    --fault slow_rank:rank=5,from=60,factor=1.5,shape=ramp,over=20
    """
    from irregulars.producers.simulator.job.faults import parse_fault
    from irregulars.producers.simulator.job.presets import OFF_CLOCKS, with_preset
    from irregulars.producers.simulator.job.settings import SimulatorSettings
    from irregulars.producers.simulator.job.shapes import with_shape

    own = dict(OFF_CLOCKS) if clock == "per_host" else {} if clock is None else {"clock": clock}
    job = with_preset(with_shape(SimulatorSettings(), shape), preset)
    job = _replaced(
        job, faults=tuple(parse_fault(fault) for fault in faults or ()),
        workload_changes=tuple(_workload_change(text) for text in workload or ()),
        is_checkpoint_marked=is_marked, is_evaluation_marked=is_marked, **own, **_given(context),
    )  # fmt: skip
    label = _write(out, job, open_console(is_error=True))
    if json:
        print_json(label)
    else:
        _show(open_console(), out, job, label)


def _given(context: typer.Context) -> dict[str, Any]:
    """Settings of the job that parameters of the same name give as they are."""
    from irregulars.producers.simulator.job.settings import SimulatorSettings

    own = {field.name for field in fields(SimulatorSettings)} - {"faults", "clock"}
    return {name: value for name, value in context.params.items() if name in own and value is not None}


def _replaced(job: SimulatorSettings, **values: Any) -> SimulatorSettings:
    from dataclasses import replace

    return replace(job, **values)


def _workload_change(text: str) -> tuple[int, float]:
    from irregulars.errors import InputError

    iteration, _, factor = text.partition(":")
    try:
        return int(iteration), float(factor)
    except ValueError:
        raise InputError(f"workload must be ITERATION:FACTOR, as 80:1.5; got {text!r} (--workload)") from None


def _write(out: Path, job: SimulatorSettings, console: Console) -> dict[str, Any]:
    """Write the trace; a terminal sees how far it is."""
    from rich.progress import Progress

    from irregulars.errors import InputError
    from irregulars.producers.simulator.logs.source import simulate_trace

    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(_size(job), total=job.iterations)
        try:
            return simulate_trace(out, job, on_part=lambda past: progress.update(task, completed=past))
        except OSError as error:
            rule = "OUT must be a directory that can be written"
            raise InputError(f"{rule}; got {error.strerror or error} ({error.filename or out})") from error


def _size(job: SimulatorSettings) -> str:
    return f"{counted(job.world_size, 'rank')}, {counted(job.iterations, 'iteration')}"


def _show(console: Console, out: Path, job: SimulatorSettings, label: dict[str, Any]) -> None:
    console.print(f"{out}: {_size(job)}", markup=False)
    for fault in label.get("faults", ()):
        first, past = fault["iterations"]
        excess = fault["excess_ratio"]
        effect = "the job hangs" if excess is None else f"{excess:+.1%} iteration time"
        ranks = ", ".join(map(str, fault["ranks"][:8])) + (", …" if len(fault["ranks"]) > 8 else "")
        where = f" on rank {ranks}" if ranks else ""
        console.print(f"  {fault['fault']}{where} in iterations {first} to {past - 1}: {effect}", markup=False)
    console.print(f"Next: {program()} analyze {out}", markup=False)
