"""Lines of PyTorch's and TorchComms' watchdogs in training logs: the collective in which each rank gave up.

Nearly all reports of hangs hold nothing else. Lines of many ranks are mixed, begin with prefixes of torchrun, Slurm,
Kubernetes or Ray, and are broken where a terminal ended. A watchdog names the rank inside its process
group; the rank in the job is that of the default group's lines, or of a prefix (``[rank3]:``; Slurm's ``3:``). The
line that names the collective leaves out the group, which is told by the status that fits its number.

Lines are found by searching blocks of bytes, so that a log of gigabytes takes seconds.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Final, NamedTuple

import numpy as np

from irregulars.errors import InputError
from irregulars.grouping import grouped
from irregulars.messages.records import OPERATOR_CODES, P2P, RECV, UNKNOWN, UNTOLD_CALLS
from irregulars.producers.importers.flight_recorder import UNKNOWN_OPERATOR, Dump, Entry, PackedEntries
from irregulars.producers.importers.groups import MAX_RANKS, ProcessGroup, operator_of
from irregulars.producers.importers.megatron import MegatronLog
from irregulars.producers.importers.nccl_log import NcclLog
from irregulars.producers.trace.foreign_files import BREAKS, LOG_SIGNS

_BLOCK_BYTES: Final = 8 << 20
_LONGEST_LINE: Final = 64 << 10  # bytes kept of a line that a block's end cuts
_MOST_LINES: Final = 1_000_000  # of watchdogs in all logs together: a rank writes some ten
_DEFAULT: Final = "0"  # name of the default process group
_UNTOLD: Final = ""  # stands for the group of lines that name none, until it is known

# The rank in its group, and the group: [Rank 0] (which names no group), [PG 1 Rank 0], [PG 0 (default_pg) Rank 0],
# [PG ID 2 PG GUID 9(tp) Rank 4]
_WHO: Final = re.compile(
    rb"\[(?:PG\s*+(?:ID\s*+)?(\d{1,9})\s*+(?:PG\s*+GUID\s*+([^\s(\]]{0,200})\s*+)?(?:\(([^)\]]{0,200})\)\s*+)?)?"
    rb"Rank\s*+(\d{1,9})\]"
)
_LONGEST_MESSAGE: Final = 4096  # bytes behind the rank that are searched: a status of the newest PyTorch takes 700
# Messages are compared without blanks and line ends, as a terminal of some width breaks them anywhere.
_BLANKS: Final = b" \t\r\n"
_COLOURS: Final = re.compile(rb"\x1b\[[\d;]*[A-Za-z]")
# Numbers have as many digits as 64 bits can hold at most: a longer one is no watchdog's, and no float holds it.
_WORK: Final = re.compile(
    rb"(?:[Ww]atchdogcaughtcollectiveoperationtimeout:|^Work)Work\w*?\((?:SeqNum=(\d{1,18}),)?OpType=(\w+),"
    rb"(?:NumelIn=(\d{1,20}),NumelOut=(\d{1,20}),)?(?:TensorShape=\[([\d,]*)\],)?"
)
_STATUS: Final = re.compile(
    rb"(?:at[A-Z]{0,5}work(?:sequenceid)?:(\d{1,18})(?!\d).{0,40}?)?[Ll]astenqueued[A-Z]{0,5}work:(-?\d{1,18}),"
    rb"(?:laststarted[A-Z]{0,5}work:[^,]{1,60},)?lastcompleted[A-Z]{0,5}work:(-?\d{1,18})(?!\d)"
)
_REPEATED: Final = re.compile(rb"\[repeated (\d{1,6})x across cluster\]")  # Ray's, of equal lines that it leaves out
_WORDS: Final = (b"work:", b"timeout:", b"timedout")  # of which each message that is read has one
_PASSED_BY: Final = re.compile(rb"Ranks?\s+(\d{1,9}(?:,\s?\d{1,9})*+)\s+failed\s+to\s+pass\s+monitoredBarrier")
_REACHED: Final = re.compile(rb"Rank (\d{1,9}) successfully reached monitoredBarrier")
_FINGERPRINT: Final = (
    rb"Rank (\d{1,9}) is running (?:inconsistent )?collective: CollectiveFingerPrint\("
    rb"(?:SequenceNumber=(\d{1,19}),? ?)?OpType=(\w{1,40})(?:, ?TensorShape=\[([\d, ]{0,200})\])?"
)
_DIFFERS: Final = re.compile(
    rb"Detected mismatch between collectives on ranks\. "
    + _FINGERPRINT
    + rb"(?:[^\n]{0,600}?but "
    + _FINGERPRINT
    + rb")?"
)
_RANKS: Final = rb"\[(\d{1,9}(?:, ?\d{1,9})*+)\]"
_DESYNC: Final = re.compile(
    _RANKS + rb" (?:joined but didn't finish collective #(\d{1,18})|finished collective #(\d{1,18}), but didn't join)"
    rb"|ranks " + _RANKS + rb" are the lagging ranks that caused this timeout"
    rb"|#(\d{1,18}) (?:started|finished) ranks:|" + _RANKS + rb" (?:started|(finished)) ([A-Z_]{1,40})"
)
_TORCHCOMMS: Final = re.compile(
    rb"\[TC\]\[rank=(\d{1,9})\]\[name=([^\]\n]{0,200})\] (Operation timed out|[Aa]borting process due to)"
)
_HCCL: Final = re.compile(
    rb"EI0002[^\n]{0,400}?tag\[([A-Za-z]+)[^\n]{0,600}?group:\[([^\]\n]{1,200})\][^\n]{0,200}?rankSize\[(\d{1,9})\],"
    rb" ?rankId\[(\d{1,9})"
)
_HCCL_RANK: Final = re.compile(rb"RankID:(\d{1,9})")
# Errors of other libraries, those for which a watchdog itself gives up (the GPU broke, or a call into CUDA hangs), a
# launcher's words on a process that ended, and a rank's exception, but for those of waiting
_ERROR: Final = re.compile(
    rb"(?:gloo/transport/|EI00\d\d:|Last error: ?\r?\n?|[Ww]atchdog timeout \("
    rb"|Timed out after \d{1,9} seconds waiting for clients|client socket has timed out"
    rb"|srun: error: \S{1,253}: tasks? [\d,-]{1,80}: (?:Killed|Out Of Memory|Segmentation fault|Bus error|Exited)"
    rb"|\[rank\d{1,9}\]: (?:\w{1,60}\.){0,4}(?!Dist|nccl)\w{0,60}(?:Error|Exception): "
    rb"|\[rank: \d{1,9}\] Child process with PID \d{1,9} terminated with code "
    rb"|(?:\[rank\d{1,9}\]:[^\n]{0,90}?)?\[[^\n\]]{0,80}Rank \d{1,9}\] [^\n]{0,60}"
    rb"(?:exception: (?:CUDA|HIP) error: |watchdog got stuck for ))[^\n]{0,300}"
)
# torchrun's report of the process that ended first. By a signal that neither PyTorch (6) nor torchrun (15) sends it
# has died by itself, and is waited for.
_DIED: Final = re.compile(
    rb"first observed failure[\s\S]{0,600}? host +: (\S{1,253})[^\n]{0,40}\n"
    rb"[^\n]{0,120}? rank +: (\d{1,9}) [^\n]{0,40}\n[^\n]{0,120}? exitcode +: -(4|7|8|9|11) "
)
# A rank waits for the communicator that rank 0 of its group makes, for all to join, or for a message over gloo. No
# number is told.
_WAITS: Final = re.compile(
    rb"\[(\d{1,9})\] is setting up \w{0,4}CL communicator|in store based barrier on rank: (\d{1,9})"
    rb"|gloo/transport/[^\n]{0,99}Timed out waiting \d{1,12}ms for (?:send|recv) operation"
)
# Ray's, of a line of an actor. Numbers in its name count actors of one kind.
_ACTOR: Final = re.compile(rb"\(([A-Za-z_]\w{0,99}) pid=\d{1,9}[^)\n]{0,300}\)")
# Slurm's of the tasks that ended first: once a task has ended it kills the others.
_ENDED: Final = re.compile(
    rb"srun: error: \S{1,253}: tasks? (\d{1,7}(?:-\d{1,7})?(?:,\d{1,7}(?:-\d{1,7})?)*+): "
    rb"(Killed|Out Of|Segmentation|Bus|Illegal|Floating)?"
)
_DIGITS: Final = re.compile(rb"\d+")
_LABEL: Final = re.compile(rb"\s{0,6}(\d{1,6}): ")  # Slurm's, of a line of a task
_PREFIX: Final = re.compile(rb"\[rank(\d{1,9})\]:?|^\s*(\d{1,6}): |^\[\d+,(\d{1,9})\]<std")
# Counters of two groups come as close as this share of themselves once in a hundred times, if nothing ties them.
_BY_CHANCE: Final = 0.01
_AGAIN: Final = b"will restart worker group"  # torchrun's words between two starts of a job
# The last two are Lightning's and Accelerate's.
_WORLD: Final = re.compile(
    rb"(?i)(?:world[_ ]?size\W{1,4}|_RANK: \d{1,7}, MEMBER: \d{1,7}/|Num processes: )(\d{1,7})"
)
_WORLD_SIGNS: Final = (b"orld", b"ORLD", b", MEMBER: ", b"Num processes: ")


class _Call(NamedTuple):
    """A collective that timed out."""

    operator: int
    elements: float = np.nan
    group_size: int = 0  # by its numbers of elements in and out; 0: not known


_MOST_WITHOUT: Final = 8  # logs without a line that are taken for ranks that wait nowhere: those of a host


@dataclass(slots=True)
class _Process:
    """One rank's lines about one group."""

    open: dict[int, _Call] = field(default_factory=dict)  # by number
    completed: int | None = None  # number of the last collective that ended; -1: none has
    enqueued: int | None = None
    failed: set[int] = field(default_factory=set)  # numbers at which the watchdog found it

    def may_stand_in(self, number: int) -> bool:
        """Whether it has enqueued a collective and not completed it."""
        return self.completed is not None and self.completed < number <= (self.enqueued or 0)

    @property
    def is_open(self) -> bool:
        return bool(self.open) or (self.enqueued or 0) > max(self.completed or 0, 0)

    @property
    def stands_in(self) -> int:
        """Number of its oldest collective that has not ended, as far as the lines show it; 0: none."""
        past = max(self.completed or 0, 0)
        return min((number for number in self.open if number > past), default=past)

    def add(self, other: _Process) -> None:
        self.open |= other.open
        self.failed |= other.failed
        if other.completed is not None:
            self.completed, self.enqueued = other.completed, other.enqueued


