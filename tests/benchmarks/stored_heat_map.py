"""Fills the database with one job as the heat map shows it: any number of ranks and iterations, with known culprits.

Values follow from the number of a row by hashes, so that the same call gives the same rows. Three culprits look
different: ``FIXED`` works longer from the first iteration to the last, the ``ROTATING`` ranks take turns, and
``TRANSIENT`` is slow once, in one iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from irregulars.sinks.migrate import migrate

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

JOB: Final = "llama-405b"
ATTEMPT: Final = 1
TENSOR: Final = 8  # ranks of a tensor parallel group: a host
STAGES: Final = 8
ITERATION_MS: Final = 4_000
_FIRST: Final = "toDateTime64('2026-10-01 00:00:00', 9, 'UTC')"
_SETTINGS: Final = {"max_threads": 2, "max_execution_time": 0, "max_memory_usage": 6_000_000_000}
_VERDICT: Final = "concat({job_name:String}, ':1:slow')"
_CHUNK_ROWS: Final = 1 << 21


@dataclass(frozen=True, slots=True)
class StoredHeatMap:
    # ranks, iterations: How many of each
    ranks: int
    iterations: int

    @property
    def fixed(self) -> int:
        return self.ranks * 3 // 16 + 5

    @property
    def transient(self) -> tuple[int, int]:
        """Rank and iteration of the one cell that is slow."""
        return self.ranks * 11 // 16 + 3, self.iterations * 5 // 8

    @property
    def rotating(self) -> tuple[int, int]:
        """First rank and first iteration of 64 ranks that are slow for an iteration each, one after the other."""
        return self.ranks // 2, self.iterations // 4

    def fill(self, client: Client, job: str = JOB, host: str = "node") -> None:
        """Store all rows, of a job of that name on hosts whose names begin so."""
        migrate(client)
        names_of = {"job_name": job, "host_name": host}
        for table, rows, columns in self._inserts():
            names, values = ", ".join(columns), ", ".join(f"{value} AS {name}" for name, value in columns.items())
            for first in range(0, rows, _CHUNK_ROWS):
                count = min(_CHUNK_ROWS, rows - first)
                client.command(
                    f"INSERT INTO {table} ({names}) SELECT {values} FROM numbers({first}, {count})",
                    parameters=names_of,
                    settings=_SETTINGS,
                )

    def _inserts(self) -> list[tuple[str, int, dict[str, str]]]:
        return [
            ("jobs", self.ranks, self._jobs()),
            ("iterations", self.iterations, self._iterations()),
            ("verdicts", 1, self._verdict()),
            ("suspects", 1, self._suspect()),
            ("rank_iterations", self.ranks * self.iterations, self._rank_iterations()),
        ]

    def _jobs(self) -> dict[str, str]:
        per_stage = self.ranks // STAGES
        communicators = (
            f"[concat('tp-', toString(intDiv(number, {TENSOR}))), concat('pp-', toString(number % {per_stage})), "
            f"concat('dp-', toString(intDiv(number, {per_stage})), '-', toString(number % {TENSOR}))]"
        )
        return {
            "job": "{job_name:String}", "attempt": str(ATTEMPT), "rank": "number", "world_size": str(self.ranks),
            "logged_ranks": str(self.ranks), "is_logged": "true", "clock": "'shared'",
            "host": f"concat({{host_name:String}}, '-', toString(intDiv(number, {TENSOR})))",
            "gpu": f"number % {TENSOR}",
            "nic": f"concat('mlx5_', toString(number % {TENSOR}))",
            "switch": "concat('leaf-', toString(intDiv(number, 256)))",
            "sources": "['commops', 'iterations']", "communicators": communicators,
            "communicator_kinds": "['tp', 'pp', 'dp']",
            "communicator_sizes": f"[{TENSOR}, {STAGES}, {per_stage // TENSOR}]",
        }  # fmt: skip

    def _iterations(self) -> dict[str, str]:
        _, slow = self.transient
        return {
            "job": "{job_name:String}", "attempt": str(ATTEMPT), "iteration": "number",
            "started_at": f"addMilliseconds({_FIRST}, number * {ITERATION_MS})",
            "elapsed_ns": f"{ITERATION_MS}000000 + {_noise('number', 30_000_000)} + (number = {slow}) * 2500000000",
            "reference_ns": f"if(number < 20, NULL, {ITERATION_MS}e6)", "phase": "'train'",
            "is_irregular": f"number = {slow} OR number % 211 = 200", "ranks_reported": str(self.ranks),
            "verdict_ids": f"if(number = {slow}, [concat({{job_name:String}}, ':1:slow')], [])",
        }  # fmt: skip

    def _verdict(self) -> dict[str, str]:
        _, slow = self.transient
        return {
            "job": "{job_name:String}", "verdict_id": _VERDICT, "revision": "1", "attempt": str(ATTEMPT),
            "state": "'open'", "event": "'opened'", "kind": "'slow_rank'", "first_iteration": str(slow),
            "past_last_iteration": str(slow + 1), "lost_s": "2.5", "world_size": str(self.ranks),
            "evidence": "'made up'",
        }  # fmt: skip

    def _suspect(self) -> dict[str, str]:
        rank, _ = self.transient
        return {
            "job": "{job_name:String}", "verdict_id": _VERDICT, "revision": "1", "position": "0", "device": "'gpu'",
            "rank": str(rank), "ranks": f"[toUInt32({rank})]", "probability": "0.97",
            "host": f"concat({{host_name:String}}, '-{rank // TENSOR}')", "gpu": str(rank % TENSOR),
        }  # fmt: skip

    def _rank_iterations(self) -> dict[str, str]:
        (slow_rank, slow), (first_rank, first) = self.transient, self.rotating
        late, elapsed = "2500000000", f"{ITERATION_MS}000000 + {_noise('number', 3_000_000)}"
        rank, iteration = f"number % {self.ranks}", f"intDiv(number, {self.ranks})"
        turn = f"({iteration} BETWEEN {first} AND {first + 63} AND {rank} = {first_rank} + {iteration} - {first})"
        # A stage has its own usual work, each rank its own within 2 %, and each cell noise of some 2 %.
        work = (
            f"1500000000 + 40000000 * intDiv({rank}, {max(1, self.ranks // STAGES)}) + "
            f"{_noise(rank, 30_000_000, 7)} + {_noise('number', 45_000_000)} + "
            f"({rank} = {self.fixed}) * 260000000 + {turn} * 420000000 + "
            f"({rank} = {slow_rank} AND {iteration} = {slow}) * {late}"
        )
        return {
            "job": "{job_name:String}", "attempt": str(ATTEMPT), "iteration": iteration, "rank": rank,
            "started_at": f"addMilliseconds({_FIRST}, {iteration} * {ITERATION_MS})",
            "elapsed_ns": f"{elapsed} + ({iteration} = {slow}) * {late}",
            "work_ns": work, "operators": "412", "late_rows": "0", "lost_rows": "0",
            "score": f"if({rank} = {slow_rank} AND {iteration} = {slow}, 8.5, {_noise('number', 400)} / 1000)",
        }  # fmt: skip


def _noise(of: str, size: int, salt: int = 0) -> str:
    """SQL for noise from 0 to `size`, the sum of two uniform ones."""
    half = size // 2
    return f"(cityHash64({of}, {salt}) % {half} + cityHash64({of}, {salt + 1}) % {half})"
