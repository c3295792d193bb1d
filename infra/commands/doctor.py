"""``irregulars doctor``, ``settings`` and ``kit``: faults of an installation, its settings, and its files."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from irregulars.infra.commands.options import Json, asks, call_of, open_console, print_json, print_result, settings_of


@asks("kafka", "database")
def doctor(
    context: typer.Context,
    only: Annotated[
        list[str] | None,
        typer.Option(help="machine, kafka, topics, rights, clickhouse, workers, jobs or alerts; may stand twice."),
    ] = None,
    within_s: Annotated[float, typer.Option(min=1.0, max=300.0, help="Seconds that reading may take.")] = 20.0,
    group: Annotated[str, typer.Option(help="Consumer group of the workers.")] = "irregulars",
    role: Annotated[
        str | None, typer.Option(help="Judge only what a role's work needs: worker, agent, …; default: all.")
    ] = None,
    json: Json = False,
) -> None:
    """Say what is wrong with this installation, and what to do: broker, topics, rights, database, workers, jobs.

    It only reads. Status 0: no problem; 1: at least one; 2: the call is unusable.

    Example: irregulars doctor --only kafka --only topics
    """
    from irregulars.infra.agent_settings import ARRAYS, TABLES
    from irregulars.infra.doctor.diagnosis import diagnose
    from irregulars.infra.doctor.findings import GROUPS, Question, coloured, lines_of, status_of, summary
    from irregulars.infra.settings import load_leniently
    from irregulars.kafka.access_roles import ROLES
    from irregulars.validation import require_known

    for name in only or ():
        require_known(name, GROUPS, "group", "flag --only", f"One of {', '.join(GROUPS)}")
    if role is not None:
        require_known(role, ROLES, "role", "flag --role", f"One of {', '.join(ROLES)}")
    question = Question(group, role, only or (), within_s)
    others = (*TABLES, *ARRAYS) if role == "agent" else ()  # of the agent's own file
    config, flags = call_of(context)
    found = load_leniently(flags, config, others=others)
    begin_s = time.monotonic()
    with open_console(is_error=True).status("looking") as status:
        findings = diagnose(found, question, status.update)
    took_s, exit_status = time.monotonic() - begin_s, status_of(findings)
    if json:
        told = {"status": exit_status, "took_s": round(took_s, 3)}
        print_json(told | {"findings": [dataclasses.asdict(one) for one in findings]})
    else:
        console = open_console()
        for line, style in lines_of(findings):
            console.print(coloured(line, style), soft_wrap=True)
        console.print(f"\n{summary(findings, took_s)}", soft_wrap=True)
    raise typer.Exit(exit_status)


def show_settings(context: typer.Context, json: Json = False) -> None:
    """Print the settings in force, from defaults, file, environment and --set; passwords stay hidden.

    Example: irregulars --set delta=1.2 settings
    """
    settings = settings_of(context)
    values: dict[str, Any] = {}
    for one in dataclasses.fields(settings):
        value = getattr(settings, one.name)
        values[one.name] = str(value) if isinstance(value, Path) else value
        if one.metadata["is_secret"]:
            values[one.name] = "hidden" if value else None
    print_result(json, values, (f"{name:<22} {value}" for name, value in values.items()))


def kit(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty; made where it is missing.")],
) -> None:
    """Write out the files for Kubernetes, systemd, Prometheus and Grafana, as they lie in a checkout.

    The commands of infra/docs/install.md work from within that directory; images are built from a checkout.

    Example: irregulars kit kit && kubectl kustomize kit/infra/kit/kubernetes/overlays/small
    """
    from irregulars.infra.shipped_files import FOLDERS, write_kit

    written = [path.relative_to(directory).as_posix() for path in write_kit(directory)]
    folders = Counter(next(one for one in FOLDERS if path.startswith(f"infra/{one}/")) for path in written)
    console = open_console()
    for folder, count in folders.items():
        console.print(f"{count:>3} files  {directory}/infra/{folder}", markup=False, soft_wrap=True)
