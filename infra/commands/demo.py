"""``irregulars demo`` and ``up``: everything on one machine, with a job that turns slow, or until Ctrl-C."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Final

import typer

from irregulars import stopping
from irregulars.errors import InputError, how_to_install
from irregulars.infra.commands.options import Json, kafka_of, open_console, plain, print_json, program, settings_of
from irregulars.printing import broken, printable, say
from irregulars.words import blocks

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client
    from rich.console import Console

    from irregulars.infra.runs.local_services import LocalServices
    from irregulars.infra.runs.published_run import PublishedRun
    from irregulars.messages.judgements import Verdict
    from irregulars.producers.publishing.agent import AgentSettings
    from irregulars.producers.simulator.settings import SimulatorSettings


JOB: Final = "demo"
FAULT: Final = "slow_nic:rank=17,from=60,factor=12"
ITERATIONS: Final = 110

_LOOK_S = 0.25
_LINE_S = 5.0  # without a terminal: a line each so often
_VERDICT_S = 60.0  # how long after its end the job's last alert may take
_HANGS_S = 15.0  # how long after it came to a standstill a job that hangs is ended: then it is judged
_STILL_S = 3.0  # without an iteration for so long, the line says so
_STORED_S = 10.0  # how long the database may take behind the alert
_STORED = """
SELECT
    (SELECT max(revision) FROM verdicts WHERE verdict_id = {id:String}) >= {revision:UInt32},
    (SELECT count() FROM suspects FINAL WHERE verdict_id = {id:String} AND revision = {revision:UInt32}),
    (SELECT max(iteration) FROM iterations WHERE job = {job:String}) >= {last:Int64}"""
_BARS_IN_FILES: Final = 60
_BEHIND_TIMES: Final = " " * len("2026-11-22 20:37:14Z  ")


def demo(
    context: typer.Context,
    is_kept: Annotated[
        bool, typer.Option("--keep", help="Leave everything running afterwards, until Ctrl-C.")
    ] = False,
    fault: Annotated[str, typer.Option(help="What goes wrong, and when.")] = FAULT,
    iterations: Annotated[int, typer.Option(min=20, help="Length of the job; about four a second.")] = ITERATIONS,
    is_live: Annotated[
        bool, typer.Option("--live", help="Train a small model in four real processes instead (extra torch).")
    ] = False,
) -> None:
    """Watch the main job: 64 simulated GPUs train at real pace, a NIC turns slow, Irregulars names it.

    With --live nothing is simulated: four processes train with torch and gloo, and one of them stalls for a while.
    Broker, database and worker are real, and gone at the end. Status 1 if no verdict comes.

    Example: irregulars demo --fault slow_rank:rank=5,from=60,factor=3
    """
    from irregulars.infra.runs.local_services import LocalServices

    scene = _live_scene() if is_live else _simulated_scene(fault, iterations)
    console = open_console()
    # Rows are stored with a snapshot: one a second, so that those of the verdict are there when it is shown.
    settings = settings_of(context, snapshot_s=1.0, partitions=4)
    services = LocalServices(
        settings, has_console=is_kept and _has_console(), on_step=lambda step: console.print(step, style="dim")
    )
    with stopping.held(), services:
        verdict = _watch(console, services, scene)
        if verdict is not None:
            _show_verdict(console, services, verdict, scene.fault)
        else:
            console.print(_why_no_alert(services), style="bold red", markup=False)
        if is_kept:
            show_addresses(services)
            # Ctrl-C is how this ends: the services then stop as they do without --keep.
            with suppress(stopping.StopAsked):
                while True:
                    services.require_running()
                    stopping.pause(_LOOK_S)
    if verdict is None:
        raise typer.Exit(1)
    console.print("Everything was stopped, and nothing is left behind.", style="dim")
    if program() != "irregulars":
        console.print(f"irregulars is not on your PATH: call it as {program()}", markup=False)


def _has_console() -> bool:
    """Return whether the web console can run here: it is an extra of its own."""
    return all(find_spec(name) is not None for name in ("starlette", "uvicorn", "jinja2"))


def _why_no_alert(services: LocalServices) -> str:
    """Return how far the job's rows came, for a run without an alert."""
    from irregulars.infra.wiring import database_settings
    from irregulars.sinks.connection import connected

    target = database_settings(services.settings)
    with connected(target) as client:
        question = "SELECT count(), countIf(is_irregular) FROM iterations FINAL WHERE job = {job:String}"
        ((judged, irregular),) = client.query(question, parameters={"job": JOB}).result_rows
    if not judged:
        log = services.log_that_stays()
        return f"NO ALERT CAME: nothing got through, no iteration was judged. The worker's log: {log}"
    return (
        f"NO ALERT CAME: {judged} iterations were judged, {irregular} of them irregular. What went wrong cost too "
        "little for an alert (--set alert_least_severity=note shows all), or this machine is much too busy."
    )


