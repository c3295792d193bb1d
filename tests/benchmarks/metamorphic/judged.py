"""What two judgements of one job have in common: verdicts in the names of the first recording."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

from irregulars.infra.runs.analysis import analyze
from irregulars.messages.announcements import Heartbeat
from irregulars.messages.judgements import Verdict
from irregulars.messages.records import Batch
from irregulars.producers.trace.directory import trace_batches
from irregulars.producers.trace.iterations import number_iterations
from irregulars.settings import JudgeSettings
from irregulars.streams.local_pipeline import LocalPipeline
from tests.benchmarks.metamorphic.changed import Changed, Naming
from tests.benchmarks.metamorphic.recording import Recording

_ROUND: Final = 64  # messages after which monitors are drained, as in the worker


@dataclass(frozen=True, slots=True)
class Charge:
    """What of a verdict must stay the same, in the names of the unchanged recording."""

    kind: str
    iterations: tuple[int, int]  # half-open
    # device, ranks: Of the first suspect; ascending, but a link's sender stands first. `None` and empty where nobody
    # is accused.
    device: str | None = None
    ranks: tuple[int, ...] = ()
    communicator: str | None = None  # where nobody is accused

    def __str__(self) -> str:
        first, past = self.iterations
        where = f" on {self.communicator}" if self.communicator else ""
        ranks = ", ".join(map(str, self.ranks[:8])) + (", …" if len(self.ranks) > 8 else "")
        whom = f"{self.device} of rank {ranks}" if self.device else f"nobody accused{where}"
        return f"{self.kind}, {whom}, iterations {first} to {past - 1}"

    def to_json(self) -> dict[str, Any]:
        """As the contract names these fields of a verdict."""
        return {
            "kind": self.kind, "device": self.device, "ranks": list(self.ranks), "communicator": self.communicator,
            "iterations": list(self.iterations),
        }  # fmt: skip


def judge(changed: Changed, settings: JudgeSettings) -> list[Verdict]:
    """Judge a recording as `irregulars analyze` does or, where its delivery is given, as a worker does."""
    trace = number_iterations(changed.recording.to_trace()).trace
    if changed.delivery is None:
        return analyze(trace, settings).verdicts
    # The newest revision of each verdict, most training time lost first.
    pipeline, newest = LocalPipeline(trace.job, settings), dict[str, Verdict]()
    for announcement in trace.announcements:
        pipeline.take(announcement)
    ends = [Heartbeat(trace.job, trace.attempt, one.rank, {}, "ended", "finished") for one in trace.announcements]
    rounds: Iterator[Sequence[Batch | Heartbeat]] = _rounds(
        trace_batches(trace, changed.delivery.max_rows, changed.delivery.max_span_s)
    )
    for some in chain(rounds, [ends]):
        for message in some:
            pipeline.take(message)
        newest |= {verdict.verdict_id: verdict for verdict in pipeline.judge().verdicts}
    return sorted(newest.values(), key=lambda verdict: (-verdict.lost_s, verdict.verdict_id))


def _rounds(batches: Iterator[Batch]) -> Iterator[list[Batch]]:
    while some := list(islice(batches, _ROUND)):
        yield some


def charges_of(verdicts: Iterable[Verdict], naming: Naming) -> list[Charge]:
    """Say the verdicts on a changed recording in the names of the first one."""
    return [_charge(verdict, naming) for verdict in verdicts]


def _charge(verdict: Verdict, naming: Naming) -> Charge:
    window = naming.old_window(verdict.iterations)
    if not verdict.suspects:
        communicator = verdict.communicator
        old = None if communicator is None else naming.communicators.get(communicator, communicator)
        return Charge(verdict.kind, window, communicator=old)
    suspect = verdict.suspects[0]
    ranks = naming.old_ranks(suspect.ranks)
    return Charge(verdict.kind, window, suspect.device, ranks if suspect.device == "link" else tuple(sorted(ranks)))


def differences(before: Sequence[Charge], after: Sequence[Charge]) -> tuple[list[Charge], list[Charge]]:
    """Return the charges that are gone, and those that are new; each in its order."""
    gone, new = Counter(before) - Counter(after), Counter(after) - Counter(before)
    return list(gone.elements()), list(new.elements())


def accused_ranks(verdicts: Iterable[Verdict], recording: Recording) -> frozenset[int]:
    """Return the ranks that a copied replica must not hold: see `changed.Given`."""
    members = {communicator.id: communicator for communicator in recording.job.communicators}
    accused: set[int] = set()
    for verdict in verdicts:
        if verdict.suspects and verdict.suspects[0].device != "stage":
            accused.update(verdict.suspects[0].ranks)
        elif not verdict.suspects and verdict.communicator in members:
            own = members[verdict.communicator]
            accused.update(own.ranks if own.kind not in ("world", "dp") else ())
    return frozenset(accused)