@dataclass(slots=True)
class _Start:
    """Lines about one start of the job; where the job is started anew, another one takes its place."""

    of: dict[tuple[int, str], _Process] = field(default_factory=dict)  # by rank in the job, and group
    in_group: dict[str, dict[int, int]] = field(default_factory=dict)  # ranks in the job by rank in the group
    # Names that several groups have: PyTorch 2.3 told the number of the group among those of the process
    ambiguous: set[str] = field(default_factory=set)
    heard: set[int] = field(default_factory=set)  # ranks with lines of their own
    killed: set[range] = field(default_factory=set)  # tasks of Slurm that ended first, by a signal
    labels: set[tuple[int, int]] = field(default_factory=set)  # tasks of Slurm, with the rank of one of their lines
    has_ended: bool = False  # any task of Slurm
    died: list[str] = field(default_factory=list)  # the processes that ended first
    left_out: int = 0  # lines of other ranks that are equal to one of a timeout, at most
    error: str = ""  # the first that names no collective
    size: int = 0  # ranks of the job; 0: not told
    is_size_of_earlier: bool = False  # an earlier start in the same log told it: it counts until this one does

    def add(self, other: _Start) -> None:
        for key, process in other.of.items():
            self.of.setdefault(key, _Process()).add(process)
        self.ambiguous |= other.ambiguous
        for group, ranks in other.in_group.items():
            for inside, rank in ranks.items():
                self.place(group, inside, rank)
        self.heard |= other.heard
        self.killed |= other.killed
        self.labels |= other.labels
        self.died += other.died
        self.left_out = max(self.left_out, other.left_out)
        self.error, self.size = self.error or other.error, max(self.size, other.size)

    def place(self, group: str, inside: int, rank: int) -> None:
        """Add a member of a group: its ranks in there and in the job."""
        if self.in_group.setdefault(group, {}).setdefault(inside, rank) != rank:
            self.ambiguous.add(group)