@dataclass(frozen=True, slots=True)
class _Scene:
    """The job of a demo: its title, its fault, and how it starts."""

    title: str
    fault: str
    iterations: int
    start: Callable[[AgentSettings], PublishedRun]


def _simulated_scene(fault: str, iterations: int) -> _Scene:
    from irregulars.infra.runs.published_run import SimulatedRun
    from irregulars.producers.simulator.faults import parse_fault
    from irregulars.producers.simulator.settings import SimulatorSettings

    job = SimulatorSettings(
        job=JOB, iterations=iterations, faults=(parse_fault(fault),), recorded_after_hang_s=_HANGS_S
    )
    require_possible(job)  # before services are started for nothing
    title = f"{job.dp * job.pp * job.tp} GPUs train, dp {job.dp} × pp {job.pp} × tp {job.tp}"
    return _Scene(title, fault, iterations, lambda agent: SimulatedRun(job, agent))


def require_possible(job: SimulatorSettings) -> None:
    """Raise `InputError` unless each fault names a device of the job, and begins before its end."""
    from irregulars.producers.simulator.effects import check_place
    from irregulars.producers.simulator.network import Network
    from irregulars.producers.simulator.topology import Topology

    topology = Topology(job)
    network = Network(topology)
    for fault in job.faults:
        check_place(fault, topology, network)
        if fault.first >= job.iterations:
            raise InputError(f"from must be below {job.iterations}, the iterations of the job; got {fault.first}")


def _live_scene() -> _Scene:
    if find_spec("torch") is None:  # before services are started for nothing
        raise InputError(f"torch must be installed for --live; got none. {how_to_install('torch')}")
    from irregulars.infra.runs.published_run import RANKS, LivePlan, LiveRun

    plan = LivePlan()
    title = f"{RANKS} processes train with torch and gloo"
    return _Scene(title, plan.text, plan.iterations, lambda agent: LiveRun(plan, JOB, agent))


class _Alerts:
    """Messages of the topic ``alerts``, read in a thread."""

    def __init__(self, services: LocalServices) -> None:
        self._settings = services.settings
        self._messages: deque[bytes] = deque()
        self._failure: BaseException | None = None
        self.newest: dict[str, Verdict] = {}
        threading.Thread(target=self._follow, name="alerts", daemon=True).start()

    def print_new(self, console: Console) -> None:
        """Print a line for each new alert."""
        from irregulars.messages.judgements import decode_verdict
        from irregulars.sinks.alerts import alert_line

        if self._failure is not None:
            raise self._failure
        while self._messages:
            message = self._messages.popleft()
            verdict = decode_verdict(message, "alerts")
            self.newest[verdict.verdict_id] = verdict
            line = broken(printable(alert_line(message)), sys.stdout, _BEHIND_TIMES)
            style = "bold red" if " OPENED " in line or " RAISED " in line else "bold"
            console.print(line, style=style, markup=False)

    def _follow(self) -> None:
        from irregulars.kafka.alert_feed import follow_alerts

        try:
            for message in follow_alerts(*kafka_of(self._settings), is_from_start=True):
                self._messages.append(message)
        except BaseException as error:  # shown by the thread that watches
            self._failure = error


