"""What a worker counts of its own work. Plain numbers: no lock, no clock, no network.

Stages and writers are given one `Counters` and call it once for each message, never for each row. Only the event
loop's thread counts; metrics read from another thread, and each number by itself is always whole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from irregulars.messages.evidence import Evidence, Membership
from irregulars.messages.judgements import JudgedIteration, Verdict

DELAY_BOUNDS_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""Upper bounds of the buckets of delays, s: from the shortest iterations to a backlog of an hour."""


class Histogram:
    """Counts values in buckets.

    >>> delays = Histogram((1.0, 10.0))
    >>> for delay_s in (0.5, 1.0, 3.0, 99.0):
    ...     delays.add(delay_s)
    >>> delays.counts, delays.sum
    ([2, 1, 1], 103.5)
    """

    def __init__(self, bounds: Sequence[float] = DELAY_BOUNDS_S) -> None:
        self.bounds: Final = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)  # the last one: above all bounds
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count a value in the bucket of the least bound that is not below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Counters:
    """What one worker has done since it started.

    Attributes
    ----------
    batches, rows
        Messages that went into monitors, and the rows in them, by topic (named without prefix).
    late_rows
        Rows that came after their iteration was closed.
    rejected_rows
        Rows that were refused for good, by who refused them (``table verdicts``).
    judged_iterations, irregular_iterations
        Iterations of jobs that were judged; those of them that took too long.
    verdicts
        Revisions that were sent, by kind and event.
    judgement_delays, verdict_delays
        Seconds from the end of an iteration to its judgement; to the verdict that it opened.
    sink_retries, sink_busy_at_s
        How often the sink had to be asked again, and when last (as `time.monotonic`); `None`: never.
    unstored_bytes, unstored_limit_bytes, unstored_since_s
        Rows that wait for the sink in memory; how many may; since when a row has waited (as
        `time.monotonic`), `None`: all is stored.
    sink_is_missing
        Whether the sink's database has not been reached since the start.
    store_is_full
        Whether judging waits, since no more rows may wait.
    restores, restore_s
        Partitions that were restored, and the seconds that took, by hop.
    partitions_read_anew
        Partitions that are read from their beginning, since their topic was made anew or cut, by topic.
    attempt_over_rows
        Rows of attempts that are over.
    contradictions
        How often a job began to contradict itself: its ranks are in two places, or two jobs have one name.
    given_up
        Monitors that began anew because their work did not end, by hop.
    thresholds_revision
        How many changes of thresholds hold in all partitions of jobs that are held.
    """

    def __init__(self) -> None:
        self.batches: dict[str, int] = {}
        self.rows: dict[str, int] = {}
        self.late_rows = 0
        self.rejected_rows: dict[str, int] = {}
        self.judged_iterations = 0
        self.irregular_iterations = 0
        self.verdicts: dict[tuple[str, str], int] = {}
        self.judgement_delays = Histogram()
        self.verdict_delays = Histogram()
        self.sink_retries = 0
        self.sink_busy_at_s: float | None = None
        self.unstored_bytes = 0
        self.unstored_limit_bytes = 0
        self.unstored_since_s: float | None = None
        self.sink_is_missing = False
        self.store_is_full = False
        self.restores: dict[str, int] = {}
        self.restore_s: dict[str, float] = {}
        self.partitions_read_anew: dict[str, int] = {}
        self.attempt_over_rows = 0
        self.contradictions = 0
        self.given_up: dict[str, int] = {}
        self.thresholds_revision = 0

    def took(self, topic: str, rows: int) -> None:
        """Count a message that went into a monitor."""
        self.batches[topic] = self.batches.get(topic, 0) + 1
        self.rows[topic] = self.rows.get(topic, 0) + rows

    def took_evidence(self, topic: str, parts: Sequence[Evidence | Membership]) -> None:
        """Count a message of evidence: its rows are ranks' iterations."""
        evidence = [part for part in parts if isinstance(part, Evidence)]
        self.took(topic, sum(map(len, evidence)))
        self.late_rows += sum(int(part.columns["late_rows"].sum()) for part in evidence)

    def gave_up(self, hop: str) -> None:
        """Count a monitor whose work did not end."""
        self.given_up[hop] = self.given_up.get(hop, 0) + 1

    def rejected(self, by: str, rows: int) -> None:
        """Count rows that were refused for good."""
        self.rejected_rows[by] = self.rejected_rows.get(by, 0) + rows

    def read_anew(self, topic: str, partitions: int) -> None:
        """Count partitions of a topic that was made anew."""
        self.partitions_read_anew[topic] = self.partitions_read_anew.get(topic, 0) + partitions

    def sink_was_busy(self, now_s: float) -> None:
        """Count a call of the sink that has to be made again; `now_s` as `time.monotonic`."""
        self.sink_retries += 1
        self.sink_busy_at_s = now_s

    def sink_answered(self) -> None:
        """Note that the sink takes rows again."""
        self.sink_busy_at_s = None

    def restored(self, hop: str, took_s: float) -> None:
        """Count a partition whose state was read."""
        self.restores[hop] = self.restores.get(hop, 0) + 1
        self.restore_s[hop] = self.restore_s.get(hop, 0.0) + took_s

    def judged(self, iterations: Sequence[JudgedIteration], now_s: float) -> None:
        """Count judged iterations; `now_s` since 1970."""
        for one in iterations:
            self.judged_iterations += 1
            self.irregular_iterations += one.is_irregular is True
            self.judgement_delays.add(max(now_s - _ended_at_s(one), 0.0))  # clocks of hosts may run ahead of ours

    def told(self, verdict: Verdict, iterations: Sequence[JudgedIteration], now_s: float) -> None:
        """Count a revision that was sent.

        Parameters
        ----------
        iterations
            Those that were judged with it: the one that opened it is among them, but for a hang, which has no end.
        now_s
            Since 1970.
        """
        place = (verdict.kind, verdict.event)
        self.verdicts[place] = self.verdicts.get(place, 0) + 1
        newest = verdict.iterations[1] - 1
        ends = [_ended_at_s(one) for one in iterations if (one.attempt, one.iteration) == (verdict.attempt, newest)]
        if verdict.event == "opened" and ends:
            self.verdict_delays.add(max(now_s - ends[0], 0.0))


def _ended_at_s(one: JudgedIteration) -> float:
    return (one.start_ns + one.elapsed_ns) / 1e9
