"""Each kind of verdict from the fault of a live job to the alert as a person gets it, and where that leads.

    python -m tests.benchmarks.rehearsal --out DIR [--only slow_nic hang] [--seed N]

Jobs run at their own pace through broker, worker, database and notify, some at a time. For each scene DIR then holds
``alerts/NAME.txt``, the messages exactly as Slack gets them; ``shown/NAME.txt``, all that commands and addresses in
them show; and ``sealed/NAME.txt``, the truth: read the alert first, and say what you would do. While a verdict is
open all places that tell of it are compared each 10 s. Status 1 if one differs from another, or if an alert breaks a
rule: its first line must name the device, how sure it is, since when, the cost, and within `MOST_WORDS` words the
action; its commands and addresses must work, and no other alert of the job may tell of anything else.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import httpx

from irregulars.infra.commands.traces import rename_job
from irregulars.infra.runs.local_services import LocalServices
from irregulars.infra.runs.published_run import PublishedRun
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import agent_settings, database_settings, runbook_url
from irregulars.kafka.log_reader import LogReader
from irregulars.messages.judgements import Verdict, decode_verdict
from irregulars.messages.kinds import STANDSTILLS
from irregulars.producers.simulator.faults import parse_fault
from irregulars.producers.simulator.settings import SimulatorSettings, with_preset
from irregulars.producers.simulator.source import simulate_trace
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.producers.trace.source import TraceSource, moved, span_ns
from irregulars.sinks.connection import connected
from tests.faults.test_live_incident import Bus
from tests.infra.console.visits import Visit, text_of
from tests.integration.notify_runs import NotifyRun
from tests.integration.pipelines import ROOT, run_command
from tests.integration.test_told_alike import disagreements
from tests.integration.worker_runs import page_of, wait_until
from tests.sinks.notices.receiver import Receiver
from tests.sinks.recorded_jobs import TOKENS, trace_of

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

MOST_WORDS: Final = 60
LOOK_S: Final = 10.0
SAY: Final = ("peers", "baseline!", TOKENS)
AT_ONCE: Final = 4  # jobs, with one worker beside them on two cores; alerts of more would be told as one storm
SILENCE_S: Final = 12.0
_MOST_S: Final = 240.0  # for jobs of a minute, and their last notices
_TRIES: Final = 4  # a page may be some seconds old: what differs still after so many looks is a contradiction
_CHANNELS: Final = """
[[channel]]
kind = "webhook"
name = "hook"
url = "{url}/hook"

