"""A worker process whose JobMonitor says a verdict for each evidence row: what is lost or twice shows at once.

Run as ``python -m tests.integration.stand_in_worker JSON`` with settings of the worker as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from irregulars.errors import IrregularsError
from irregulars.streams.kafka.topics import TopicSettings
from irregulars.streams.messages.evidence import Evidence, Membership
from irregulars.streams.messages.judgements import Judgements, Verdict, encode_verdict
from irregulars.streams.messages.records import Batch
from irregulars.streams.worker.settings import WorkerSettings


class EveryRowAccused:
    """One verdict per rank and iteration, once in the life of a job's state; and a sum that must not change."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.known: set[tuple[int, int, int]] = set()
        self.new: list[tuple[int, int, int, int]] = []
        self.is_ended = False

    def add(self, rows: Sequence[Evidence | Membership]) -> None:
        for row in rows:
            if isinstance(row, Evidence):
                names = ("attempt", "rank", "iteration", "operators")
                for values in zip(*(row.columns[name].tolist() for name in names), strict=True):
                    if values[:3] not in self.known:
                        self.known.add(values[:3])
                        self.new.append(values)

    def tick(self, now_s: float) -> None:
        pass

    def advance(self, read_back: Callable[[Sequence[Any]], Sequence[Batch]]) -> Judgements:
        new, self.new = self.new, []
        return Judgements(self.job, verdicts=[self._verdict(*values) for values in new])

    def _verdict(self, attempt: int, rank: int, iteration: int, operators: int) -> Verdict:
        return Verdict(
            verdict_id=f"{self.job}-{attempt}-{rank}-{iteration}", revision=1, state="open", job=self.job,
            kind="imbalance", iterations=(iteration, iteration + 1), delta=1.0, lost_s=0.0, communicator=None,
            suspects=(), evidence=f"{operators} operators",
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        return {"job": self.job, "known": [list(values) for values in sorted(self.known)]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> EveryRowAccused:
        monitor = cls(state["job"])
        monitor.known = {(a, r, i) for a, r, i in state["known"]}
        return monitor


def alert_of(verdict: Verdict) -> bytes:
    return encode_verdict(verdict).replace(b'"schema":"verdicts"', b'"schema":"alerts"', 1)


def main(text: str) -> int:
    from irregulars.streams.worker.app import run_worker
    from irregulars.streams.worker.monitors import Monitors, make_monitors

    values = json.loads(text)
    settings = WorkerSettings(**{**values, "topics": TopicSettings(**values["topics"])})
    real = make_monitors(settings)
    monitors: Monitors = replace(
        real, make_job=EveryRowAccused, restore_job=EveryRowAccused.from_state, alert_of=alert_of
    )
    try:
        return run_worker(settings, None, monitors)
    except IrregularsError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