def _watch(console: Console, services: LocalServices, scene: _Scene) -> Verdict | None:
    """Run the job to its end; return the verdict that cost most, once it is closed."""
    from irregulars.infra.runs.analysis import order
    from irregulars.infra.wiring import agent_settings

    console.print(f"\n[bold]{scene.title}[/bold], {scene.iterations} iterations. What will happen: {scene.fault}\n")
    alerts = _Alerts(services)
    with scene.start(agent_settings(services.settings)) as run:
        _follow_run(console, services, run, alerts, scene.iterations)
    deadline = time.monotonic() + _VERDICT_S
    while time.monotonic() < deadline:
        alerts.print_new(console)
        verdicts = sorted(alerts.newest.values(), key=order)
        if verdicts and all(verdict.state == "closed" for verdict in verdicts):
            return verdicts[0]
        stopping.pause(_LOOK_S)
    # Time is up: a verdict that is still open is better than none.
    return min(alerts.newest.values(), key=order, default=None)


def _follow_run(
    console: Console, services: LocalServices, run: PublishedRun, alerts: _Alerts, iterations: int
) -> None:
    from rich.live import Live

    next_line_s = time.monotonic() + _LINE_S
    still = _Standstill()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while run.is_running:
            services.require_running()
            alerts.print_new(console)
            times_s = run.source.iteration_times_s()
            remark = still.remark(len(times_s), time.monotonic())
            if console.is_terminal:
                line = progress_line(times_s, iterations, width=bars_of(console))
                live.update(f"{line}\n{remark}" if remark else line, refresh=True)
            elif time.monotonic() >= next_line_s:
                next_line_s += _LINE_S
                console.print(remark or progress_line(times_s, iterations, width=bars_of(console)))
            stopping.pause(_LOOK_S)
    console.print(progress_line(run.source.iteration_times_s(), iterations, width=bars_of(console)))


def bars_of(console: Console) -> int:
    """Return how many bars a line has room for."""
    return max(20, console.width - 42) if console.is_terminal else _BARS_IN_FILES


class _Standstill:
    """Detects that no iteration ends any more."""

    def __init__(self) -> None:
        # Infinite: a first iteration that takes long is no standstill.
        self._ended, self._since_s = 0, math.inf

    def remark(self, ended: int, now_s: float) -> str:
        """Return a remark on a job with that many ended iterations; empty while it goes on."""
        if ended != self._ended:
            self._ended, self._since_s = ended, now_s
        stood_s = now_s - self._since_s
        if stood_s < _STILL_S:
            return ""
        return (
            f"no iteration has ended for {stood_s:.0f} s, after {ended} of them. A job that hangs is ended "
            f"{_HANGS_S:.0f} s after it stood still here, and judged then; in earnest after ten silent minutes"
        )


