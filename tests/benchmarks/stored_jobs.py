"""Fills the database's tables with made-up jobs of any size, inside ClickHouse: some hundred thousand rows a second.

Every value follows from the number of its row and the seed, by hashes: the same call gives the same rows. Seven jobs
of 256 to 8,192 ranks share the operators; the largest has five sixteenths of them. An iteration takes 10 s. Of an
iteration that was looked into, 256 ranks are stored, with 64 operators each, as the search for a cause stores them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

RANKS: Final = (256, 512, 1_024, 1_024, 2_048, 4_096, 8_192)
OPERATORS: Final = 64  # operators of one rank in one iteration
STORED_RANKS: Final = 256  # ranks whose operators are stored, of an iteration that was looked into
ITERATION_S: Final = 10
SAMPLED_NICS: Final = 16  # ranks of the smallest job that sampled their NICs
_SLOTS: Final = (0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5, 6, 6, 6, 6, 6)
"""To which job each of sixteen iterations in turn belongs."""
_OF_ITERATION: Final = OPERATORS * STORED_RANKS
_FIRST: Final = "toDateTime64('2026-10-01 00:00:00', 9, 'UTC')"
_CHUNK_ROWS: Final = 1 << 21
_REPLAYED: Final = 50
"""One of so many chunks comes a second time, as after a crash, with other values: what came last must stay."""

_SETTINGS: Final = {
    "max_memory_usage": 6_000_000_000, "max_threads": 2, "max_execution_time": 0,
    "max_partitions_per_insert_block": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoredJobs:
    """How much is stored."""

    rows: int  # operators, replays not counted
    seed: int  # other seeds give other values

    @property
    def stored(self) -> int:
        """Iterations whose operators are stored, of all jobs."""
        return self.rows // _OF_ITERATION

    @property
    def iterations(self) -> int:
        return max(200, self.rows // 400)

    @property
    def verdicts(self) -> int:
        return max(70, self.rows // 20_000)

    @property
    def seconds(self) -> int:
        """Seconds for which the ranks of the smallest job sampled their GPUs."""
        return max(6_000, self.rows // 10 // RANKS[0])

    @property
    def samples(self) -> int:
        """Samples of each NIC that was sampled, one each 10 ms."""
        return max(60_000, self.rows // 10 // SAMPLED_NICS)

    @property
    def whole_iterations(self) -> int:
        """Iterations of each job, the newest, whose ranks are stored one by one."""
        return max(20, self.rows // 4 // sum(RANKS))

    def fill(self, client: Client, tell: Callable[[str], None]) -> None:
        """Store all rows; `tell` is told how far it is."""
        for table, rows, columns, extra in self._inserts():
            chunks = list(self._chunks(rows))
            for done, (first, count, is_replay) in enumerate(chunks):
                names = ", ".join(columns)
                values = ", ".join(f"{value} AS {name}" for name, value in columns.items())
                where = f"WITH {extra.format(replay=int(is_replay))} " if extra else ""
                client.command(
                    f"INSERT INTO {table} ({names}) {where}SELECT {values} FROM numbers({first}, {count})",
                    settings=_SETTINGS,
                )
                tell(f"{table}: {(done + 1) / len(chunks):.0%} of {rows:,} rows")

    def _chunks(self, rows: int) -> Iterator[tuple[int, int, bool]]:
        for number, first in enumerate(range(0, rows, _CHUNK_ROWS)):
            count = min(_CHUNK_ROWS, rows - first)
            yield first, count, False
            if number % _REPLAYED == 1:
                yield first, count // 2, True

    def _inserts(self) -> Iterator[tuple[str, int, dict[str, str], str]]:
        """Yield table, rows, an expression for each column, and what these expressions share."""
        yield "jobs", 3 * sum(RANKS), self._jobs(), _rank_of(f"number % {sum(RANKS)}")
        yield "iterations", len(RANKS) * self.iterations, self._iterations(), f"number % {len(RANKS)} AS j"
        yield "verdicts", 3 * self.verdicts, self._verdicts(), f"number % {self.verdicts} AS v, v % {len(RANKS)} AS j"
        yield (
            "suspects",
            9 * self.verdicts,
            self._suspects(),
            (
                f"number % {self.verdicts} AS v, v % {len(RANKS)} AS j, {list(RANKS)}[j + 1] AS ranks_of_job, "
                f"intDiv(number, {self.verdicts}) AS at, {self._hash('v')} % ranks_of_job AS first"
            ),
        )
        yield "operators", self.stored * _OF_ITERATION, self._operators(), self._place(OPERATORS)
        yield "behaviour_patterns", self.stored * STORED_RANKS * 4, self._patterns(), self._place(4)
        yield (
            "rank_iterations",
            self.whole_iterations * sum(RANKS),
            self._rank_iterations(),
            (f"intDiv(number, {sum(RANKS)}) AS n, {_rank_of(f'number % {sum(RANKS)}')}"),
        )
        of_nic = f"number % {SAMPLED_NICS} AS rank_, intDiv(number, {SAMPLED_NICS}) * 10 AS at_ms"
        yield (
            "bandwidth",
            self.samples * SAMPLED_NICS,
            {
                **self._sample("mlx5_", self.samples * 10, 200_000),
                "path": "'nic'",
                "tx_bytes_per_s": self._lognormal(2e10, 0.2, 1),
                "rx_bytes_per_s": self._lognormal(2e10, 0.2, 2),
            },
            of_nic,
        )
        of_gpu = f"number % {RANKS[0]} AS rank_, intDiv(number, {RANKS[0]}) * 1000 AS at_ms"
        yield "gpu_health", self.seconds * RANKS[0], self._gpu_health(), of_gpu

    def _place(self, rows_of_rank: int) -> str:
        """SQL for job, rank, iteration and operator of the rows of iterations that were looked into."""
        return (
            f"intDiv(number, {rows_of_rank * STORED_RANKS}) AS s, {list(_SLOTS)}[s % {len(_SLOTS)} + 1] AS j, "
            f"{list(RANKS)}[j + 1] AS ranks_of_job, number % {rows_of_rank} AS op, {{replay}} AS is_replay, "
            f"(8 * ({self._hash('s')} % 1024) + intDiv(number, {rows_of_rank}) % {STORED_RANKS}) % ranks_of_job "
            f"AS rank_, intDiv(s * {self.iterations}, {self.stored}) AS i"
        )

    def _operators(self) -> dict[str, str]:
        kind = (
            "multiIf(op < 24, 'all_reduce', op < 36, 'all_gather', op < 48, 'reduce_scatter', "
            "op < 56, 'send', 'recv')"
        )
        group = (
            "multiIf(op < 24, ('tp', intDiv(rank_, 8)), op < 48, ('dp', rank_ % 64), "
            "('pp', rank_ % intDiv(ranks_of_job, 8)))"
        )
        hop = "intDiv(ranks_of_job, 8)"
        return {
            **self._row("i"),
            "rank": "rank_",
            "communicator": f"lower(hex(cityHash64({group}, j)))",
            "operator": kind,
            "sequence": "i * 64 + op",
            "peer": f"if(op < 48, NULL, toUInt32((rank_ + if(op < 56, {hop}, ranks_of_job - {hop})) % ranks_of_job))",
            "started_at": f"addNanoseconds({_begin('i')}, op * 150000000 + {self._hash('number')} % 50000000)",
            "elapsed_ns": f"if({self._hash('number', 9)} % 10000 = 0, NULL, {self._lognormal(3e6, 0.4, 1)})",
            "size_bytes": "if(op < 24, 33554432, if(op < 48, 268435456, 16777216))",
            "gap_ns": self._lognormal(4e5, 0.5, 2),
            "wait_ns": self._lognormal(3e5, 1.0, 3),
            "transfer_ns": f"{self._lognormal(2e6, 0.3, 4)} + is_replay * 1000",
            "abnormal_ratio": f"if(op % 3 = 0, NULL, 1 + {self._lognormal(40, 0.6, 5)} / 1000)",
        }

    def _patterns(self) -> dict[str, str]:
        return {
            **self._row("i"),
            "rank": "rank_",
            "communicator": "if(op = 0, '', lower(hex(cityHash64(op, intDiv(rank_, 8), j))))",
            "operator": "['', 'all_reduce', 'all_gather', 'reduce_scatter'][op + 1]",
            "started_at": f"addNanoseconds({_begin('i')}, {self._hash('rank_', 'i')} % 2000000)",
            "share": f"({self._hash('number')} % 1000) / 1000",
            **{
                name: f"{self._lognormal(1e9, 0.5, salt)} / {over}"
                for salt, (name, over) in enumerate(
                    {
                        "tx_mean": 1, "tx_deviation": 9, "rx_mean": 1, "rx_deviation": 9, "differential": 4e9,
                        "unexpected": 1e10,
                    }.items()
                )
            },
            "is_abnormal": f"{self._hash('number', 8)} % 50 = 0",
        }  # fmt: skip

    def _rank_iterations(self) -> dict[str, str]:
        iteration = f"{self.iterations - self.whole_iterations} + n"
        return {
            **self._row(iteration),
            "rank": "rank_",
            "started_at": f"addNanoseconds({_begin(iteration)}, {self._hash('number')} % 2000000)",
            "elapsed_ns": f"{ITERATION_S}000000000 + {self._lognormal(1e6, 0.5, 1)}",
            "work_ns": self._lognormal(6e9, 0.01, 2),
            "operators": str(OPERATORS),
            "late_rows": f"if({self._hash('number', 3)} % 5000 = 0, 3, 0)",
            "lost_rows": "0",
            "score": f"if({self._hash('number', 4)} % 4 = 0, NULL, {self._lognormal(200, 0.4, 5)} / 1000)",
        }

    def _iterations(self) -> dict[str, str]:
        iteration = f"intDiv(number, {len(RANKS)})"
        irregular = f"{self._hash('number')} % 300 = 0"
        verdict = f"concat('v', toString({self._hash('number', 3)} % {self.verdicts}))"
        return {
            **self._row(iteration),
            "started_at": _begin(iteration),
            "elapsed_ns": f"{ITERATION_S}000000000 + {self._lognormal(1e7, 0.5, 1)} + ({irregular}) * 3000000000",
            "reference_ns": f"if({iteration} < 50, NULL, {ITERATION_S}e9)",
            "phase": f"if({self._hash('number', 2)} % 500 = 0, 'checkpoint', 'train')",
            "is_irregular": f"if({iteration} < 50, NULL, {irregular})",
            "ranks_reported": f"{list(RANKS)}[j + 1]",
            "verdict_ids": f"if({irregular}, [{verdict}], [])",
        }

    def _jobs(self) -> dict[str, str]:
        return {
            "job": "concat('job-', toString(j))",
            "attempt": f"intDiv(number, {sum(RANKS)})",
            "rank": "rank_",
            "world_size": f"{list(RANKS)}[j + 1]",
            "logged_ranks": f"{list(RANKS)}[j + 1]",
            "is_logged": "true",
            "clock": "'shared'",
            "host": "concat('node-', toString(j), '-', toString(intDiv(rank_, 8)))",
            "gpu": "rank_ % 8",
            "nic": "concat('mlx5_', toString(rank_ % 8))",
            "switch": "concat('leaf-', toString(intDiv(rank_, 128)))",
            "sources": "['commops', 'iterations']",
            "communicators": "[lower(hex(cityHash64(('tp', intDiv(rank_, 8)), j)))]",
            "communicator_kinds": "['tp']",
            "communicator_sizes": "[8]",
        }

    def _verdicts(self) -> dict[str, str]:
        first = f"toInt64(intDiv(v * {self.iterations}, {self.verdicts}))"
        return {
            "job": "concat('job-', toString(j))",
            "verdict_id": "concat('v', toString(v))",
            "revision": f"1 + intDiv(number, {self.verdicts})",
            "attempt": _attempt(first, self.iterations),
            "state": f"if(v + 10 > {self.verdicts}, 'open', 'closed')",
            "event": "'changed'",
            "kind": f"['slow_rank', 'slow_nic', 'slow_link', 'imbalance', 'hang'][{self._hash('v')} % 5 + 1]",
            "first_iteration": first,
            "past_last_iteration": f"{first} + 20",
            "lost_s": f"{self._lognormal(2e4, 1.0, 1, 'v')} / 1000 + intDiv(number, {self.verdicts})",
            "world_size": f"{list(RANKS)}[j + 1]",
            "evidence": "repeat('recv on a rank took 24.9 ms, 12 ms more than before. ', 6)",
            "delta": "1.3",
            "last_seen_at": f"addSeconds({_begin(first)}, {20 * ITERATION_S})",
            "severity": f"['note', 'ticket', 'page'][{self._hash('v', 2)} % 3 + 1]",
            "recovers_ratio": "0.9",
        }

    def _suspects(self) -> dict[str, str]:
        return {
            "job": "concat('job-', toString(j))",
            "verdict_id": "concat('v', toString(v))",
            "revision": "1 + intDiv(at, 3)",
            "position": "at % 3",
            "device": "['gpu', 'nic', 'host'][at % 3 + 1]",
            "rank": "(first + at % 3) % ranks_of_job",
            "ranks": "if(at % 3 = 2, arrayMap(x -> toUInt32(8 * intDiv(first, 8) + x), range(8)), [toUInt32(rank)])",
            "host": "concat('node-', toString(j), '-', toString(intDiv(rank, 8)))",
            "gpu": "if(at % 3 = 0, rank % 8, NULL)",
            "nic": "if(at % 3 = 1, concat('mlx5_', toString(rank % 8)), NULL)",
            "switch": "concat('leaf-', toString(intDiv(rank, 128)))",
            "probability": "[0.7, 0.2, 0.05][at % 3 + 1]",
        }

    def _gpu_health(self) -> dict[str, str]:
        return {
            **self._sample("gpu", self.seconds * 1_000, 2_000_000),
            "sm_clock_mhz": f"1980 - 15 * ({self._hash('number')} % 4)",
            "memory_clock_mhz": "2619",
            "power_w": f"round({self._lognormal(650, 0.05, 1)})",
            "temperature_c": f"60 + {self._hash('number', 2)} % 8",
            "sm_active_ratio": f"({self._hash('number', 3)} % 1000) / 1000",
            "throttle_reasons": f"if({self._hash('number', 4)} % 200 = 0, 'power_cap', '')",
            "ecc_corrected": "0",
            "ecc_uncorrected": "0",
        }

    def _sample(self, device: str, span_ms: int, jitter_ns: int) -> dict[str, str]:
        at = f"addMilliseconds({_FIRST}, {self.iterations * ITERATION_S * 1_000 - span_ms} + at_ms)"
        return {
            "job": "'job-0'",
            "attempt": "2",
            "rank": "rank_",
            "device": f"concat('{device}', toString(rank_ % 8))",
            "sampled_at": f"addNanoseconds({at}, {self._hash('number', 7)} % {jitter_ns})",
        }

    def _row(self, iteration: str) -> dict[str, str]:
        return {
            "job": "concat('job-', toString(j))",
            "attempt": _attempt(iteration, self.iterations),
            "iteration": iteration,
        }

    def _hash(self, *of: object) -> str:
        return f"cityHash64({', '.join(map(str, of))}, {self.seed})"

    def _lognormal(self, median: float, sigma: float, salt: int, of: str = "number") -> str:
        """SQL of a random whole number; the sum of a hash's four shorts is nearly normal, of deviation 37,837."""
        word = self._hash(of, 100 + salt)
        shorts = " + ".join(f"bitAnd(bitShiftRight({word}, {bits}), 65535)" for bits in (0, 16, 32, 48))
        return f"toInt64({median} * exp({sigma} * (toInt64({shorts}) - 131070) / 37837))"


def _begin(iteration: str) -> str:
    return f"addSeconds({_FIRST}, {ITERATION_S} * ({iteration}))"


def _attempt(iteration: str, iterations: int) -> str:
    """A job failed twice in its first fifth: most rows belong to its newest attempt."""
    return f"multiIf(({iteration}) < {iterations // 10}, 0, ({iteration}) < {iterations // 5}, 1, 2)"


def _rank_of(number: str) -> str:
    """SQL for job and rank of the n-th rank over all jobs."""
    firsts = [sum(RANKS[:at]) for at in range(len(RANKS))]
    return f"toInt64({number}) AS nth, arrayCount(x -> x <= nth, {firsts}) - 1 AS j, nth - {firsts}[j + 1] AS rank_"
