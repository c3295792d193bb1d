"""``irregulars simulate``: write the trace directory of a simulated job, with its truth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.commands.options import Json, open_console, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from producers.simulator.settings import SimulatorSettings

_FAULT_HELP = (
    "What goes wrong: KIND:KEY=VALUE,…; may stand several times. Kinds: slow_rank, slow_host, slow_stage, slow_nic, "
    "slow_link, slow_switch, uneven_data, hang. Times: from, to, shape (lasting, spike, fluctuating, from_start). "
    "Strength: factor, add_ms or spread, or excess=0.2: the mean iteration gets 20 % longer."
)


def simulate(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The trace directory to write.")],
    dp: Annotated[int, typer.Option(min=1, help="Replicas of the data.")] = 4,
    pp: Annotated[int, typer.Option(min=1, help="Pipeline stages.")] = 4,
    tp: Annotated[int, typer.Option(min=1, help="Tensor parallel ranks.")] = 4,
    cp: Annotated[int, typer.Option(min=1, help="Context parallel ranks.")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="Expert parallel ranks.")] = 1,
    shards: Annotated[int, typer.Option(min=1, help="Shards of the optimizer's state.")] = 1,
    chunks: Annotated[int, typer.Option(min=1, help="Model chunks of a stage; above 1: interleaved 1F1B.")] = 1,
    micro_batches: Annotated[int, typer.Option(min=1, help="Micro-batches of an iteration.")] = 8,
    iterations: Annotated[int, typer.Option(min=1, help="Length of the run.")] = 160,
    seed: Annotated[int, typer.Option(min=0, help="All randomness comes from it.")] = 0,
    faults: Annotated[list[str] | None, typer.Option("--fault", metavar="FAULT", help=_FAULT_HELP)] = None,
    clock: Annotated[str | None, typer.Option(help="shared, or per_host: clocks of hosts are off by ms.")] = None,
    preset: Annotated[str, typer.Option(help="How untidy the job is: default, tidy, suite, untidy.")] = "default",
    logged: Annotated[str, typer.Option(help="Who logs: all, or tp_leaders.")] = "all",
    workload: Annotated[
        list[str] | None,
        typer.Option(metavar="ITERATION:FACTOR", help="From there on sequences are so many times as long."),
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(min=0, help="Iterations from checkpoint to checkpoint.")] = 0,
    evaluate_every: Annotated[int, typer.Option(min=0, help="Iterations from evaluation to evaluation.")] = 0,
    is_marked: Annotated[
        bool, typer.Option("--marked/--unmarked", help="Whether checkpoints and evaluations say so.")
    ] = True,
    json: Json = False,
) -> None:
    """Simulate a training job, and write what its ranks log as a trace directory, with the truth in label.json.

    The same call writes the same bytes. Status 2 if the job or a fault is not possible.

    Example: irregulars simulate out --fault slow_nic:rank=17,from=60,to=80,excess=0.3

    Example: irregulars simulate out --dp 32 --pp 8 --tp 8 --iterations 55 --preset suite
    --fault slow_rank:rank=5,from=30,to=50,excess=0.1,shape=fluctuating

    Example: irregulars simulate out --clock per_host --preset untidy --fault hang:rank=9,from=100
    """
    from producers.simulator.faults import parse_fault
    from producers.simulator.presets import OFF_CLOCKS, with_preset
    from producers.simulator.settings import SimulatorSettings

    own = dict(OFF_CLOCKS) if clock == "per_host" else {} if clock is None else {"clock": clock}
    job = with_preset(SimulatorSettings(), preset)
    job = _replaced(
        job, dp=dp, pp=pp, tp=tp, cp=cp, ep=ep, shards=shards, model_chunks=chunks, micro_batches=micro_batches,
        iterations=iterations, seed=seed, faults=tuple(parse_fault(fault) for fault in faults or ()), logged=logged,
        workload_changes=tuple(_workload_change(text) for text in workload or ()),
        checkpoint_every=checkpoint_every, is_checkpoint_marked=is_marked,
        evaluate_every=evaluate_every, is_evaluation_marked=is_marked, **own,
    )  # fmt: skip
    label = _write(out, job, open_console(is_error=True))
    if json:
        print_json(label)
    else:
        _show(open_console(), out, job, label)


def _replaced(job: SimulatorSettings, **values: Any) -> SimulatorSettings:
    from dataclasses import replace

    return replace(job, **values)


def _workload_change(text: str) -> tuple[int, float]:
    from streams.errors import InputError

    iteration, _, factor = text.partition(":")
    try:
        return int(iteration), float(factor)
    except ValueError:
        raise InputError(f"workload must be ITERATION:FACTOR, as 80:1.5; got {text!r} (--workload)") from None


def _write(out: Path, job: SimulatorSettings, console: Console) -> dict[str, Any]:
    """Write the trace; a terminal sees how far it is."""
    from rich.progress import Progress

    from producers.simulator.source import simulate_trace
    from streams.errors import InputError

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
