"""The logs of a job's ranks, joined: calls become rows, names become communicators.

Global ranks come from the communicators that each log joined, and from the splits that it made.

The hook writes an end for an operator that failed or timed out too. But a collective can't end before all members
have called it. So an end of one that a member never called is none: its rank is still inside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from irregulars.errors import InputError
from irregulars.messages.announcements import Communicator
from irregulars.messages.records import P2P, ROOTED, UNKNOWN
from irregulars.producers.importers.clog_lines import (
    BAD,
    CALL,
    UNCLEAR,
    Call,
    LogParser,
    Membership,
    Split,
    TimeCounts,
)
from irregulars.producers.importers.groups import ProcessGroup, communicators_of
from irregulars.producers.importers.imported import ENDED_NS, ITERATION, SEQUENCES, ImportedJob, RankRows
from irregulars.producers.trace.job_file import RankLocation

UNTOLD: Final = "calls on communicators whose members nothing tells"
UNTIMED: Final = "calls of which nobody knows how long they took: a watchdog looks at the GPU"
SHARED_NAME: Final = "calls on communicators that share a name with others of the same rank"


class Ranks(NamedTuple):
    """Global rank of each log, by its name; `root`: the communicator of these ranks, None if file names have them."""

    of: Mapping[str, int]
    world_size: int
    root: str | None


def ranks_of_logs(logs: Mapping[str, LogParser], named: Mapping[str, int | None]) -> Ranks:
    """Return the global ranks: those in the largest communicator that all logs joined.

    `named`: the rank in each file's name. Raises InputError if two logs are of one rank, or neither a communicator
    nor the names of the files have all ranks.
    """
    # The largest first: that of all ranks, where a smaller one that all of these logs joined numbers its own.
    for (text, size), found in sorted(_joined(logs).items(), key=lambda one: -one[0][1]):
        if len(found) == len(logs):
            return Ranks(_distinct(found, f"of {text}"), size, text)
    if None in named.values():
        raise InputError("logs must all have a new_comm line of one communicator, or names that end with their rank; "
                         "got neither: register the hook with the world's communicator")  # fmt: skip
    ranks = _distinct({name: rank for name, rank in named.items() if rank is not None}, "by the files' names")
    return Ranks(ranks, 1 + max(ranks.values()), None)


def _joined(logs: Mapping[str, LogParser]) -> dict[tuple[str, int], dict[str, int]]:
    """Return the ranks inside of each communicator of a name and a size, by log."""
    found: dict[tuple[str, int], dict[str, int]] = {}
    for name, log in logs.items():
        for member in log.members:
            found.setdefault((member.communicator, member.size), {})[name] = member.comm_rank
    return found


def _distinct(ranks: dict[str, int], where: str) -> dict[str, int]:
    seen: dict[int, str] = {}
    for name, rank in ranks.items():
        if rank in seen:
            found = f"two of rank {rank} {where}: {seen[rank]} and {name}"
            raise InputError(f"logs must be of different ranks; got {found}")
        seen[rank] = name
    return ranks


def groups_of_log(
    members: Sequence[Membership],
    splits: Iterable[Split],
    rank: int,
    world_size: int,
    whole: Mapping[tuple[str, int], tuple[int, ...]],
) -> dict[str, ProcessGroup | None]:
    """Communicators of one rank by the names that its log gives them; None where one name means several.

    The calls of a part are logged under its name, on gloo and NCCL with the part's smallest rank behind it; the ranks
    of a split line are those inside of the parent. `whole`: global ranks of communicators that were made apart, by
    name and size.

    Examples
    --------
    >>> world = Membership("world", 2, 4)
    >>> groups_of_log([world], [Split("world", "tp", (2, 3))], 2, 4, {})["tp_2"]
    ProcessGroup(name='2', description='tp', ranks=(2, 3))
    """
    groups: dict[str, ProcessGroup | None] = {}
    for member in members:
        own = tuple(range(world_size)) if member.size == world_size and member.comm_rank == rank else None
        inside = own or whole.get((member.communicator, member.size))
        if inside is not None:
            _name(groups, member.communicator, ProcessGroup(str(inside[0]), member.communicator, inside))
    for split in splits:
        parent = groups.get(split.parent)
        if parent is None or max(split.ranks) >= len(parent.ranks) or len(set(split.ranks)) < len(split.ranks):
            continue  # its calls are counted as untold when they come
        inside = tuple(parent.ranks[at] for at in split.ranks)
        if rank in inside:
            group = ProcessGroup(str(inside[0]), split.child, inside)
            for name in (split.child, f"{split.child}_{min(split.ranks)}"):
                _name(groups, name, group)
    return groups


def _name(groups: dict[str, ProcessGroup | None], name: str, group: ProcessGroup) -> None:
    # Once two groups had the name it stays None: the log does not tell their calls apart.
    known = groups.get(name, group)
    groups[name] = group if known is not None and known.ranks == group.ranks else None


# A job whose newest line is not older counts as running: its open calls prove nothing yet.
RUNNING_MS: Final = 300_000
Collective = tuple[str, int]  # a communicator, as a log names it, and the number of a collective on it


def given_up(
    parsers: Mapping[str, LogParser],
    groups: Mapping[str, Mapping[str, ProcessGroup | None]],
    newest_ended: Mapping[str, Mapping[str, int]],
) -> Mapping[str, Set[Collective]]:
    """Find the collectives that ended on some ranks and were never called on others, by log.

    Only the first that a member never called is one, and only as the newest that ended: beyond it the member's log is
    just shorter. Logs that lost lines tell nothing.

    `newest_ended`: number of the newest collective that ended, by log and communicator.
    """
    by_group: dict[ProcessGroup, dict[str, str]] = {}  # logs of its members, each with its own name of the group
    for file, own in groups.items():
        for name, group in own.items():
            if group is not None:
                by_group.setdefault(group, {})[file] = name
    found: dict[str, set[Collective]] = {}
    for logs in by_group.values():
        counts = {file: parsers[file].collectives(name) for file, name in logs.items()}
        first = min(counts.values())
        ended = {file: newest_ended[file].get(name, -1) for file, name in logs.items()}
        has_gaps = any(parsers[file].lost > 0 or parsers[file].skipped[BAD] > 0 for file in logs)
        if max(ended.values()) == first and not has_gaps:
            for file in (file for file, number in ended.items() if number == first):
                found.setdefault(file, set()).add((logs[file], first))
    return found


MOST_CALLS: Final = 8_000_000  # of all ranks together, 65 bytes each
_CALL: Final = Struct("=4qd?3q")  # a communicator's place among the names, and the rest of a `Call`
_MS_NS: Final = 1_000_000
# A rank may end these before all others have called them: an end proves nothing about the other ranks.
_MAY_END_ALONE: Final = frozenset((*P2P, *ROOTED))
NOTE_NO_ITERATIONS: Final = "clog knows no training iterations"
NOTE_MS: Final = "clog's times are whole milliseconds: who waited for less is not seen"
NOTE_CALLS: Final = "operators start when they are called: a call returns when its operator has ended (as gloo's do)"
NOTE_UNCLEAR: Final = (
    "its starts and ends are the moments at which TorchComms looked at the GPU (every second on NCCL, and at each "
    "call), so only calls and their order are taken from them: use them for hangs, not to find who is slow"
)
NOTE_RUNNING: Final = (
    "the job seems to run still: {count} calls that had not ended are left out, and no hang is looked for"
)
NOTE_OPEN: Final = "{count} calls never ended: a job that was stopped in its midst looks like one that hangs"
NOTE_NAMES: Final = "no communicator holds all ranks: the files' names tell the ranks"
NOTE_MISSING: Final = "logs of {count} of {all} ranks are not here: what those did is not known"
NOTE_BACKWARDS: Final = "clocks were put back {count} times while the logs were written: times from there on shift"


@dataclass(slots=True)
class Log:
    """One file: its parser, and all calls as numbers."""

    parser: LogParser = field(default_factory=LogParser)
    names: dict[str, int] = field(default_factory=dict)
    packed: bytearray = field(default_factory=bytearray)
    newest_ended: dict[str, int] = field(default_factory=dict)  # number of that collective, by communicator

    def __len__(self) -> int:
        return len(self.packed) // _CALL.size

    def add(self, call: Call) -> None:
        """Add a call."""
        name, *values, start_ms, end_ms = call
        code = self.names.setdefault(name, len(self.names))
        self.packed += _CALL.pack(code, *values, *(UNKNOWN if one is None else one for one in (start_ms, end_ms)))
        if end_ms is not None and call.operator not in P2P:
            self.newest_ended[name] = max(self.newest_ended.get(name, -1), call.number)

    def __iter__(self) -> Iterator[Call]:
        names = list(self.names)
        for code, *values, start, end in _CALL.iter_unpack(self.packed):
            yield Call(names[code], *values, *(None if one == UNKNOWN else one for one in (start, end)))


def read_log(lines: Iterable[bytes], calls_before: int = 0) -> Log:
    """Read a whole log; calls that have not ended come last.

    `calls_before`: calls of the job's other logs that were read already: they count towards `MOST_CALLS` too. Raises
    InputError if it is none, or holds more calls than the job may have.
    """
    log = Log()
    for line in lines:
        call = log.parser.parse(line)
        if log.parser.calls + calls_before > MOST_CALLS:
            raise InputError(f"calls of all ranks together must be at most {MOST_CALLS}; got more")
        if call is not None:
            log.add(call)
    if log.parser.base_ms is None:
        raise InputError("must begin with V|1|base_timestamp=…, as clog does; got no line")
    for call in log.parser.open_calls():
        log.add(call)
    return log


def job_of_logs(
    logs: Mapping[str, Log], named: Mapping[str, int | None], job: str, now_ms: int | None = None
) -> ImportedJob:
    """Join the logs of a job.

    `named`: the rank in each file's name. `now_ms`: when the logs were read, ms since the epoch: from a job that
    still writes them calls without an end are left out. None: it is over. Raises InputError if there is nothing in
    them that can be judged, or the ranks are not known.
    """
    parsers = {name: log.parser for name, log in logs.items()}
    _require_ends(parsers)
    ranks = ranks_of_logs(parsers, named)
    skipped: Counter[str] = Counter()
    groups = groups_of_job(parsers, ranks)
    known = {group for own in groups.values() for group in own.values() if group is not None}
    communicators = communicators_of(known, ranks.world_size)
    rows: dict[int, RankRows] = {}
    trusted = TimeCounts.of_all(parser.times for parser in parsers.values()).trusted()
    standing = given_up(parsers, groups, {name: log.newest_ended for name, log in logs.items()})
    # Where clocks are far apart, the job counts as over.
    newest_ms = max(parser.newest_ms for parser in parsers.values())
    is_going_on = now_ms is not None and abs(now_ms - newest_ms) <= RUNNING_MS
    open_calls = 0

    def opened(log: Log, standing: Set[Collective]) -> Iterator[Call]:
        """Yield the calls, without ends that mean nothing; of a job that goes on, those without one are left out."""
        nonlocal open_calls
        for call in log:
            is_given_up = call.operator not in _MAY_END_ALONE and (call.communicator, call.number) in standing
            if call.end_ms is not None and not is_given_up:
                yield call
                continue
            open_calls += 1
            if not is_going_on:
                yield call._replace(end_ms=None)

    for name, log in logs.items():
        rows[ranks.of[name]] = made = RankRows()
        calls = opened(log, standing.get(name, frozenset()))
        add_calls(made, calls, trusted, groups[name], communicators, skipped)
    for parser in parsers.values():
        skipped.update(parser.skipped)
    return ImportedJob(
        job=job, world_size=ranks.world_size, clock="per_host",
        communicators=communicators.values(), ranks=dict(sorted(rows.items())),
        places={ranks.of[name]: RankLocation(lost_rows=parser.lost) for name, parser in parsers.items()},
        notes=_notes(parsers, ranks, trusted, open_calls, is_going_on=is_going_on), skipped=dict(skipped),
    )  # fmt: skip


def _require_ends(parsers: Mapping[str, LogParser]) -> None:
    calls, events = (sum(getattr(one, name) for one in parsers.values()) for name in ("calls", "events"))
    if calls and not events:
        raise InputError(f"logs must hold starts and ends (S and E lines); got {calls} calls alone: make clog with "
                         "events=['LIFECYCLE']")  # fmt: skip
    if not calls:
        found = sum((parser.skipped for parser in parsers.values()), Counter[str]())
        told = ", ".join(f"{count} {reason}" for reason, count in found.items())
        raise InputError(f"logs must hold calls of operators (Q lines); got {told or 'none'}")


def groups_of_job(parsers: Mapping[str, LogParser], ranks: Ranks) -> dict[str, dict[str, ProcessGroup | None]]:
    """Communicators of each log, by the names that it gives them."""
    # Of those that were made apart, only those of which all logs are here
    whole = {}
    for (text, size), found in _joined(parsers).items():
        in_order = sorted((comm_rank, ranks.of[name]) for name, comm_rank in found.items())
        if [comm_rank for comm_rank, _ in in_order] == list(range(size)):
            whole[text, size] = tuple(rank for _, rank in in_order)
    return {
        name: groups_of_log(parser.members, parser.splits, ranks.of[name], ranks.world_size, whole)
        for name, parser in parsers.items()
    }


def add_calls(
    rows: RankRows,
    calls: Iterable[Call],
    trusted: str,
    groups: Mapping[str, ProcessGroup | None],
    communicators: Mapping[ProcessGroup, Communicator],
    skipped: Counter[str],
) -> None:
    """Add the calls of one log as rows; `trusted` as `TimeCounts.trusted` returns it."""
    for call in calls:
        group = groups.get(call.communicator)
        if group is None:
            skipped[SHARED_NAME if call.communicator in groups else UNTOLD] += 1
            continue
        peer = UNKNOWN
        if call.operator in P2P:
            if call.peer >= len(group.ranks):
                rows.unusable += 1
                continue
            peer = group.ranks[call.peer]
        # Whole milliseconds, from which the judgement reads how coarse they are.
        is_call = call.start_ms is None or trusted == UNCLEAR or (trusted == CALL and not call.is_async)
        start_ms = call.called_ms if is_call or call.start_ms is None else call.start_ms
        elapsed_ns = np.nan if call.end_ms is None else float((call.end_ms - start_ms) * _MS_NS)
        iteration = UNKNOWN
        if trusted == UNCLEAR:
            iteration, elapsed_ns = ITERATION, np.nan if call.end_ms is None else ENDED_NS
        id, start_ns = communicators[group].id, start_ms * _MS_NS
        rows.add(id, call.operator, call.number % SEQUENCES, peer, start_ns, elapsed_ns, call.size_bytes, iteration)


def _notes(
    parsers: Mapping[str, LogParser], ranks: Ranks, trusted: str, open_calls: int, *, is_going_on: bool
) -> list[str]:
    missing, backwards = ranks.world_size - len(parsers), sum(parser.backwards for parser in parsers.values())
    notes = {
        NOTE_NO_ITERATIONS: True, NOTE_MS: trusted != UNCLEAR, NOTE_CALLS: trusted == CALL,
        NOTE_UNCLEAR: trusted == UNCLEAR, NOTE_NAMES: ranks.root is None,
        NOTE_MISSING.format(count=missing, all=ranks.world_size): missing,
        NOTE_BACKWARDS.format(count=backwards): backwards,
        (NOTE_RUNNING if is_going_on else NOTE_OPEN).format(count=open_calls): open_calls,
    }  # fmt: skip
    return [note for note, is_so in notes.items() if is_so]


class LiveClog:
    """Lines of the ranks of a node, as rows.

    `job`, `world_size`: the job. A log's rank in the communicator of that size that it names first is its global
    rank. None: the first that it names at all.
    """

    def __init__(self, job: str, world_size: int | None) -> None:
        self._job, self._world_size = job, world_size
        self._parsers: dict[str, LogParser] = {}
        self._earlier: set[str] = set()  # files of ranks that write another one by now
        self._times_of_earlier = TimeCounts()
        self._calls: dict[str, list[Call]] = {}
        self._left_out: Counter[str] = Counter()

    def add(self, file: str, line: bytes) -> None:
        """Take in a line of a file; InputError as `LogParser.parse` does."""
        if file in self._earlier:
            self._left_out["lines of earlier logs of a rank"] += 1
            return
        parser = self._parsers.get(file)
        if parser is None:
            parser = self._parsers[file] = LogParser(skips_foreign=True)
        call = parser.parse(line)
        if call is not None:
            self._calls.setdefault(file, []).append(call)

    def refuse(self, file: str) -> None:
        """Expect no more lines of a file: it keeps its rank and its communicators."""
        if file in self._parsers:
            self._parsers[file].drop_calls()

    def job(self) -> ImportedJob | None:
        """Return the calls that ended as rows of a job; None if there are none."""
        ranks = self._ranks()
        groups = groups_of_job({file: one for file, one in self._parsers.items() if file in ranks.of}, ranks)
        made = {group for own in groups.values() for group in own.values() if group is not None}
        communicators = communicators_of(made, ranks.world_size, is_whole=False)
        rows: dict[int, RankRows] = {}
        trusted = self._counts(self._parsers).trusted()
        for file, calls in self._calls.items():
            if trusted == UNCLEAR:
                self._left_out[UNTIMED] += len(calls)
            elif file in ranks.of:
                own = rows.setdefault(ranks.of[file], RankRows())
                add_calls(own, calls, trusted, groups[file], communicators, self._left_out)
            else:
                self._left_out["calls of ranks that were not told yet, or of their earlier logs"] += len(calls)
        # A rank of which all rows are unusable stays, so that the reader can count them.
        rows = {rank: own for rank, own in rows.items() if len(own) or own.unusable}
        if not rows:
            return None
        return ImportedJob(self._job, ranks.world_size, "per_host", communicators.values(), rows)

    def skipped(self) -> Counter[str]:
        """Count unusable lines and calls that are missing, by reason."""
        skipped = sum((parser.skipped for parser in self._parsers.values()), Counter[str]()) + self._left_out
        lost = sum(parser.lost for parser in self._parsers.values())
        skipped.update({"calls whose lines are missing": lost} if lost else {})
        return skipped

    def end_reading(self, files: Container[str]) -> None:
        """Forget the rows of this reading, and files that are not among these.

        Of two logs of one rank the earlier one is not read any more; its counts, which show the backend, stay.
        """
        newest = self._ranks()
        others = {file: one for file, one in self._parsers.items() if file not in newest.of}
        earlier = {file for file, one in others.items() if _told(one, newest.world_size) is not None}
        self._times_of_earlier = self._counts(earlier)
        kept = {file: one for file, one in self._parsers.items() if file in files and file not in earlier}
        self._parsers = dict(sorted(kept.items()))
        self._earlier = {file for file in self._earlier | earlier if file in files}
        self._calls.clear()
        self._left_out.clear()
        for parser in self._parsers.values():
            parser.skipped.clear()
            parser.lost = 0

    def _counts(self, files: Iterable[str]) -> TimeCounts:
        # A log without a start or an end (LIFECYCLE is missing) looks as if no call ever blocked.
        looks = (self._parsers[file].times for file in files if self._parsers[file].events)
        return TimeCounts.of_all([self._times_of_earlier, *looks])

    def _ranks(self) -> Ranks:
        """Return the global ranks that are known; of two logs of one rank the one that was begun last counts.

        If the size of the job was not given, it is that of the first communicator of the oldest log.
        """
        in_order = sorted(self._parsers.items(), key=lambda one: (one[1].base_ms or 0, one[0]))
        size = self._world_size or next((one.size for _, parser in in_order for one in parser.members), 1)
        # A restarted rank's log takes the place of its earlier one.
        told = ((file, _told(parser, size)) for file, parser in in_order)
        found = {one.comm_rank: file for file, one in told if one is not None}
        return Ranks({file: rank for rank, file in found.items()}, size, None)


def _told(parser: LogParser, size: int) -> Membership | None:
    """Return the membership that holds a log's global rank, in the communicator of that size; None: not yet known."""
    return next((one for one in parser.members if one.size == size), None)