class WatchdogLog:
    """The lines of watchdogs of all logs of one job."""

    def __init__(self) -> None:
        self.skipped: Counter[str] = Counter()
        self.reports = MegatronLog()
        self.nccl = NcclLog()
        self._lines = 0
        # By the actor of Ray that wrote the lines: the newest start in the log that is read, and all logs together
        self._starts, self._wholes = dict[str, _Start](), dict[str, _Start]()
        self._start = _Start()  # the one that is read
        self._chosen: _Start | None = None
        self._described: dict[str, str] = {}
        self._sizes: dict[str, int] = {}  # ranks of a group, by the elements in and out of its collectives
        self._other_jobs: tuple[str, ...] = ()
        self._is_size_told = True
        self._named: dict[frozenset[int], set[int]] = {}  # numbers in names of logs, by the ranks with lines there

    @property
    def world_size(self) -> int:
        """Number of ranks of the job, as far as the logs tell it."""
        return self._whole.size

    def read(self, stream: IO[bytes], named: int | None = None) -> str | None:
        """Read one log, in blocks that end with a line; return the error at which it breaks off, None: it does not.

        Its lines before that count. `named`: the number in its name, which may be a rank. Raises InputError if there
        are too many lines of watchdogs.
        """
        rest = b""
        self._starts, self._chosen = {}, None
        self.nccl.begin_file()
        self.reports.begin_file()
        try:
            while block := stream.read(_BLOCK_BYTES):
                block = rest + block
                past = block.rfind(b"\n") + 1
                rest = block[past:][-_LONGEST_LINE:]
                self._read(block[:past])
            self._read(rest)
        except BREAKS as error:  # `rest` is then the part of a line, and may end within a number
            return str(error)
        finally:  # the ranks of a log with too many lines are kept, as its groups are
            for actor, start in self._starts.items():
                self._wholes.setdefault(actor, _Start()).add(start)
            if named is not None:
                heard = frozenset[int]().union(*(start.heard for start in self._starts.values()))
                self._named.setdefault(heard, set()).add(named)
        return None

    def _read(self, block: bytes) -> None:
        if b"\x1b" in block:
            block = _COLOURS.sub(b"", block)
        # Only the newest start of the job counts: the part of the file before it is forgotten.
        *before, last = block.split(_AGAIN)
        for one in before:
            self._read_start(one)
            for actor in self._starts:
                self._start_anew(actor)
            # Not where a message shows a new start: such lines before it may be of that start.
            self.nccl.forget_file()
            self.reports.forget_file()
        self._read_start(last)

    def _start_anew(self, actor: str) -> None:
        """Forget the log so far: it is of an earlier start of the job."""
        self._start = self._starts[actor] = _Start(size=self._starts[actor].size, is_size_of_earlier=True)

    def _read_start(self, block: bytes) -> None:
        """Read a part of a log that is of one start of the job; Ray may mix lines of several jobs."""
        if b"NCCL " in block:
            self.nccl.read(block)
        is_signed = any(sign in block for sign in LOG_SIGNS)
        if is_signed:
            self.reports.read(block)
        for actor, part in _by_actor(block).items() if is_signed else [("", block)]:
            self._start = self._starts.setdefault(actor, _Start())
            self._read_job(part, actor, is_signed=is_signed)

    def _read_job(self, block: bytes, actor: str, *, is_signed: bool) -> None:
        if is_signed:  # before all others: messages may show that the job was started anew
            self._read_messages(block, actor)
        start = self._start
        if any(sign in block for sign in _WORLD_SIGNS):
            sizes = [size for found in _WORLD.finditer(block[: 4 << 20]) if (size := int(found[1])) < MAX_RANKS]
            if sizes:
                start.size = max(0 if start.is_size_of_earlier else start.size, *sizes)
                start.is_size_of_earlier = False
        if not is_signed:
            return
        if not start.error and (error := _ERROR.search(block)):
            start.error = " ".join(error[0].decode(errors="replace").split())
        for found in _DIED.finditer(block):
            self._hear(int(found[2]))
            host, signal = found[1].decode(errors="replace"), int(found[3])
            start.died.append(f"rank {int(found[2])} on {host}, by signal {signal}")
        if not start.has_ended and (ended := _ENDED.search(block)):
            start.has_ended = True
            if ended[2]:  # by a signal that neither PyTorch nor Slurm sends first
                for first, _, last in (part.partition(b"-") for part in ended[1].split(b",")):
                    start.killed.add(range(int(first), self._bounded(int(last or first)) + 1))
        for found in _WAITS.finditer(block):
            prefix = _prefix(block, found.start())
            if rank := (prefix and prefix[1]) or found[1] or found[2]:
                self._process(int(rank), _UNTOLD).open.setdefault(UNTOLD_CALLS.start, _Call(UNKNOWN_OPERATOR))
        for found in _REACHED.finditer(block):
            self._process(int(found[1]), _BARRIERS).open[_UNNUMBERED_CALL] = _Call(_BARRIER)
        for found in _PASSED_BY.finditer(block):
            prefix = _prefix(block, found.start())
            if prefix and prefix[1] and int(prefix[1]):  # rank 0 of another group, in which the ranks count
                continue
            self._process(0, _BARRIERS).open[_UNNUMBERED_CALL] = _Call(_BARRIER)  # who asks all others
            for rank in map(int, found[1].split(b",")):
                self._process(rank, _BARRIERS)
        for found in _DIFFERS.finditer(block):
            self._add_fingerprints(found)
        self._read_desync(block)
        for found in _TORCHCOMMS.finditer(block):
            self._hear(int(found[1]))
            if found[3].startswith(b"Operation"):
                name = found[2].decode(errors="replace")
                self._described[name] = name
                self._process(int(found[1]), name).open[UNTOLD_CALLS.start] = _Call(UNKNOWN_OPERATOR)
        for found in _HCCL.finditer(block):
            before = block[max(found.start() - 600, 0) : found.start()]
            named = _HCCL_RANK.findall(before) or [one[0] for one in _PREFIX.findall(before) if one[0]]
            operator = operator_of(found[1].decode())
            if named and operator is not None and operator not in P2P:
                group, inside = found[2].decode(errors="replace"), int(found[4])
                self._process(int(named[-1]), group).open[_UNNUMBERED_CALL] = _Call(operator)
                self._described[group] = group
                self._sizes[group] = self._bounded(int(found[3]))
                self._start.place(group, inside, int(named[-1]))

    def _read_messages(self, block: bytes, actor: str) -> None:
        """Read the messages that begin with a rank: each reaches to the next one."""
        whos = list(_WHO.finditer(block))
        by: re.Match[bytes] | None = None  # a message that quotes the next one
        for at, found in enumerate(whos):
            past = whos[at + 1].start() if at + 1 < len(whos) else len(block)
            text = block[found.end() : min(past, found.end() + _LONGEST_MESSAGE)].translate(None, _BLANKS)
            named = found if found[1] or by is None else by
            by = found if text.endswith(b"exception:") else None
            if not any(word in text for word in _WORDS):
                continue
            if work := _WORK.search(text):
                self._add_work(self._process_of(block, named), work)
                past = block.find(b"\n", found.end())
                if repeated := _REPEATED.search(block, found.end(), past if past >= 0 else len(block)):
                    self._start.left_out = max(self._start.left_out, int(repeated[1]) - 1)
            if status := _STATUS.search(text):
                process = self._process_of(block, named)
                enqueued, completed = int(status[2]), int(status[3])
                if named[1] and process.completed is not None and completed < process.completed:
                    # It counts from the beginning again: the job was started anew
                    self._start_anew(actor)
                    process = self._process_of(block, named)
                process.enqueued = enqueued
                # PyTorch 2.3 began with any number, which stays until a collective has ended.
                process.completed = completed if completed <= max(enqueued, 0) else None
                process.failed |= {int(status[1])} if status[1] else set()
            elif b"operationshavefailedortimedout" in text:  # it waits somewhere, as all say it
                self._process_of(block, named).open.setdefault(UNTOLD_CALLS.start, _Call(UNKNOWN_OPERATOR))

    def _add_work(self, process: _Process, found: re.Match[bytes]) -> None:
        name = found[2].decode()
        taken, given = (_elements(one, None) for one in (found[3], found[4]))
        operator = operator_of(name)
        if operator is None and "COALESCED" in name and taken == taken:  # its sizes show the operator
            word = "all_gather" if given > taken else "reduce_scatter" if given < taken else "all_reduce"
            operator = OPERATOR_CODES[word]
        if operator is None:
            self.skipped[f"timeouts of {name[:40]}, which says neither peer nor operator"] += 1
            return
        number = _UNNUMBERED_CALL if found[1] is None else int(found[1])
        # One side of these operators holds as many times the other's elements as the group has ranks.
        least, most = sorted((taken, given))
        is_of_all = operator in _GATHERING and least > 0 and most % least == 0
        elements = taken if found[3] else _elements(None, found[5])
        process.open[number] = _Call(operator, elements, min(int(most / least), MAX_RANKS) if is_of_all else 0)

    def _add_fingerprints(self, found: re.Match[bytes]) -> None:
        """Add the calls that ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` compared: of two ranks, or a rank's own."""
        numbers = {int(one) for one in (found[2], found[6]) if one}
        # The ranks are in different calls, so that their operators can't be compared: the mismatch is only reported.
        if len(numbers) > 1:
            text = " and ".join(f"rank {int(found[at])} in its call {int(found[at + 1])}" for at in (1, 5))
            self.skipped[f"mismatch that PyTorch itself found: {text}"] += 1
            for who in (found[1], found[5]):
                self._hear(int(who))
            return
        number = min(numbers, default=0)
        for who, name, shape in ((found[1], found[3], found[4]), (found[5], found[7], found[8])):
            operator = operator_of(name.decode()) if name else None
            if operator is not None and operator not in P2P:
                self._process(int(who), _DEFAULT).open[number] = _Call(operator, _elements(None, shape))

    def _read_desync(self, block: bytes) -> None:
        """Read PyTorch's report of the collectives that each rank of a group began and ended last.

        It names ranks inside the group whose watchdog wrote it.
        """
        number, whos = 0, list[re.Match[bytes]]()
        for found in _DESYNC.finditer(block):
            number = int(found[5]) if found[5] else number
            whos = whos or list(_WHO.finditer(block))
            before = bisect_left(whos, found.start(), key=lambda one: one.start())
            group = (self._group_of(whos[before - 1]) if before else "") or _DEFAULT
            for inside in map(int, (found[1] or found[4] or found[6] or b"").split(b",") if not found[5] else ()):
                rank = inside if group == _DEFAULT else self._start.in_group.get(group, {}).get(inside)
                if rank is None:
                    self.skipped["ranks of a group in a report of PyTorch, whose rank in the job is not told"] += 1
                    continue
                process = self._process(rank, group)
                operator = operator_of(found[8].decode()) if found[8] else None
                if operator is not None and operator not in P2P and not found[7]:
                    process.open[number] = _Call(operator)
                elif found[2]:
                    process.open.setdefault(int(found[2]), _Call(UNKNOWN_OPERATOR))
                elif found[3] or found[4] or found[7]:
                    process.completed = process.enqueued = 0 if found[4] else int(found[3] or number)

    def _process_of(self, block: bytes, found: re.Match[bytes]) -> _Process:
        inside = int(found[4])
        group = self._group_of(found)
        prefix = _prefix(block, found.start())
        named = int(next(filter(None, prefix.groups()))) if prefix else None
        is_default = group == _DEFAULT
        has_torch_prefix = prefix is not None and prefix[1] is not None
        rank = inside if named is None or is_default or not (group or has_torch_prefix) else named
        self._start.place(group, inside, rank)
        if label := _LABEL.match(block, block.rfind(b"\n", 0, found.start()) + 1):
            self._start.labels.add((int(label[1]), rank))
        return self._process(rank, group)

    def _group_of(self, found: re.Match[bytes]) -> str:
        """Return the group that a message names; empty: none."""
        group = (found[2] or found[1] or b"").decode(errors="replace")[:200]
        if found[3]:
            self._described[group] = found[3].decode(errors="replace")[:200]
        return _DEFAULT if self._described.get(group) == "default_pg" else group

    def _process(self, rank: int, group: str) -> _Process:
        self._lines += 1
        if self._lines > _MOST_LINES:
            raise InputError(f"lines of watchdogs must be at most {_MOST_LINES}; got more")
        self._hear(rank)
        return self._start.of.setdefault((rank, group), _Process())

    def _hear(self, rank: int) -> None:
        self._start.heard.add(self._bounded(rank))

    def _bounded(self, rank: int) -> int:
        if rank >= MAX_RANKS:
            raise InputError(f"ranks must be below {MAX_RANKS}; got {rank}")
        return rank

    @property
    def _whole(self) -> _Start:
        """What all logs tell of one job: of several that Ray mixes, the one of which most ranks wait."""
        if self._chosen is None:
            told = {actor: len({rank for (rank, _), one in start.of.items() if one.is_open})
                    for actor, start in self._wholes.items() if start.heard}  # fmt: skip
            actor = max(told, key=lambda one: told[one], default="")
            is_one = len({*told} - {""}) < 2
            self._chosen = _Start()
            for start in self._wholes.values() if is_one else [self._wholes[actor]]:
                self._chosen.add(start)
            others = ", ".join(f"{count} of {one or 'none'} wait" for one, count in told.items() if one != actor)
            self._other_jobs = () if is_one else (f"of Ray's actors those of {actor} are judged; {others} too",)
            if self._chosen.labels and all(task == rank for task, rank in self._chosen.labels):
                past = 0  # a task is taken once, however often a line names it
                for tasks in sorted(self._chosen.killed, key=lambda one: one.start):
                    self._chosen.heard.update(range(max(tasks.start, past), tasks.stop))
                    past = max(past, tasks.stop)
        return self._chosen

    def _settle(self) -> None:
        """Find the group of lines that name none: the one whose status fits the number, else the default one.

        A collective that is left was entered by all, so that ranks of one group that call the same stand at most one
        apart. Lines further apart are of several groups, unless their numbers are too close for a chance.
        """
        of = self._whole.of
        told = grouped((rank, process) for (rank, group), process in of.items() if group != _UNTOLD)
        heads: dict[int, set[int]] = {}  # ranks by the number in which they stand
        for rank in [rank for rank, group in of if group == _UNTOLD]:
            untold = of[rank, _UNTOLD]
            own = told.get(rank, ())
            if own or len(untold.open) > 1:
                untold.open.pop(UNTOLD_CALLS.start, None)
            for number in list(untold.open):
                fits = [one for one in own if number in one.failed]
                fits = fits or [one for one in own if one.may_stand_in(number)]
                if len(fits) == 1:
                    fits[0].open.setdefault(number, untold.open[number])
                if fits:  # where several do, the status of each says that it stands there
                    del untold.open[number]
            if untold.open or untold.completed is not None:
                heads.setdefault(untold.stands_in, set()).add(rank)
            else:
                del of[rank, _UNTOLD]
        of_default = {one.stands_in for (_, group), one in of.items() if group == _DEFAULT}
        parts: list[list[int]] = []
        for number in sorted({*heads, *of_default}):
            if not parts or number - parts[-1][-1] > max(1, _BY_CHANCE * number):
                parts.append([])
            parts[-1].append(number)
        for count, part in enumerate(parts):
            is_default = len(parts) == 1 or not of_default.isdisjoint(part)
            for rank in (rank for number in part for rank in heads.get(number, ())):
                process = of.pop((rank, _UNTOLD))
                group = _DEFAULT if is_default else f"not-told-{count}"
                of.setdefault((rank, group), process).open.update(process.open)

    @property
    def notes(self) -> tuple[str, ...]:
        """Errors of the libraries that name no rank, and limits of the lines, a sentence each."""
        error = (f"the log says: {self._whole.error}",) if self._whole.error else ()
        died = (f"torchrun saw this one end first: {self._whole.died[-1]}",) if self._whole.died else ()
        left_out = (NOTE_REPEATED,) if self._whole.left_out else ()
        elements = (NOTE_ELEMENTS,) if self._whole.of else ()
        untold = () if self._is_size_told else (NOTE_SIZE,)
        limits = (*untold, *elements)
        return (*self._other_jobs, *self.reports.replays, *left_out, *died, *self.nccl.notes, *error, *limits)

    def dumps(self, known: Iterable[ProcessGroup] = ()) -> list[Dump]:
        """Return all that is known as dumps, one for each rank with lines of its own.

        `known`: groups of the job by another source, which knows all of their ranks.
        """
        known = tuple(known)
        self._settle()
        # Where each log with lines is named after its rank, one without is of a rank that waits nowhere.
        is_named = len(self._named) > 2 and all(own == names for own, names in self._named.items() if own)
        logs = sum(map(len, self._named.values()))
        without = {rank for rank in self._named.get(frozenset(), ()) if is_named and rank < logs}
        # Of more, most were ended before their watchdog fired.
        heard = self._whole.heard | (without if len(without) <= _MOST_WITHOUT else set())
        if not self._whole.heard:  # by NCCL's calls, unless dumps hold them already
            return [] if known else self.nccl.dumps()
        by_name = {group.name: group for group in known}
        of: dict[str, dict[int, _Process]] = {}
        for (rank, name), process in self._whole.of.items():
            of.setdefault(name, {})[rank] = process
        for name in self._whole.ambiguous & of.keys() - {_DEFAULT, *by_name}:
            of |= {_lone(name, rank): {rank: process} for rank, process in of.pop(name).items()}
        sizes = dict(self._sizes)
        for name, own in of.items():
            told = {call.group_size for process in own.values() for call in process.open.values()}
            sizes[name] = max(sizes.get(name, 0), *told, 0)
        ranks = heard | {rank for group in by_name.values() for rank in group.ranks}
        # Any number may follow the words "world size" in a log: one far above all ranks with lines is not believed.
        plausible = [size for size in (self.world_size, self.nccl.size) if size <= 64 * (1 + max(heard))]
        told_size = max(*plausible, sizes.get(_DEFAULT, 0), 0)
        world_size = max(1 + max(ranks), told_size)
        self._is_size_told = told_size == world_size
        # Where all ranks are known, and as many lines were left out as ranks have none, these stand where others do.
        silent, places = set(range(world_size)) - heard, {one.stands_in for one in of.get(_DEFAULT, {}).values()}
        is_known = self._is_size_told and of.keys() == {_DEFAULT} and len(places) == 1
        if is_known and len(silent) <= self._whole.left_out:
            of[_DEFAULT] |= dict.fromkeys(silent, next(iter(of[_DEFAULT].values())))
            heard = heard | silent
        groups = {}
        for name, own in (of or {_DEFAULT: {}}).items():
            inside = self._whole.in_group.get(name)
            if name == _DEFAULT:
                group = ProcessGroup(name, "default_pg", tuple(range(world_size)))
            # Members without lines are found by the distances of those with lines.
            elif inside:
                group = ProcessGroup(name, self._described.get(name, ""), _members(inside, sizes[name], told_size))
            else:
                members = range(world_size) if len(of) == 1 and name in self._described else sorted(own)
                group = ProcessGroup(name, name, tuple(members))
            groups[name] = by_name.get(name, group)
        dumps = []
        for rank in sorted(heard):
            mine = {name: own[rank] for name, own in of.items() if rank in own}
            entries = [entry for name, process in mine.items() for entry in _entries(rank, groups[name], process)]
            for name in mine:
                lone = _lone(name, rank)
                if any(entry.group == lone for entry in entries):
                    groups[lone] = ProcessGroup(lone, groups[name].description, (rank,))
            if known:  # dumps tell bytes, and these lines elements
                entries = [entry._replace(size_bytes=np.nan) for entry in entries]
            completed = {name: at for name, one in mine.items() if (at := one.completed) is not None and at >= 0}
            dumps.append(Dump(rank, groups, PackedEntries(entries), completed))
        return dumps


