"""The whole product on topics and a database of its own: workers and replays as people start them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from irregulars.infra.runs.demo_database import DemoDatabase
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import agent_settings, database_settings
from irregulars.messages.judgements import Verdict, decode_verdict
from irregulars.producers.publishing.agent import Agent
from irregulars.producers.trace.directory import read_trace
from irregulars.producers.trace.source import TraceSource
from irregulars.sinks.clickhouse import ClickHouseSink
from irregulars.sinks.connection import DatabaseSettings, connect, connected
from irregulars.sinks.protocol import Rows
from irregulars.sinks.tables import TABLES
from tests import warm
from tests.conftest import ClickHouseAddress
from tests.integration.worker_runs import DEADLINE_S, ROOT, SESSION_S, Bus, Running, wait_until
from tests.sinks.sink_promises import sort_by_key

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

RECORDINGS = ROOT / "tests" / "recordings"
COMMAND = [sys.executable, "-P", "-m", "irregulars"]
ITERATIONS, RANKS = 160, 4
"""Of each recording."""

AS_SHIPPED: Mapping[str, Any] = {name: getattr(Settings(), name) for name in ("snapshot_s", "session_s", "grace_s")}
"""What a worker has with users; ours have shorter times. Its time to stop is not here: a busy machine needs more."""

MOST_BYTES = 1200 << 20
"""A worker's largest size, with the embedded libraries; idle it takes 250 MB."""


class Pipeline:
    """Topics with a prefix of their own and one database; `folder` takes the logs.

    `database` says where the server is and who we are there; its `database` is the name to use.
    """

    def __init__(
        self, bootstrap: str, database: DatabaseSettings | DemoDatabase, folder: Path, partitions: int = 4
    ) -> None:
        self.bus = Bus(bootstrap, partitions)
        self.folder = folder
        self.processes: list[Process] = []
        self.settings = Settings(
            kafka_bootstrap=bootstrap,
            topic_prefix=self.bus.topics.prefix,
            partitions=self.bus.partitions,
            clickhouse_url=database.url,
            clickhouse_user=database.user,
            clickhouse_password=database.password,
            clickhouse_database=database.database,
            session_s=SESSION_S,
            snapshot_s=0.5,
            stop_s=60.0,  # nor cut its workers off while they stop
            data_dir=folder / f"data-{uuid4().hex[:6]}",
        )

    def start(self, *arguments: str, **settings: Any) -> Process:
        own = replace(self.settings, **settings)
        self.processes.append(Process(arguments, own.to_environment(), self.folder))
        return self.processes[-1]

    def start_worker(self, group: str = "workers", **settings: Any) -> Process:
        return self.start("worker", "--group", self.settings.topic_prefix + group, **settings)

    def replay(self, *names: str, speed: float = 0.0) -> None:
        """Replay recordings at the same time, and wait for the end."""
        running = [self.start_replay(name, speed) for name in names]
        for process in running:
            assert process.wait() == 0, process.output()

    def start_replay(self, name: str, speed: float) -> Process:
        return self.start("replay", str(RECORDINGS / name), "--speed", str(speed), "--json")

    def close(self) -> None:
        for process in self.processes:
            process.close()
        self.bus.close()
        if "client" in self.__dict__:
            self.client.close_connections()

    # --- what stands on the topics ----------------------------------------------------------------------------------

    def revisions(self, topic: str = "verdicts") -> list[Verdict]:
        return [decode_verdict(message.value(), topic) for message in self.bus.read(topic)]

    def newest(self) -> dict[str, Verdict]:
        return {one.verdict_id: one for one in sorted(self.revisions(), key=lambda one: one.revision)}

    def revision_counts(self, topic: str) -> Counter[tuple[str, int]]:
        return Counter((verdict.verdict_id, verdict.revision) for verdict in self.revisions(topic))

    # --- what stands in the database --------------------------------------------------------------------------------

    @property
    def database(self) -> DatabaseSettings:
        return database_settings(self.settings)

    @cached_property
    def client(self) -> Client:
        return connect(self.database, is_creating=True)

    def query(self, sql: str) -> Any:
        return self.client.command(sql)

    def count(self, table: str) -> int:
        return int(self.query(f"SELECT count() FROM {table} FINAL"))

    def rows(self, table: str) -> pa.Table:
        """Return every row of `table` in the order of its key, as Python wrote it."""
        schema = TABLES[table].schema
        found = self.client.query_arrow(f"SELECT {', '.join(schema.names)} FROM {table} FINAL", use_strings=True)
        return sort_by_key(table, found.cast(schema))

    def stored_iterations(self) -> int:
        """Return how many iterations stand in the database; 0 before a worker made its tables."""
        return self.count("iterations") if self.query("EXISTS TABLE iterations") else 0

    def wait_until_stored(self, jobs: int) -> None:
        """Wait until all iterations of `jobs` recordings stand in the database."""
        wait_until(lambda: self.stored_iterations() == jobs * ITERATIONS, "all iterations stored")


