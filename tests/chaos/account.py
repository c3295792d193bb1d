"""The independent account: reads what stands on Kafka and in ClickHouse, and alone says ALL RECORDS JUDGED.

    python -m tests.chaos.account SPEC.json

A process of its own that shares nothing with the system but what that has published. The truth is what
`irregulars analyze` says of the same recordings. Prints one line of JSON: what is missing, doubled or false.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from irregulars.infra.commands.traces import rename_job
from irregulars.infra.runs.analysis import Analysis, analyze
from irregulars.infra.settings import Settings
from irregulars.infra.wiring import monitor_settings
from irregulars.kafka.log_reader import LogReader
from irregulars.messages.judgements import decode_verdict
from irregulars.producers.trace.directory import Trace, read_trace
from irregulars.sinks.alerts import alert_of
from irregulars.sinks.connection import DatabaseSettings, connect
from tests.integration.pipelines import RECORDINGS

ALL_JUDGED: Final = "ALL RECORDS JUDGED"
_SHOWN: Final = 5
_ITERATION: Final = ("iteration", "elapsed_ns", "is_irregular", "ranks_reported", "verdict_ids")


class Account:
    """Compares one run with its truth, and collects what is wrong, by kind.

    `spec`: ``bootstrap``, ``prefix``, ``database`` (fields of `DatabaseSettings`), ``jobs`` (name -> recording).
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._prefix: Final = str(spec["prefix"])
        self._reader: Final = LogReader(spec["bootstrap"], {})
        self._client: Final = connect(DatabaseSettings(**spec["database"]))
        self._jobs: Final[Mapping[str, str]] = spec["jobs"]
        self.wrong: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.counts: Counter[str] = Counter()

    def check(self) -> dict[str, Any]:
        """Compare everything, and return the result as JSON values."""
        traces = {name: rename_job(read_trace(RECORDINGS / own), name, None) for name, own in self._jobs.items()}
        settings = monitor_settings(Settings())
        truth = {name: analyze(trace, settings) for name, trace in traces.items()}
        self._check_iterations(truth)
        self._check_rows(traces, truth)
        self._check_revisions(truth)
        wanted = {(v.verdict_id, v.revision, v.lost_s) for analysis in truth.values() for v in analysis.verdicts}
        rows = self._rows("SELECT verdict_id, revision, lost_s FROM verdicts FINAL")
        found = Counter((row["verdict_id"], row["revision"], row["lost_s"]) for row in rows)
        self._note_all("verdicts missing in the database", wanted - found.keys())
        self._note_all("false verdicts in the database", found.keys() - wanted)
        self._note_all("verdicts doubled in the database", {key for key, count in found.items() if count > 1})
        letters = sum(1 for _ in self._messages("deadletter"))
        self._note("dead letters", letters, [])
        ok = not self.wrong
        return {
            "says": ALL_JUDGED if ok else "NOT ALL", "counts": dict(self.counts), "wrong": dict(self.wrong),
            "examples": self.examples,
        }  # fmt: skip

    def _check_iterations(self, truth: Mapping[str, Analysis]) -> None:
        wanted = {
            (name, *(_plain(getattr(one, field)) for field in _ITERATION))
            for name, analysis in truth.items()
            for one in analysis.iterations
        }
        rows = self._rows(f"SELECT job, {', '.join(_ITERATION)} FROM judged_iterations")
        found = Counter((row["job"], *(_plain(row[field]) for field in _ITERATION)) for row in rows)
        known, wanted_keys = {key[:2] for key in found}, {key[:2] for key in wanted}
        self.counts["iterations"] = len(wanted)
        self._note_all("iterations missing", wanted_keys - known)
        self._note_all("iterations too many", known - wanted_keys)
        self._note_all(
            "iterations judged otherwise", {key for key in found.keys() - wanted if key[:2] in wanted_keys}
        )

    def _check_rows(self, traces: Mapping[str, Trace], truth: Mapping[str, Analysis]) -> None:
        """Each record that was published took part: ranks of iterations, samples, and no rows told as lost."""
        stored = {row["job"]: row["n"] for row in self._rows(
            "SELECT job, count() AS n FROM rank_iterations FINAL GROUP BY job"
        )}  # fmt: skip
        samples = {
            row["job"]: row["n"] for row in self._rows("SELECT job, count() AS n FROM bandwidth FINAL GROUP BY job")
        }
        for name, trace in traces.items():
            wanted = sum(one.ranks_reported for one in truth[name].iterations)
            sent = sum(map(len, trace.batches("bandwidth").values()))
            self.counts["operators"] += sum(map(len, trace.batches("commops").values()))
            self.counts["samples"] += sent
            self._note("iterations of ranks missing", max(wanted - stored.get(name, 0), 0), [name])
            self._note("samples missing", max(sent - samples.get(name, 0), 0), [name])

    def _check_revisions(self, truth: Mapping[str, Analysis]) -> None:
        wanted = {v.verdict_id: v for analysis in truth.values() for v in analysis.verdicts}
        verdicts = [decode_verdict(value, "verdicts") for value in self._messages("verdicts")]
        found = Counter((one.verdict_id, one.revision) for one in verdicts)
        expected = {(name, number + 1) for name, one in wanted.items() for number in range(one.revision)}
        self.counts["verdicts"], self.counts["revisions"] = len(wanted), len(expected)
        self._note_all("revisions missing on verdicts", expected - found.keys())
        self._note_all("false revisions on verdicts", found.keys() - expected)
        self._note_all("revisions doubled on verdicts", {key for key, count in found.items() if count > 1})
        alerts = Counter(self._messages("alerts"))
        own = {alert for one in verdicts if (alert := alert_of(one)) is not None}
        self.counts["alerts"] = len(own)
        self._note_all("alerts missing", own - alerts.keys())
        self._note_all("alerts doubled", {value for value, count in alerts.items() if count > 1})

    def _rows(self, sql: str) -> list[dict[str, Any]]:
        table: pa.Table = self._client.query_arrow(sql, use_strings=True)
        return table.to_pylist()

    def _messages(self, topic: str) -> Iterator[bytes]:
        name = self._prefix + topic
        for partition in self._reader.partitions(name):
            for message in self._reader.read_tail(name, partition):
                yield message.value() or b""

    def _note_all(self, kind: str, found: Sequence[Any] | set[Any]) -> None:
        self._note(kind, len(found), sorted(map(str, found)))

    def _note(self, kind: str, count: int, examples: list[str]) -> None:
        if count:
            self.wrong[kind] += count
            self.examples.setdefault(kind, []).extend(examples[:_SHOWN])


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, (list, tuple)) else value


def main(arguments: Sequence[str]) -> int:
    result = Account(json.loads(Path(arguments[0]).read_text())).check()
    print(json.dumps(result))
    return 0 if result["says"] == ALL_JUDGED else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