def _by_actor(block: bytes) -> dict[str, bytes]:
    """Part the lines by the actors of Ray that tell ranks; lines of all others are in the empty name's part.

    A block that names one such actor, or none, stays one: a driver may be a rank of its workers' job.
    """
    names = {_DIGITS.sub(b"", found[1]) for found in _ACTOR.finditer(block)} if b" pid=" in block else set[bytes]()
    parts: dict[bytes, list[bytes]] = {}
    for line in block.splitlines(keepends=True) if len(names) > 1 else ():
        found = _ACTOR.search(line, 0, 400)
        parts.setdefault(_DIGITS.sub(b"", found[1]) if found else b"", []).append(line)
    joined = {name: b"".join(lines) for name, lines in parts.items()}
    telling = [name for name, part in joined.items() if _WHO.search(part)]
    if len({*telling} - {b""}) < 2:
        return {max(telling, default=b"").decode(): block}
    return {name.decode(): part for name, part in joined.items()}


def _prefix(block: bytes, at: int) -> re.Match[bytes] | None:
    """Return where a line names a rank before a place; None: nowhere."""
    begin = block.rfind(b"\n", 0, at) + 1
    # The last one: torchrun's own [rank0] before it is a local rank
    *_, prefix = None, *_PREFIX.finditer(block[max(begin, at - 400) : at])
    return prefix