[[channel]]
kind = "slack"
name = "slack"
webhook_url_file = "{file}"
"""


@dataclass(frozen=True)
class Scene:
    """A job with its fault, and the right answer."""

    name: str  # of the job, too
    kind: str
    make: Callable[[Path, int], Trace]
    device: str  # as a technician would find it in the alert; empty: nobody is to be named
    action: str  # words of the right action
    never: str = "cordon"  # a word that would send people the wrong way; empty: none
    speed: float = 1.0
    detectors: tuple[str, ...] = ("peers",)
    # Words of other alerts that its recording deserves: the machine that it was made on was slow by itself
    beside: tuple[str, ...] = ()


def simulated(fault: str, **settings: Any) -> Callable[[Path, int], Trace]:
    """Return a maker of a job of 16 GPUs on four hosts and two switches, a minute long, with a fault."""

    def make(folder: Path, seed: int) -> Trace:
        job = SimulatorSettings(
            dp=4, pp=2, tp=2, gpus_per_host=4, hosts_per_switch=2, micro_batches=4, forward_ms=14.0, backward_ms=26.0,
            iterations=240, seed=seed, recorded_after_hang_s=3 * SILENCE_S,
        )  # fmt: skip
        job = replace(with_preset(job, "suite"), faults=(parse_fault(fault),), **settings)
        simulate_trace(folder, job)
        return read_trace(folder)

    return make


def recorded(name: str) -> Callable[[Path, int], Trace]:
    return lambda folder, seed: trace_of(name)


def begun_now(trace: Trace, job: str) -> Trace:
    """Return a recording as a job that begins now: nobody knows yet when it will stand still."""
    first_ns, _ = span_ns(trace) or (0, 0)
    trace = moved(rename_job(trace, job, None), time.time_ns() - first_ns)
    announcements = tuple(replace(one, recorded_until_ns=None) for one in trace.announcements)
    return replace(trace, announcements=announcements, recorded_until_ns=None)


class StandingSource(TraceSource):
    """A job that stands still stays there: its processes wait."""

    is_exhausted = False


NOISY: Final = ("slow rank in", "slow communicator in")
SLOW: Final = ",from=60,to=180,factor="
SCENES: Final = (
    Scene("rank", "slow_rank", simulated(f"slow_rank:rank=5{SLOW}1.6"), "GPU 1 on node-1", "test GPU 1 on node-1"),
    Scene("throttled", "slow_rank", recorded("made/throttled"), "GPU 0 on node-1", "cordon node-1", "", 0.1),
    Scene("host", "slow_rank", simulated(f"slow_host:host=2{SLOW}1.6"), "host node-2", "test host node-2"),
    Scene("collects", "slow_rank", recorded("causes/garbage-collection"), "rank 3", "collect on all ranks",
          speed=0.3),
    Scene("loads", "slow_rank", recorded("causes/data-loader"), "rank 3", "look at the storage", speed=0.2,
          beside=("rank 1 on vm",)),
    Scene("quota", "slow_rank", recorded("causes/cpu-throttled"), "rank 0", "raise the limit", speed=0.3),
    Scene("disk", "slow_rank", recorded("causes/io-wait"), "rank 0", "waited for a disk", speed=0.2),
    Scene("nic", "slow_nic", simulated(f"slow_nic:rank=6{SLOW}15"), "NIC mlx5_2 on node-1", "cordon node-1", ""),
    Scene("link", "slow_link", simulated(f"slow_link:src=1,dst=9{SLOW}60"), "rank 9 (node-2)",
          "cables, optics and routes"),
    Scene("leaf", "slow_communicator", simulated(f"slow_switch:switch=1{SLOW}15"), "switch leaf-1",
          "have switch leaf-1"),
    Scene("spine", "slow_communicator", recorded("bench/hsdp16-spine"), "switch", "have switch spine-0", speed=0.3),
    Scene("stage", "slow_stage", simulated("slow_stage:stage=1,factor=1.6,shape=from_start"), "pipeline stage",
          "fewer layers"),
    Scene("uneven", "imbalance", simulated("uneven_data:spread=0.6,from=60,to=180"), "", "even out the batches"),
    Scene("writer", "slow_checkpoint", recorded("made/slow-writer"), "GPU 1 on node-2", "what else uses the storage",
          speed=0.15),
    Scene("stands", "hang", simulated("hang:rank=6,from=60"), "GPU 2 on node-1", "stack of rank 6 on node-1"),
    Scene("inside", "hang", recorded("bench/pp4dp2-hang-inside"), "GPU 0 on node-3", "dump the stack of rank 3"),
    Scene("calls", "mismatch", recorded("made/other-call"), "rank 3", "compare the stacks of rank 3"),
    Scene("weight", "corruption", recorded("numerics/weight-exponent-fp32"), "rank 3",
          "write no checkpoint", "", 0.1, beside=NOISY),
    Scene("audit", "corruption", recorded("numerics/local-gradient-lane-fp32"), "rank 2",
          "write no checkpoint", "", 0.1, beside=NOISY),
    Scene("state", "loss_spike", recorded("numerics/optimizer-state-sign-bf16"), "rank 0", "compute that step again",
          speed=0.1, beside=NOISY),
    Scene("strange", "custom", recorded("made/few-tokens"), "rank 3", "detector's word alone", "cordon", 0.1, SAY),
    Scene("victims", "slow_nic", recorded("gloo-slow-nic"), "NIC eth0 on node-1", "cordon node-1", "", 0.1, SAY),
)  # fmt: skip


@dataclass
class Stage:
    """The running services, and all that is told."""

    services: LocalServices
    receiver: Receiver
    client: Client
    console: Visit
    reader: LogReader
    folder: Path
    contradictions: list[str] = field(default_factory=list)
    looks: Counter[tuple[str, str]] = field(default_factory=Counter)  # of each job's verdicts of a kind

    def verdicts(self) -> dict[str, Verdict]:
        """Return the newest revision of each verdict by its topic."""
        name = self.services.settings.topics().name("verdicts")
        found = [m for p in self.reader.partitions(name) for m in self.reader.read_tail(name, p)]
        return {one.verdict_id: one for one in (decode_verdict(m.value()) for m in found)}

    def slack(self, scene: Scene) -> list[dict[str, Any]]:
        """Return the messages about the scene's verdicts, oldest first."""
        told = [one.json() for one in self.receiver.requests if one.path == "/slack"]
        return [one for one in told if one["attachments"][0]["footer"].startswith(f"{scene.name}:")]

    def hook(self, scene: Scene) -> list[dict[str, Any]]:
        """Return the same as machines get them: with their alerts."""
        told = [one.json() for one in self.receiver.requests if one.path == "/hook"]
        return [one for one in told if one["alert"]["job"] == scene.name]

    def look(self, names: Sequence[str]) -> None:
        """Compare all places that tell of the open verdicts of some jobs."""
        for verdict_id in [one.verdict_id for one in self.verdicts().values() if one.job in names]:
            wrong = ["not tried"]
            for _ in range(_TRIES):
                verdict = self.verdicts()[verdict_id]
                wrong = self._differences(verdict) if verdict.state == "open" else []
                if not wrong:
                    break
                time.sleep(1.5)
            self.looks[verdict.job, verdict.kind] += verdict.state == "open"
            self.contradictions += [f"{verdict_id} revision {verdict.revision}: {one}" for one in wrong]

    def _differences(self, verdict: Verdict) -> list[str]:
        if (stored := self._stored(verdict)) < verdict.revision:
            return ["it is on its topic, and not in the database"]
        found = disagreements(self.client, self.console, verdict, is_newest=False)
        # One place is asked a moment after the other, and the loss grows.
        wrong = [one for one in found if not one.startswith("gpu_hours_lost:")]
        # It went on meanwhile; the embedded broker may tell of its newest messages late.
        return wrong if self._stored(verdict) == stored == verdict.revision else []

    def _stored(self, verdict: Verdict) -> int:
        """Return the newest revision in the database."""
        sql = "SELECT max(revision) FROM verdicts WHERE verdict_id = {id:String}"
        return int(self.client.query(sql, {"id": verdict.verdict_id}).result_rows[0][0])


