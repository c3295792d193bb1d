"""How long the shipped questions take over a full database, and what its rows cost on disk.

    python -m tests.benchmarks.bench_questions --rows 100000000

starts a database of its own, fills it with made-up jobs (`stored_jobs`), and asks every question of
``sinks/sql/investigations`` as ``irregulars sql`` asks it, with the bounds that a reader has (4 GB, 4 threads).
Prints Markdown tables. Cold: the database's files were dropped from the page cache just before. Processor: what the
database used of it for a warm one. 100 M operators take some minutes and 5 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from irregulars.infra.runs.demo_database import DemoDatabase
from irregulars.sinks.connection import DatabaseSettings, connect
from irregulars.sinks.investigations import NEWEST, Answer, run, shipped_investigations
from irregulars.sinks.migrate import migrate
from tests.benchmarks.bench_agent import cpu_s
from tests.benchmarks.stored_jobs import ITERATION_S, OPERATORS, RANKS, StoredJobs

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_LARGEST: Final = f"job-{len(RANKS) - 1}"
_SAMPLED: Final = "job-0"
_READER: Final = {"max_memory_usage": 4_000_000_000, "max_threads": 4, "max_execution_time": 60}
"""What `irregulars sql --print-access` allows a reader."""
_SETTLE_S: Final = 600.0
_DAY_ITERATIONS: Final = 86_400 // ITERATION_S
_DAILY: Final = {
    "operators": _DAY_ITERATIONS // 100 * OPERATORS,
    "transfers": _DAY_ITERATIONS // 100 * OPERATORS // 8,
    "behaviour_patterns": _DAY_ITERATIONS // 100 * 4,
    "rank_iterations": _DAY_ITERATIONS,
    "bandwidth": 86_400 * 100,
    "gpu_health": 86_400,
}
"""Rows per rank and day, if all ranks of one iteration of a hundred are stored, and a rank samples a NIC each 10 ms
and a GPU each second, as agents do unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Asked:
    question: str
    parameters: dict[str, object]
    read_rows: int
    cold_ms: float
    warm_ms: float
    processor_ms: float
    result_rows: int
    memory_mib: float


@dataclass(frozen=True, slots=True)
class Stored:
    table: str
    rows: int
    parts: int
    bytes: int
    uncompressed_bytes: int


class _Watched:
    """A client that adds up what its queries read; `run` needs no more of one."""

    def __init__(self, client: Client) -> None:
        self._client, self.read_rows, self.memory_bytes = client, 0, 0

    def query(self, sql: str, parameters: Mapping[str, Any]) -> Any:
        # Without waiting for its end the server says how much it had read when the first rows came.
        result = self._client.query(sql, parameters=dict(parameters), settings={"wait_end_of_query": 1})
        self.read_rows += int(result.summary.get("read_rows", 0))
        self.memory_bytes = max(self.memory_bytes, int(result.summary.get("memory_usage", 0)))
        return result


def cases(client: Client) -> Iterator[tuple[str, dict[str, object]]]:
    """Every shipped question with what it must be given, and some with more."""
    newest = (
        "SELECT iteration, rank FROM operators WHERE job = {job:String} ORDER BY attempt DESC, iteration DESC LIMIT 1"
    )
    [(iteration, rank)] = client.query(newest, parameters={"job": _LARGEST}).result_rows
    known: dict[str, object] = {
        "job": _LARGEST, "iteration": iteration, "rank": rank, "verdict_id": "v7", "days": 36_500, "weeks": 5_200,
        "host": f"node-{len(RANKS) - 1}-{rank // 8}",
    }  # fmt: skip
    [(whole,)] = client.query("SELECT max(iteration) FROM rank_iterations").result_rows
    own: dict[str, dict[str, object]] = {
        "bandwidth_of_rank": {"job": _SAMPLED, "rank": 10},
        "gpu_health_of_verdict": {"job": _SAMPLED},
        "ranks_of_iteration": {"iteration": whole - 3},
        "before_and_after": {"iteration": whole - 3},
        "device_history": {"host": known["host"], "gpu": 3},
    }
    for name, investigation in shipped_investigations().items():
        asked = (one for one in investigation.parameters if one.is_required or one.default == NEWEST)
        also = (one for one in investigation.parameters if one.name in ("days", "weeks"))
        wanted = {one.name: known[one.name] for one in (*asked, *also)}
        yield name, wanted | own.get(name, {})
    yield "blamed", {"job": _LARGEST}
    yield "waits_of_iteration", {}
    yield "slowest_links", {"job": _LARGEST, "first_iteration": iteration - 2_000}


def ask(
    client: Client, database: DemoDatabase, files: Path, question: tuple[str, dict[str, object]], repeats: int
) -> Asked:
    # Drop the files of a folder from the page cache; merges may write and remove files meanwhile.
    for path in files.rglob("*.bin"):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    cold_ms, answer, watched = _timed(client, *question)
    before_s = cpu_s(database.pid or 0)  # says more than the clock where other work shares the cores
    warm = [_timed(client, *question)[0] for _ in range(repeats)]
    used_ms = (cpu_s(database.pid or 0) - before_s) * 1e3 / repeats
    return Asked(
        *question, watched.read_rows, cold_ms, statistics.median(warm), used_ms, len(answer.rows),
        watched.memory_bytes / 2**20,
    )  # fmt: skip


