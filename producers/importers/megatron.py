"""Megatron's own findings in training logs: reports of its straggler detector, and results that it rejected.

A report names the ranks that took least and most time for forward passes, on request some more by their throughput,
and so bounds the time of all others. Ranks meet where an iteration ends: those that took less wait for the one that
took most.

A rejected result (NaN, infinite, too large) is computed again on the same GPU, and if it is the same there, on
another one after a restart. A GPU that computes another result from the same data is broken.

torchtitan computes a step twice on all ranks, and stops where something differs. All of them name the lowest rank on
which it did. That is no suspect: gradients are compared after their reduction, in which the error of one rank reaches
the parts that others hold, and where kernels are not deterministic the lowest is rank 0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, NamedTuple

from irregulars.errors import InputError
from irregulars.messages.announcements import Communicator
from irregulars.messages.records import OPERATOR_CODES, UNKNOWN
from irregulars.producers.importers.groups import MAX_RANKS
from irregulars.producers.importers.imported import ImportedJob, RankRows
from irregulars.producers.trace.foreign_files import CHECK_SIGNS
from irregulars.producers.trace.job_file import RankLocation

_MOST_REPORTS: Final = 20_000  # the newest ones: one comes in minutes
_MOST_RESULTS: Final = 20_000  # in all logs together: one ends a run, or all ranks have it
_MOST_COMPARED: Final = 64  # ranks of whose forward passes rows are made
_MOST_NOTES: Final = 3
_TIME: Final = re.compile(rb"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[^\n]{0,30}$")  # it stands shortly before
_AMOUNT: Final = rb"(\d{1,9}(?:\.\d{1,9})?)"
_ITERATION: Final = re.compile(rb"iteration +(\d+)/ *\d+ \|")
_REPORT: Final = re.compile(
    rb"\| MnRtt/Rnk: " + _AMOUNT + rb"ms/(\d+) \| MxRtt/Rnk: " + _AMOUNT + rb"ms/(\d+) \|"
    rb"(?:[^\n]{0,600}MnEtpt/Rnk: " + _AMOUNT + rb"TF/\d+)?"
)  # fmt: skip
_RANKED: Final = re.compile(rb"\^\^\^\^ (?:Bottom|Top) +\d+ Ranks with \w+ +Etpt\(TF\):([^\n]+)")
_THROUGHPUT: Final = re.compile(_AMOUNT + rb"TF/(\d+)")
_FIRST: Final = re.compile(
    rb"Unexpected result ([^\n]{1,80}?) on rank (\d+) at iteration #(\d+) [^\n]{0,40}\(message='([^\n]{0,200}?)'\)"
)
_AGAIN: Final = re.compile(rb"Rank (\d+), node ([^\s,]+), device (\d+), iteration #?(\d+): ([^\n]{0,300})")
_TRACKED: Final = re.compile(
    rb" node=(\S+) device=(\d+) jobID=\S+ rank=(\d+) iteration=(\d+) status=(?:\w+\.)?(\w+) "
    rb"result=([^\n]{1,80}?) message='([^\n]{0,200}?)'"
)
_ASSERTED: Final = re.compile(rb"Rank (\d+): (found (?:NaN|Inf)[^\n.]{0,200})\. Device: (\d+)(?:, node: (\S+))?")
_REPLAYED: Final = re.compile(
    rb"SDC replay mismatch: step=(\d{1,15}), (?:local_step|attempt)=\d{1,15}, replay=\d{1,9}, rank=(\d{1,10}), "
    rb"signature=['\"]?([\w:. /-]{1,200})"
)
_NUMBERS: Final = ("loss", "gradient:", "buffer:")  # how torchtitan names them; the others are states of the program
_NOT_FINITE: Final = re.compile(r"\bnan\b|\binf(inity)?\b", re.IGNORECASE)
# Outcomes of a rejected result, the least first: words of a line, word of the tracker's file, their meaning
_OUTCOMES: Final = (
    ("Unexpected result", "rerun_disabled", "it was not computed again"),
    ("Unexpected result", "initial_run", "it was not computed again"),
    ("result is reproducible within", "first_rerun_reproducible",
     "computed again there, it was the same; on another GPU it was not computed"),
    ("Correct result", "second_rerun_reproducible", "on another GPU it was the same: data or program, no device"),
    ("Possible persistent error", "second_rerun_not_reproducible", "on another GPU it was not the same"),
    ("Possible transient error", "first_rerun_not_reproducible", "computed again there, it was not the same"),
)  # fmt: skip
_CORRECT, _BROKEN = 3, 4  # places of the outcomes that clear the GPU, and from which on they convict it
NOTE_REPORTS: Final = (
    "straggler reports name the ranks that took least and most: others were taken as between them. Ranks of one "
    "tensor parallel group wait for each other in forward passes: look at all of them"
)


class Report(NamedTuple):
    """One report of the straggler detector, the mean of the iterations since the one before."""

    iteration: int | None  # that the log named last
    time_ns: int
    took_ms: dict[int, float]  # of the ranks that it names


@dataclass(slots=True)
class Result:
    """A result that a rank rejected."""

    outcome: int = 0  # the furthest, as a place in `_OUTCOMES`
    is_finite: bool = True
    message: str = ""
    place: RankLocation = field(default_factory=RankLocation)  # where it was computed first
    time_ns: int = 0


@dataclass(slots=True)
class _Start:
    """Lines about one start of the job; where the job is started anew, another one takes its place."""

    reports: list[Report] = field(default_factory=list)
    iteration: int | None = None  # that the log named last
    most_throughput: float = 0.0  # least of the newest report, which took the most time


class MegatronLog:
    """The lines of Megatron and torchtitan in all logs of one job."""

    def __init__(self) -> None:
        self._before: list[Report] = []  # of logs that were read before
        self._start = _Start()  # of the log that is read, the newest
        self._results: dict[tuple[int, int], Result] = {}  # by rank and iteration
        self._replays: dict[int, tuple[int, str]] = {}  # by step, the lowest rank that differed, and in what
        self._time_ns = 0

    def begin_file(self) -> None:
        """Begin to read another log."""
        # Of rejected results the log of one rank may tell the iteration for all.
        self._before, self._start = self._reports, _Start(iteration=self._start.iteration)

    def forget_file(self) -> None:
        """Forget the reports of the log so far: they are of an earlier start of the job.

        Rejected results stay: the job is started anew to compute them on another GPU.
        """
        self._start = _Start()

    @property
    def _reports(self) -> list[Report]:
        return [*self._before, *self._start.reports][-_MOST_REPORTS:]

    def read(self, block: bytes) -> None:
        """Read a part of a log that ends with a line. InputError if more results were rejected than runs have."""
        # Most blocks hold none of its lines, and fixed words are found much faster than patterns.
        if not any(sign in block for sign in CHECK_SIGNS):
            return
        takes = {
            _ITERATION: self._take_iteration, _REPORT: self._take_report, _RANKED: self._take_ranked,
            _FIRST: self._take_first, _AGAIN: self._take_again, _TRACKED: self._take_tracked,
            _ASSERTED: self._take_asserted, _REPLAYED: self._take_replayed,
        }  # fmt: skip
        found = [(one.start(), one, take) for pattern, take in takes.items() for one in pattern.finditer(block)]
        for start, one, take in sorted(found, key=lambda line: line[0]):
            if time := _TIME.search(block, max(start - 60, block.rfind(b"\n", 0, start) + 1), start):
                self._time_ns = _ns_of(time[1].decode()) or self._time_ns
            take(one)
        del self._start.reports[:-_MOST_REPORTS]
        if len(self._results) + len(self._replays) > _MOST_RESULTS:
            raise InputError(f"results that programs rejected must be at most {_MOST_RESULTS}; got more")

    def _take_iteration(self, line: re.Match[bytes]) -> None:
        self._start.iteration = int(line[1][:15])

    def _take_report(self, line: re.Match[bytes]) -> None:
        took_ms = {_rank(line[2]): float(line[1]), _rank(line[4]): float(line[3])}
        self._start.reports.append(Report(self._start.iteration, self._time_ns, took_ms))
        self._start.most_throughput = float(line[5] or 0)

    def _take_ranked(self, line: re.Match[bytes]) -> None:
        """Take in more ranks of the newest report: throughput is work over time, and all do the same work."""
        start = self._start
        if start.reports and start.most_throughput > 0:
            took_ms = start.reports[-1].took_ms
            most_ms = max(took_ms.values())
            for one in _THROUGHPUT.finditer(line[1]):
                if float(one[1]) > 0:
                    took_ms.setdefault(_rank(one[2]), min(most_ms, most_ms * start.most_throughput / float(one[1])))

    def _take_first(self, line: re.Match[bytes]) -> None:
        result = self._result(line[2], line[3], 1)
        result.is_finite = _is_finite(line[1] + b" " + line[4])
        result.message = _text(line[4])

    def _take_again(self, line: re.Match[bytes]) -> None:
        said = _text(line[5])
        outcome = next((at for at, (words, *_) in enumerate(_OUTCOMES) if words in said), None)
        if outcome is not None:
            result = self._result(line[1], line[4], outcome, line[2], line[3])
            if outcome == 0:
                result.is_finite, result.message = _is_finite(line[5]), said.partition("message='")[2].rstrip("')")

    def _take_tracked(self, line: re.Match[bytes]) -> None:
        status = line[5].decode().lower()
        outcome = next((at for at, (_, word, _) in enumerate(_OUTCOMES) if word == status), None)
        if outcome is not None:
            result = self._result(line[3], line[4], outcome, line[1], line[2])
            result.is_finite &= _is_finite(line[6] + b" " + line[7])
            result.message = result.message or _text(line[7])

    def _take_asserted(self, line: re.Match[bytes]) -> None:
        # The log names an iteration when it has ended: a result that is not finite stops the one after it.
        iteration = b"%d" % (0 if self._start.iteration is None else self._start.iteration + 1)
        result = self._result(line[1], iteration, 0, line[4], line[3])
        result.is_finite, result.message = False, _text(line[2])

    def _take_replayed(self, line: re.Match[bytes]) -> None:
        self._replays.setdefault(int(line[1]), (_rank(line[2]), _text(line[3])))  # each rank writes the same line

    def _result(
        self, rank: bytes, iteration: bytes, outcome: int, node: bytes | None = None, device: bytes | None = None
    ) -> Result:
        result = self._results.setdefault((_rank(rank), int(iteration[:15])), Result(time_ns=self._time_ns))
        result.outcome = max(result.outcome, outcome)
        # Lines of these two outcomes are of the GPU on which it was computed again.
        if result.place.gpu is None and device is not None and outcome not in (_CORRECT, _BROKEN):
            result.place = RankLocation(host=None if node is None else _text(node), gpu=int(device[:4]))
        return result

    # --- the job ----------------------------------------------------------------------------------------------------

    def job(self, name: str, world_size: int) -> ImportedJob | None:
        """Return the reports and rejected results as a job; None without any."""
        named = Counter(rank for report in self._reports for rank in report.took_ms)
        rejecting = {rank for rank, _ in (*self._results, *self._replays.values())}
        if not named and not rejecting:
            return None
        world_size = max(world_size, 1 + max({*named, *rejecting}))
        # Of many ranks those that are named most, and so the slow one
        compared = [rank for rank, _ in named.most_common(_MOST_COMPARED)]
        compared += range(min(world_size, _MOST_COMPARED))
        kept = {*list(dict.fromkeys(compared))[:_MOST_COMPARED], *rejecting}
        world = Communicator("end of iteration", "world", tuple(range(world_size)))
        ranks = {rank: RankRows() for rank in sorted(kept)}
        self._add_reports(ranks, world.id)
        self._add_results(ranks)
        notes = [*self.replays, *self._told(), *([NOTE_REPORTS] if self._reports else [])]
        return ImportedJob(
            job=name, world_size=world_size, clock="shared", communicators=[world], ranks=ranks,
            places={rank: result.place for (rank, _), result in self._results.items()}, notes=notes,
        )  # fmt: skip

    def _add_reports(self, ranks: dict[int, RankRows], communicator: str) -> None:
        """Add one iteration for each report, all as if one followed on the other."""
        numbers = [report.iteration for report in self._reports]
        known = [number for number in numbers if number is not None]
        is_rising = len(known) == len(numbers) and all(one < other for one, other in pairwise(known))
        begin_ns = self._reports[0].time_ns if self._reports else 0
        for at, report in enumerate(self._reports):
            number = known[at] if is_rising else at
            most_ns = round(max(report.took_ms.values()) * 1e6)
            # Ranks that a report does not name took a time between those that it names.
            middle_ms = (min(report.took_ms.values()) + max(report.took_ms.values())) / 2
            for rank, rows in ranks.items():
                took_ns = round(report.took_ms.get(rank, middle_ms) * 1e6)
                times = begin_ns + took_ns, most_ns - took_ns
                rows.add(communicator, OPERATOR_CODES["barrier"], at, UNKNOWN, *times, iteration=number)
                rows.add_iteration(number, begin_ns, most_ns)
            begin_ns += most_ns

    def _add_results(self, ranks: dict[int, RankRows]) -> None:
        length_ns = round(max(self._reports[-1].took_ms.values()) * 1e6) if self._reports else 1
        unclear: dict[int, set[int]] = {}  # by iteration the ranks of whose GPU nothing is known
        for (rank, iteration), result in self._results.items():
            if result.outcome >= _BROKEN:
                ranks[rank].add_iteration(iteration, result.time_ns, length_ns)
                for checksum in (0, 1):  # one for each of its results
                    ranks[rank].add_audit(iteration, rank, checksum)
            elif result.outcome < _CORRECT and not result.is_finite:
                unclear.setdefault(iteration, set()).add(rank)
        for iteration, own in unclear.items():
            time_ns = self._results[min(own), iteration].time_ns
            for rank, rows in ranks.items():  # all check theirs: who says nothing had nothing to say, then and before
                rows.add_iteration(iteration - 1, time_ns, length_ns, not_finite=0)
                rows.add_iteration(iteration, time_ns, length_ns, not_finite=rank in own)

    @property
    def replays(self) -> list[str]:
        """Steps that torchtitan computed again and not alike, a sentence each."""
        told = []
        for step, (rank, what) in sorted(self._replays.items())[:_MOST_NOTES]:
            why = "the program, no device"
            if what.startswith(_NUMBERS):
                why = ("it may be another rank's error, as gradients are compared after their reduction, or kernels "
                       "are not deterministic: no device is named")  # fmt: skip
            lowest = f"rank {rank} is the lowest on which something differed, {what}"
            told.append(f"step {step} was not the same when torchtitan computed it again; {lowest}: {why}")
        return told

    def _told(self) -> Iterator[str]:
        worst = sorted(self._results.items(), key=lambda one: (-one[1].outcome, one[0]))
        for (rank, iteration), result in worst[:_MOST_NOTES]:
            gpu, host = result.place.gpu, result.place.host or "its host"
            where = "" if gpu is None else f" (GPU {gpu} of {host})"
            what = result.message or "its result was rejected"
            yield f"rank {rank}{where}, iteration {iteration}: {what}; {_OUTCOMES[result.outcome][2]}"
        if len(worst) > _MOST_NOTES:
            yield f"{len(worst) - _MOST_NOTES} more results were rejected"


def _rank(text: bytes) -> int:
    rank = int(text[:10])
    if rank >= MAX_RANKS:
        raise InputError(f"ranks must be below {MAX_RANKS}; got {rank}")
    return rank


def _text(value: bytes) -> str:
    return value.decode(errors="replace")[:200]


def _is_finite(value: bytes) -> bool:
    return _NOT_FINITE.search(_text(value)) is None


def _ns_of(text: str) -> int | None:
    """Read a log's time, which has no zone, as UTC; None: it is no time."""
    try:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 10**9
    except ValueError:
        return None