class Process(Running):
    """One command of ours with its settings in its environment."""

    def __init__(self, arguments: tuple[str, ...], environment: dict[str, str], folder: Path) -> None:
        log = folder / f"{arguments[0]}-{uuid4().hex[:6]}.log"
        super().__init__([*COMMAND, *arguments], log, cwd=folder, env={**os.environ, **environment})


def run_command(
    *arguments: str, settings: Settings | None = None, on: Bus | None = None, folder: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of ours to its end, with settings in its environment, and on the topics of a bus."""
    own = settings.to_environment() if settings else {}
    where = ["--bootstrap", on.bootstrap, "--topic-prefix", on.topics.prefix] if on else []
    known = {**os.environ, **own, "PYTHONPATH": str(ROOT), **environment}
    return warm.run([*COMMAND, *arguments, *where], cwd=folder, env=known, timeout=120)


def says(process: Process, what: str) -> bool:
    """Whether it has said so; a process that has ended says nothing any more."""
    assert process.is_running, process.output()
    return what in process.output()


def largest_bytes(process: Process) -> int:
    """The largest size of a process so far."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


@contextmanager
def starting(settings: Settings, folder: Path) -> Iterator[Callable[..., Process]]:
    """Give a function that starts commands with these settings; what runs is ended with the block."""
    started: list[Process] = []

    def start(*arguments: str) -> Process:
        own = {**settings.to_environment(), "PYTHONPATH": str(ROOT)}
        started.append(Process(arguments, own, folder))
        return started[-1]

    try:
        yield start
    finally:
        for one in started:
            one.close()


@contextmanager
def held_replay(pipeline: Pipeline, recording: str, held_at: int) -> Iterator[threading.Event]:
    """Replay a recording before one of its iterations, and the rest once the event is set, or the block ends."""
    trace, go_on = read_trace(RECORDINGS / recording), threading.Event()
    columns = trace.batches("iterations")[0].columns
    held_ns = columns["start_ns"][columns["iteration"] == held_at][0] - columns["start_ns"].min()
    times_s = chain([0.0], repeat(float(held_ns) / 1e9))
    source = TraceSource(trace, max_span_s=0.1, clock_s=lambda: 1e6 if go_on.is_set() else next(times_s))
    with ThreadPoolExecutor(1) as pool:
        replay = pool.submit(Agent(source, agent_settings(pipeline.settings)).run)
        try:
            yield go_on
        finally:
            go_on.set()
        assert replay.result(DEADLINE_S).reason == "finished"


def agent_file(folder: Path, sources: str) -> Path:
    """Write the file of an agent with these sources that samples nothing."""
    file, off = folder / "agent.toml", "".join(f"[{one}]\nenabled = false\n" for one in ("metrics", "gpus", "nics"))
    file.write_text(f'{off}[spool]\ndirectory = "{folder / "spool"}"\nfinal_s = 60\n{sources}')
    return file


def replaying_agent(folder: Path, recording: str | Path, speed: float) -> Path:
    """Write the file of an agent that replays a recording."""
    source = f'kind = "replay"\ndirectory = "{RECORDINGS / recording}"\nspeed = {speed}\n'
    return agent_file(folder, f"[[sources]]\n{source}")


@contextmanager
def own_database(clickhouse: ClickHouseAddress, *writes: Rows) -> Iterator[DatabaseSettings]:
    """Give a database of the test's own, which is dropped at the end: with these rows; without any it is not made."""
    name = f"test_{uuid4().hex[:12]}"
    own = DatabaseSettings(clickhouse.url, clickhouse.user, clickhouse.password, name, wait_s=60.0)
    try:
        if writes:
            store(own, *writes)
        yield own
    finally:
        with connected(own, is_creating=True) as client:
            client.command(f"DROP DATABASE {name}")


@contextmanager
def reading(clickhouse: ClickHouseAddress, *writes: Rows) -> Iterator[Client]:
    """Give a client that only reads, of a database of the test's own with these rows."""
    with own_database(clickhouse, *writes) as own, connected(replace(own, is_reading=True)) as client:
        yield client


def store(settings: DatabaseSettings, *writes: Rows) -> None:
    """Make the tables, and store rows as a worker does."""
    sink = ClickHouseSink(settings)
    sink.open()
    for rows in writes:
        sink.write(rows)
    sink.close()