def play(stage: Stage, scenes: Sequence[Scene], seed: int) -> None:
    """Run the scenes' jobs beside each other from their beginning to their last notice."""
    own = stage.services.settings
    traces = {scene.name: scene.make(stage.folder / scene.name, seed) for scene in scenes}  # all before any begins
    with ExitStack() as stack:
        runs = []
        for scene in scenes:
            make = StandingSource if scene.kind in STANDSTILLS else TraceSource
            source = make(begun_now(traces[scene.name], scene.name), scene.speed)
            runs.append(stack.enter_context(PublishedRun(source, agent_settings(own))))
        names = [scene.name for scene in scenes]

        def is_over(scene: Scene, run: PublishedRun) -> bool:
            event = "opened" if scene.kind in STANDSTILLS else "resolved"
            is_told = event in [one["event"] for one in stage.hook(scene) if is_right(scene, one)]
            return is_told and (scene.kind in STANDSTILLS or not run.is_running)

        until_s = time.monotonic() + _MOST_S
        while not all(map(is_over, scenes, runs)) and time.monotonic() < until_s:
            stage.services.require_running()
            began_s = time.monotonic()
            stage.look(names)
            time.sleep(max(LOOK_S - (time.monotonic() - began_s), 0.5))


def as_received(message: dict[str, Any]) -> str:
    """Return a message of Slack as a person reads it."""
    attachment = message["attachments"][0]
    lines = [message["text"], *(f"{one['title']}: {one['value']}" for one in attachment["fields"])]
    lines += [f"{attachment['title']}: {attachment['title_link']}"] if "title" in attachment else []
    return html.unescape("\n".join([*lines, attachment["footer"]]))


def commands_in(text: str) -> list[str]:
    """Return our commands in a text, as somebody would copy them."""
    return [one.rstrip(".") for one in re.findall(r"irregulars (?:show|sql|[a-z]+) [^;()\n]*", text)]


def is_right(scene: Scene, notice: dict[str, Any]) -> bool:
    """Whether a notice tells of the scene's fault."""
    return notice["alert"]["kind"] == scene.kind and scene.device in notice["summary"]


