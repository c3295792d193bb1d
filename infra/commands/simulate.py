"""``irregulars simulate``: write the trace directory of a simulated job, with its truth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irregulars.infra.commands.options import Json, open_console, print_json, program
from irregulars.printing import counted

if TYPE_CHECKING:
    from rich.console import Console

    from irregulars.producers.simulator.settings import SimulatorSettings

_FAULT_HELP = (
    "What goes wrong: KIND:KEY=VALUE,…; may stand several times. Kinds: slow_rank, slow_host, slow_stage, slow_nic, "
    "slow_link, slow_switch, uneven_data, hang. Times: from, to, shape (lasting, spike, fluctuating, from_start, and "
    "ramp or sawtooth with over=ITERATIONS). Strength: factor, add_ms or spread, or excess=0.2: the mean iteration "
    "gets 20 % longer."
)


def simulate(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The trace directory to write.")],
    shape: Annotated[
        str,
        typer.Option(help="A start: pipeline, ddp, fsdp, hybrid, interleaved, cp_ring, moe, shared_nics, unlogged."),
    ] = "pipeline",
    presets: Annotated[
        list[str] | None,
        typer.Option(
            "--preset",
            help="How untidy the job is: default, tidy, suite, untidy, field, off_clocks; may stand several times.",
        ),
    ] = None,
    iterations: Annotated[int, typer.Option(min=1, help="Length of the run.")] = 160,
    seed: Annotated[int, typer.Option(min=0, help="All randomness comes from it.")] = 0,
    faults: Annotated[list[str] | None, typer.Option("--fault", metavar="FAULT", help=_FAULT_HELP)] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="One setting of the job, as dp=8; may stand several times. See below."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Simulate a training job, and write what its ranks log as a trace directory, with the truth in label.json.

    A job begins as its shape, becomes as untidy as the presets say, and has the settings that are given by --set.
    The same call writes the same bytes. Status 2 if the job or a fault is not possible.

    Example: irregulars simulate out --fault slow_nic:rank=17,from=60,to=80,excess=0.3

    Example: irregulars simulate out --set dp=32 --set pp=8 --set tp=8 --iterations 55 --preset suite
    --fault slow_rank:rank=5,from=30,to=50,excess=0.1,shape=fluctuating

    Example: irregulars simulate out --preset untidy --preset off_clocks --fault hang:rank=9,from=100

    Example: irregulars simulate out --shape fsdp --set dp=128 --preset field
    --fault slow_rank:rank=5,from=60,factor=1.5,shape=ramp,over=20
    """
    from dataclasses import replace

    from irregulars.producers.simulator.faults import parse_fault
    from irregulars.producers.simulator.presets import with_preset, with_shape, with_values
    from irregulars.producers.simulator.settings import SimulatorSettings

    job = with_shape(SimulatorSettings(iterations=iterations, seed=seed), shape)
    for preset in presets or ():
        job = with_preset(job, preset)
    job = with_values(job, assignments or ())
    job = replace(job, faults=tuple(parse_fault(fault) for fault in faults or ()))
    label = _write(out, job, open_console(is_error=True))
    if json:
        print_json(label)
    else:
        _show(open_console(), out, job, label)


def print_keys(formatter: Any) -> None:
    """Add the keys of ``--set`` to the help of the command."""
    from irregulars.producers.simulator.presets import described_keys

    with formatter.section("Keys of --set, with their defaults"):
        formatter.write_dl(list(described_keys()), col_max=34)


def _write(out: Path, job: SimulatorSettings, console: Console) -> dict[str, Any]:
    """Write the trace; a terminal sees how far it is."""
    from rich.progress import Progress

    from irregulars.errors import InputError
    from irregulars.producers.simulator.source import simulate_trace

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