def progress_line(times_s: list[float], iterations: int, width: int) -> str:
    """Draw iteration times as bars, from 0 to the largest; of more than fit, a bar is the longest of several.

    All of them are shown, so that the usual time stays beside the slow ones.

    >>> progress_line([0.25, 0.25, 0.5], 10, width=10)
    'iteration   3 of 10  ▄▄█  0.500 s'
    >>> progress_line([0.25, 0.25, 0.5, 0.5], 10, width=2)
    'iteration   4 of 10  ▄█  0.500 s'
    """
    if not times_s:
        return "the first iteration runs"
    each = -(-len(times_s) // width)
    shown = [max(times_s[at : at + each]) for at in range(0, len(times_s), each)]
    bars = blocks(shown, max(times_s))
    return f"iteration {len(times_s):3} of {iterations}  {bars}  {times_s[-1]:.3f} s"


def _show_verdict(console: Console, services: LocalServices, verdict: Verdict, fault: str) -> None:
    """Print commands that ask ClickHouse for more, each with its answer."""
    from irregulars.infra.commands.sql import show_answer
    from irregulars.infra.showing.found import gather
    from irregulars.infra.showing.from_database import found_in_database
    from irregulars.infra.showing.text_page import lines_of
    from irregulars.infra.wiring import database_settings
    from irregulars.sinks.connection import connected
    from irregulars.sinks.investigations import run

    target = database_settings(services.settings)
    with connected(target) as client:
        _wait_until_stored(client, verdict)
        console.print(f"\nPut in: {plain(fault)}\n\n[bold]$ {program()} show {plain(verdict.verdict_id)}[/bold]")
        found = found_in_database(client, verdict, target.database, time.time_ns())
        console.print("\n".join(lines_of(gather(found))), markup=False)
        console.print(f"\n$ {program()} sql time_lost_by_device", style="bold")
        show_answer(run(client, "time_lost_by_device"))
    console.print(f"\nMore questions: {program()} sql --list")


def _wait_until_stored(client: Client, verdict: Verdict) -> None:
    """Wait for all rows behind an alert: alerts leave at once, rows with the next snapshot, table by table."""
    last = verdict.iterations[1] - 1
    values = {"id": verdict.verdict_id, "job": verdict.job, "revision": verdict.revision, "last": last}
    wanted = (True, len(verdict.suspects), True)
    deadline = time.monotonic() + _STORED_S
    while time.monotonic() < deadline:
        if client.query(_STORED, parameters=values).result_rows[0] == wanted:
            return
        stopping.pause(_LOOK_S)
    # The verdict is shown nevertheless: the alert has named the device already.
    say(f"after {_STORED_S:g} s not everything is stored: what follows may lack rows")


def up(
    context: typer.Context,
    is_kept: Annotated[
        bool, typer.Option("--keep-data", help="Keep the database in data_dir for the next time.")
    ] = False,
    json: Json = False,
) -> None:
    """Start a broker, a database and a worker on this machine, print their addresses, run until Ctrl-C.

    For first steps, not for production: the broker keeps its topics in memory.

    Example: irregulars up --keep-data
    """
    from irregulars.infra.doctor.diagnosis import watch
    from irregulars.infra.runs.local_services import GROUP, LocalServices

    console = open_console(is_error=True)
    services = LocalServices(
        settings_of(context), is_kept=is_kept, has_console=_has_console(),
        on_step=lambda step: console.print(step, style="dim"),
    )  # fmt: skip
    try:
        with stopping.held(), services:
            if json:
                print_json(addresses(services))
            else:
                show_addresses(services)
            with watch(services.settings, GROUP, lambda line: console.print(plain(line), style="bold red")):
                while True:
                    services.require_running()
                    stopping.pause(_LOOK_S)
    except stopping.StopAsked:
        console.print("stopped", style="dim")


def addresses(services: LocalServices) -> dict[str, str | None]:
    """Return all addresses; the database's password is in the file ``config`` only."""
    settings = services.settings
    return {
        "kafka": settings.kafka_bootstrap,
        "clickhouse": settings.clickhouse_url,
        "clickhouse_user": settings.clickhouse_user,
        "clickhouse_database": settings.clickhouse_database,
        "console": services.console_link,
        "metrics": f"http://{settings.metrics_listen}/metrics",
        "worker_log": str(services.worker_log),
        "config": str(services.config_file),
    }


def show_addresses(services: LocalServices) -> None:
    """Print all addresses, and commands that use them."""
    found = addresses(services)
    console = found["console"] or f"not installed. {how_to_install('console')}"
    print(
        f"""
console     {console}
Kafka       {found["kafka"]}   in memory: what it holds is gone when this ends
ClickHouse  {found["clickhouse"]}   user {found["clickhouse_user"]}, database {found["clickhouse_database"]}
worker      {found["metrics"]}   log {found["worker_log"]}

In another terminal:
  export IRREGULARS_CONFIG={found["config"]}
  {program()} alerts
  {program()} replay DIR --speed 10
  {program()} show
  {program()} sql blamed

Ctrl-C stops everything.""",
        flush=True,
    )