def judge(stage: Stage, scene: Scene, out: Path) -> Iterator[str]:
    """Write a scene's files; yield each other alert of its job, and each rule that its own first one breaks."""
    opened = [one for one in stage.hook(scene) if one["event"] == "opened"]
    own = [one for one in opened if is_right(scene, one)]
    # The storm is of the rehearsal's own making: several jobs begin at once
    others = [one["summary"] for one in opened if one not in own[:1] and "incidents" not in one]
    yield from (f"another alert: {one}" for one in others if not any(words in one for words in scene.beside))
    told = stage.slack(scene)
    (out / "alerts" / f"{scene.name}.txt").write_text("\n\n".join(map(as_received, told)) + "\n")
    if not own:
        yield f"no alert of {scene.kind}"
        return
    alert = own[0]
    footer = f"{alert['incident']} "
    message = next(as_received(one) for one in told if one["attachments"][0]["footer"].startswith(footer))
    (out / "sealed" / f"{scene.name}.txt").write_text(f"{scene.kind}: {scene.device or 'nobody'}; {scene.action}\n")
    shown: list[str] = []
    for command in dict.fromkeys(commands_in(message)):
        done = run_command(*shlex.split(command)[1:], settings=stage.services.settings)
        shown.append(f"$ {command}\n{done.stdout}{done.stderr}")
        if done.returncode or not done.stdout.strip():
            yield f"{command!r} must work; got status {done.returncode}: {done.stderr.strip()}"
    for name in ("link", "runbook"):
        path, _, anchor = (alert[name] or "").removeprefix(stage.console.url).partition("#")
        page = stage.console.get(path)
        shown.append(f"GET {alert[name]}\n{text_of(page)}")
        if page.status_code != 200 or (anchor and f'id="{anchor}"' not in page.text):
            yield f"the {name} must be a page; got {alert[name]!r}, status {page.status_code}"
    (out / "shown" / f"{scene.name}.txt").write_text("\n\n".join(shown))
    first, _, rest = message.partition("\n")
    wanted = {
        "device": scene.device, "sure": "% sure" if scene.device else "", "action": scene.action,
        "since": "" if scene.kind in STANDSTILLS else "since ",
        "cost": {"custom": "", "corruption": "no time", "loss_spike": "no time"}.get(scene.kind, "GPU-hours an hour"),
    }  # fmt: skip
    for rule, words in wanted.items():
        if words not in first:
            yield f"{rule}: {words!r} must stand in the first line; got {first!r}"
    words = len(first.partition(scene.action)[0].split()) + len(scene.action.split())
    if words > MOST_WORDS:
        yield f"the action must end within {MOST_WORDS} words; it ends at {words}: {first!r}"
    if scene.never and scene.never in first + rest:
        yield f"{scene.never!r} must not stand in the alert; got {message!r}"


def rehearse(out: Path, names: Sequence[str], seed: int) -> dict[str, list[str]]:
    """Play the named scenes; return what is wrong, by scene."""
    scenes = [one for one in SCENES if not names or one.name in names or one.kind in names]
    for part in ("alerts", "shown", "sealed"):
        (out / part).mkdir(parents=True, exist_ok=True)
    wrong: dict[str, list[str]] = {}
    for detectors in dict.fromkeys(scene.detectors for scene in scenes):
        own = [scene for scene in scenes if scene.detectors == detectors]
        with set_up(Settings(snapshot_s=1.0, partitions=4, silence_s=SILENCE_S, detectors=detectors)) as stage:
            for at in range(0, len(own), AT_ONCE):
                play(stage, own[at : at + AT_ONCE], seed)
                wrong |= {scene.name: list(judge(stage, scene, out)) for scene in own[at : at + AT_ONCE]}
            looks = [f"{job}, {kind}: looked at {count} times" for (job, kind), count in stage.looks.items()]
            print(*looks, sep="\n", flush=True)
            wrong.setdefault("told alike", []).extend(stage.contradictions)
    return wrong


@contextmanager
def set_up(settings: Settings) -> Iterator[Stage]:
    """Start all services, a console that somebody is logged in to, and notify with its receiver."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        # The worker loads detectors of the tests, and is started as users start it: only the path is added.
        stack.enter_context(patch.dict(os.environ, {"PYTHONPATH": str(ROOT)}))
        receiver = stack.enter_context(Receiver())
        services = stack.enter_context(LocalServices(settings, has_console=True))
        own, folder = services.settings, Path(scratch)
        (file := folder / "slack.url").write_text(f"{receiver.url}/slack")
        file.chmod(0o600)
        channels = _CHANNELS.format(url=receiver.url, file=file)
        links = {"console_url": own.console_url, "runbook_url": runbook_url(own)}
        bus = Bus(own.kafka_bootstrap, own.topics())
        notify = stack.enter_context(closing(NotifyRun(bus, folder, channels, **links)))  # type: ignore[arg-type]
        wait_until(notify.is_loaded, "start")
        browser = stack.enter_context(httpx.Client(base_url=str(own.console_url), timeout=60))
        console = Visit(browser, (own.console_token_file or folder).read_text())
        wait_until(lambda: page_of(f"{own.console_url}/healthz")[0] == 200, "the console")
        assert console.log_in().status_code == 303
        client = stack.enter_context(connected(database_settings(own, 10.0, is_reading=True)))
        reader = stack.enter_context(closing(LogReader(own.kafka_bootstrap, {})))
        yield Stage(services, receiver, client, console, reader, folder)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=(), help="scenes or kinds of verdicts")
    parser.add_argument("--seed", type=int, default=1)
    own = parser.parse_args(arguments)
    wrong = rehearse(own.out, own.only, own.seed)
    for name, found in wrong.items():
        print(f"{name}: {'as it must be' if not found else ''}", *(f"  {one}" for one in found), sep="\n")
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