_BARRIERS: Final = "monitored_barrier"
_BARRIER: Final = OPERATOR_CODES["barrier"]
_UNNUMBERED_CALL: Final = UNTOLD_CALLS.stop  # number of a call whose number is not told
_GATHERING: Final = (OPERATOR_CODES["all_gather"], OPERATOR_CODES["reduce_scatter"])
_LENGTHS: Final = re.compile(rb"\d+")
_NO_SIZE: Final = (1 << 64) - 1  # elements of a work without tensors, as a batch of sends and recvs


def _entries(rank: int, group: ProcessGroup, process: _Process) -> Iterator[Entry]:
    """Yield the operators in which a rank waits: those that timed out, else the one after the last completed."""
    completed = -1 if process.completed is None else process.completed
    standing = {number: one for number, one in process.open.items() if number > completed}
    if not standing and process.enqueued is not None and process.enqueued > max(completed, 0):
        standing = {completed + 1 if completed > 0 else process.enqueued: _Call(UNKNOWN_OPERATOR)}
    for number, call in sorted(standing.items()):
        others = [one for one in group.ranks if one != rank]
        if call.operator not in P2P:
            yield Entry(group.name, call.operator, number, None, UNKNOWN, np.nan, call.elements)
        elif len(others) == 1:  # a watchdog names no peer: only in a group of two it is known
            ends = (others[0], rank) if call.operator == RECV else (rank, others[0])
            yield Entry(group.name, call.operator, -1, ends, UNKNOWN, np.nan, call.elements)
        else:
            yield Entry(_lone(group.name, rank), UNKNOWN_OPERATOR, number, None, UNKNOWN, np.nan, call.elements)


