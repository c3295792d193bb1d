"""``irregulars simulate``: write the trace directory of a simulated job, with its truth."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irregulars.infra.commands import simulate_options as flags
from irregulars.infra.commands.options import Json, open_console, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from irregulars.producers.simulator.job.settings import SimulatorSettings

_FAULT_HELP = (
    "What goes wrong: KIND:KEY=VALUE,…; may stand several times. Kinds: slow_rank, slow_host, slow_stage, slow_nic, "
    "slow_link, slow_switch, uneven_data, hang. Times: from, to, shape (lasting, spike, fluctuating, from_start, and "
    "ramp or sawtooth with over=ITERATIONS). Strength: factor, add_ms or spread, or excess=0.2: the mean iteration "
    "gets 20 % longer."
)


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
    dp: flags.Dp = None,
    pp: flags.Pp = None,
    tp: flags.Tp = None,
    cp: flags.Cp = None,
    ep: flags.Ep = None,
    shards: flags.Shards = None,
    model_chunks: flags.Chunks = None,
    micro_batches: flags.MicroBatches = None,
    gradient_sync: flags.GradientSync = None,
    gradient_buckets: flags.Buckets = None,
    fsdp_units: flags.Units = None,
    cp_exchange: flags.CpExchange = None,
    expert_spread_ratio: flags.ExpertSpread = None,
    expert_work_ratio: flags.ExpertWork = None,
    is_gradient_overlapped: flags.Overlapped = None,
    is_launched_ahead: flags.Queued = None,
    gpus_per_host: flags.GpusPerHost = None,
    gpus_per_nic: flags.GpusPerNic = None,
    is_nic_contended: flags.Contended = None,
    checkpoint_every: flags.CheckpointEvery = None,
    evaluate_every: flags.EvaluateEvery = None,
    host_phase_ratio: flags.Phases = None,
    host_phase_iterations: flags.PhaseLength = None,
    iteration_spread_ratio: flags.IterationSpread = None,
    replica_spread_ratio: flags.ReplicaSpread = None,
    micro_batch_spread_ratio: flags.MicroBatchSpread = None,
    micro_batch_tail: flags.MicroBatchTail = None,
    pause_probability: flags.PauseProbability = None,
    pause_ms: flags.PauseMs = None,
    pause_tail_index: flags.PauseTail = None,
    stalls_per_iteration: flags.Stalls = None,
    warmup_iterations: flags.WarmupIterations = None,
    warmup_ratio: flags.WarmupRatio = None,
    compile_ms: flags.CompileMs = None,
    connect_ms: flags.ConnectMs = None,
    time_resolution_ns: flags.Resolution = None,
    elapsed_clock_ppm: flags.ElapsedPpm = None,
    shared_clock_error_us: flags.ClockError = None,
    logged: flags.Logged = None,
    unlogged_ratio: flags.Unlogged = None,
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
        task = progress.add_task(f"{job.world_size} ranks, {job.iterations} iterations", total=job.iterations)
        try:
            return simulate_trace(out, job, on_part=lambda past: progress.update(task, completed=past))
        except OSError as error:
            rule = "OUT must be a directory that can be written"
            raise InputError(f"{rule}; got {error.strerror or error} ({error.filename or out})") from error


def _show(console: Console, out: Path, job: SimulatorSettings, label: dict[str, Any]) -> None:
    console.print(f"{out}: {job.world_size} ranks, {job.iterations} iterations", markup=False)
    for fault in label.get("faults", ()):
        first, past = fault["iterations"]
        excess = fault["excess_ratio"]
        effect = "the job hangs" if excess is None else f"{excess:+.1%} iteration time"
        ranks = ", ".join(map(str, fault["ranks"][:8])) + (", …" if len(fault["ranks"]) > 8 else "")
        where = f" on rank {ranks}" if ranks else ""
        console.print(f"  {fault['fault']}{where} in iterations {first} to {past - 1}: {effect}", markup=False)
    console.print(f"Next: irregulars analyze {out}", markup=False)