def _timed(client: Client, name: str, parameters: dict[str, object]) -> tuple[float, Answer, _Watched]:
    watched: Any = _Watched(client)
    began_s = time.monotonic()
    answer = run(watched, name, parameters)
    return (time.monotonic() - began_s) * 1e3, answer, watched


def stored(client: Client) -> list[Stored]:
    sql = """
        SELECT name, total_rows, active_parts, total_bytes, total_bytes_uncompressed
        FROM system.tables
        WHERE database = currentDatabase() AND total_rows > 0 AND name != 'schema_migrations'
        ORDER BY total_bytes DESC"""
    return [Stored(*row) for row in client.query(sql).result_rows]


def settle(client: Client, tell: Callable[[str], None]) -> None:
    """Wait until the database merges no more, as it would not in the middle of a question either."""
    deadline_s = time.monotonic() + _SETTLE_S
    parts = "SELECT sum(active_parts), sum(total_rows) FROM system.tables WHERE database = currentDatabase()"
    seen: Any = None
    while time.monotonic() < deadline_s:
        found = client.query(parts).result_rows[0]
        if found == seen:
            return
        seen = found
        tell(f"merging: {found[0]} parts")
        time.sleep(10)


def asked_table(found: Sequence[Asked]) -> str:
    lines = [
        "| question | rows read | cold, ms | warm, ms | processor, ms | result rows | memory, MiB |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for one in found:
        more = {name: value for name, value in one.parameters.items() if name == "first_iteration"}
        label = one.question + (", one job" if one.question == "blamed" and one.parameters else "")
        label += ", newest iterations" if more else ""
        label += ", nothing said" if one.question == "waits_of_iteration" and not one.parameters else ""
        lines.append(
            f"| {label} | {one.read_rows:,} | {one.cold_ms:,.0f} | {one.warm_ms:,.0f} | {one.processor_ms:,.0f} "
            f"| {one.result_rows:,} | {one.memory_mib:,.0f} |"
        )
    return "\n".join(lines)


def stored_table(found: Sequence[Stored]) -> str:
    """Markdown; bytes per rank and day follow `_DAILY`."""
    lines = [
        "| table | rows | parts | MiB | bytes a row | compressed to | bytes per rank and day |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for one in found:
        of_row = one.bytes / one.rows
        daily = f"{of_row * _DAILY[one.table]:,.0f}" if one.table in _DAILY else ""
        lines.append(
            f"| {one.table} | {one.rows:,} | {one.parts} | {one.bytes / 2**20:,.0f} | {of_row:.1f} "
            f"| {one.bytes / one.uncompressed_bytes:.0%} | {daily} |"
        )
    return "\n".join(lines)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(database: DemoDatabase, jobs: StoredJobs, folder: Path, repeats: int) -> tuple[list[Asked], list[Stored]]:
    writer = DatabaseSettings(database.url, database.user, database.password, database.database)
    reader = DatabaseSettings(
        database.url, database.reader, database.reader_password, database.database, is_reading=True
    )
    with closing(connect(writer, is_creating=True)) as client:
        began_s = time.monotonic()
        applied = migrate(client)
        _tell(f"{len(applied)} migrations applied in {time.monotonic() - began_s:.1f} s")
        jobs.fill(client, _tell)
        settle(client, _tell)
        on_disk = stored(client)
        questions = list(cases(client))
    found = []
    with closing(connect(reader)) as client:
        for name, value in _READER.items():
            client.set_client_setting(name, value)
        for question in questions:
            found.append(ask(client, database, folder, question, repeats))
            _tell(f"{question[0]}: {found[-1].warm_ms:,.0f} ms, {found[-1].processor_ms:,.0f} ms of processor time")
    return found, on_disk


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000, help="operators")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--repeats", type=int, default=3, help="warm runs of each question, of which the median counts"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    own = parser.parse_args(arguments)
    jobs = StoredJobs(own.rows, own.seed)
    with tempfile.TemporaryDirectory(prefix="bench-questions-") as name, DemoDatabase(Path(name) / "db") as database:
        found, on_disk = measure(database, jobs, Path(name), own.repeats)
    print(
        f"`python -m tests.benchmarks.bench_questions --rows {own.rows} --seed {own.seed}`; {os.cpu_count()} cores "
        f"shared with the database, {platform.machine()}\n"
    )
    print(asked_table(found), stored_table(on_disk), sep="\n\n")
    if own.json:
        figures = {"rows": own.rows, "seed": own.seed, "asked": [asdict(one) for one in found],
                   "stored": [asdict(one) for one in on_disk]}  # fmt: skip
        own.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