def _lone(group: str, rank: int) -> str:
    """Name a group of which this rank alone is known: those from or to which it waits for a message are not told."""
    return f"{group} of rank {rank}"


def _members(seen: Mapping[int, int], size: int = 0, world_size: int = 0) -> tuple[int, ...]:
    """Return the ranks of a group by those of its members that have lines, which are at equal distances.

    `size`: how many they are; 0: not told. `world_size`: those; 0: not told.

    >>> _members({0: 1, 2: 17}), _members({0: 0, 2: 2}, 4), _members({3: 7}), _members({0: 4, 2: 6})
    ((1, 9, 17), (0, 1, 2, 3), (7,), (4, 5, 6))
    """
    (first, rank), *others = sorted(seen.items())
    if not others:
        return (rank,)
    last, far = others[-1]
    step, rest = divmod(far - rank, last - first)
    is_even = not rest and step > 0 and all(rank + (at - first) * step == one for at, one in others)
    # Uneven distances: only the ranks that were seen are known.
    if not is_even or rank - first * step < 0:
        return tuple(sorted({rank, *(one for _, one in others)}))
    members = tuple(rank + (at - first) * step for at in range(max(last + 1, size)))
    return tuple(one for one in members if one < (world_size or MAX_RANKS) or one <= far)


def _elements(numel: bytes | None, shape: bytes | None) -> float:
    if numel is not None:
        return np.nan if int(numel) >= _NO_SIZE else float(numel)
    return np.nan if shape is None else math.prod(map(float, _LENGTHS.findall(shape)))


NOTE_REPEATED: Final = (
    "Ray left out equal lines of other ranks (RAY_DEDUP_LOGS=0 keeps them): one without a line may have said the same"
)
NOTE_SIZE: Final = "nothing tells how many ranks the job has: ranks above those that are known may be missing"
NOTE_ELEMENTS: Final = "a watchdog tells elements and no types: sizes are as if of one byte an element"
