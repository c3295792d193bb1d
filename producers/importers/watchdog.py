"""Lines of PyTorch's and TorchComms' watchdogs in training logs: where each rank stood when it gave up.

Nearly all reports of hangs hold nothing else. Lines of many ranks are mixed, and begin with what torchrun, Slurm,
Kubernetes or Ray put before them. A watchdog names the rank inside its process group; the rank in the job is that of
the default group's lines, or of a prefix (``[rank3]:``; Slurm's ``3:``).

Lines are found by searching blocks of bytes, so that a log of gigabytes takes seconds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Final

import numpy as np

from irregulars.errors import InputError
from irregulars.messages.records import OPERATOR_CODES, P2P, RECV, UNKNOWN, UNTOLD_CALLS
from irregulars.producers.importers.flight_recorder import UNKNOWN_OPERATOR, Dump, Entry
from irregulars.producers.importers.groups import MAX_RANKS, ProcessGroup, operator_of
from irregulars.producers.importers.megatron import MegatronLog
from irregulars.producers.trace.foreign_files import LOG_SIGNS

_BLOCK_BYTES: Final = 8 << 20
_LONGEST_LINE: Final = 64 << 10  # bytes kept of a line that a block's end cuts
_MOST_LINES: Final = 1_000_000  # of watchdogs in all logs together: a rank writes some ten
_DEFAULT: Final = "0"  # name of the default process group

# The rank in its group, and the group: [Rank 0] (always the default group's numbering, or that of the line's group),
# [PG 1 Rank 0], [PG ID 2 PG GUID 9(tp) Rank 4]
_WHO: Final = rb"\[(?:PG (?:ID )?(\d+) ?(?:PG GUID ([^\s(\]]+)(?:\(([^)\]]*)\))? ?)?)?Rank (\d+)\]"
_WORK: Final = re.compile(
    _WHO + rb"[^\n]{0,300}?[Ww]atchdog caught collective operation timeout: ?\n? ?Work\w*\(SeqNum=(\d+), "
    rb"OpType=(\w+),(?: NumelIn=(\d+), NumelOut=(\d+),)?(?: TensorShape=\[([\d, ]*)\],)?"
)
_STATUS: Final = re.compile(
    _WHO + rb"[^\n]{0,600}?[Ll]ast enqueued (?:NCCL )?work: (-?\d+)[^\n]{0,80}?last completed (?:NCCL )?work: (-?\d+)"
)
_BARRIER: Final = re.compile(rb"\[Rank (\d+)\]:? Ranks? (\d+(?:, ?\d+)*) failed to pass monitoredBarrier")
_REACHED: Final = re.compile(rb"Rank (\d+) successfully reached monitoredBarrier")
_FINGERPRINT: Final = (
    rb"Rank (\d+) is running collective: CollectiveFingerPrint\((?:SequenceNumber=(\d+), ?)?OpType=(\w+)"
    rb"(?:, ?TensorShape=\[([\d, ]*)\])?"
)
_DIFFERS: Final = re.compile(
    rb"Detected mismatch between collectives on ranks\. " + _FINGERPRINT + rb"[^\n]{0,600}?but " + _FINGERPRINT
)
_DESYNC: Final = re.compile(
    rb"- \[([\d, ]+)\] (?:joined but didn't finish collective #(\d+)|finished collective #(\d+), but didn't join)"
)
_TORCHCOMMS: Final = re.compile(rb"[Aa]borting process due to (?:timeout|error) on rank (\d+)")
_PREFIX: Final = re.compile(rb"\[rank(\d+)\]:?|^\s*(\d{1,6}): ")
_WORLD: Final = re.compile(rb"(?i)world[_ ]?size\W{1,4}(\d{1,7})")


@dataclass(slots=True)
class _Process:
    """One rank's lines about one group."""

    open: dict[int, tuple[int, float]] = field(default_factory=dict)  # operator and elements by number
    completed: int | None = None  # number of the last collective that ended; -1: none has
    enqueued: int | None = None


class WatchdogLog:
    """The lines of watchdogs of all logs of one job."""

    def __init__(self) -> None:
        self.skipped: Counter[str] = Counter()
        self._lines = 0
        self.world_size = 0  # as far as the logs tell it
        self.reports = MegatronLog()
        self._of: dict[tuple[int, str], _Process] = {}  # by rank in the job, and group
        self._described: dict[str, str] = {}
        self._in_group: dict[str, dict[int, int]] = {}  # ranks in the job by rank in the group
        self._heard: set[int] = set()

    def read(self, stream: IO[bytes]) -> None:
        """Read one log, in blocks that end with a line. InputError if there are too many lines of watchdogs."""
        rest = b""
        while block := stream.read(_BLOCK_BYTES):
            block = rest + block
            past = block.rfind(b"\n") + 1
            rest = block[past:][-_LONGEST_LINE:]
            self._read(block[:past])
        self._read(rest)

    def _read(self, block: bytes) -> None:
        if b"orld" in block or b"ORLD" in block:
            sizes = [int(found[1]) for found in _WORLD.finditer(block[: 4 << 20])]
            self.world_size = max([self.world_size, *(size for size in sizes if size < MAX_RANKS)])
        if not any(sign in block for sign in LOG_SIGNS):
            return
        self.reports.read(block)
        for found in _WORK.finditer(block):
            rank, group = self._who(block, found)
            operator = operator_of(found[6].decode())
            elements = _elements(found[7], found[9])
            if operator is None and b"COALESCED" in found[6] and found[7]:  # its sizes tell
                taken, given = float(found[7]), float(found[8])
                word = "all_gather" if given > taken else "reduce_scatter" if given < taken else "all_reduce"
                operator = OPERATOR_CODES[word]
            if operator is None:
                self.skipped[f"timeouts of {found[6].decode()[:40]}, which says neither peer nor operator"] += 1
            else:
                self._process(rank, group).open[int(found[5])] = operator, elements
        for found in _STATUS.finditer(block):
            process = self._process(*self._who(block, found))
            process.enqueued, process.completed = int(found[5]), int(found[6])
        barrier = OPERATOR_CODES["barrier"]
        for found in _BARRIER.finditer(block):
            self._process(int(found[1]), _BARRIERS).open[_BARRIER_CALL] = barrier, np.nan
            for rank in map(int, found[2].split(b",")):  # named by the rank that waited: so it did not arrive
                self._process(rank, _BARRIERS)
        for found in _REACHED.finditer(block):
            self._process(int(found[1]), _BARRIERS).open[_BARRIER_CALL] = barrier, np.nan
        for found in _DIFFERS.finditer(block):
            number = int(found[2] or found[6] or 0)
            for who, name, shape in ((found[1], found[3], found[4]), (found[5], found[7], found[8])):
                operator = operator_of(name.decode())
                if operator is not None and operator not in P2P:
                    self._process(int(who), _DEFAULT).open[number] = operator, _elements(None, shape)
        for found in _DESYNC.finditer(block):
            for rank in map(int, found[1].split(b",")):
                process = self._process(rank, _DEFAULT)
                if found[2]:
                    process.open.setdefault(int(found[2]), (UNKNOWN_OPERATOR, np.nan))
                else:
                    process.completed = process.enqueued = int(found[3])
        for found in _TORCHCOMMS.finditer(block):
            self._heard.add(self._bounded(int(found[1])))

    def _who(self, block: bytes, found: re.Match[bytes]) -> tuple[int, str]:
        """Return rank in the job and group of a line."""
        inside = int(found[4])
        group = (found[2] or found[1] or b"").decode(errors="replace")[:200]
        begin = block.rfind(b"\n", 0, found.start()) + 1
        prefix = _PREFIX.search(block[max(begin, found.start() - 400) : found.start()])
        named = int(prefix[1] or prefix[2]) if prefix else None
        if found[3]:
            self._described[group] = found[3].decode(errors="replace")[:200]
        is_default = group in ("", _DEFAULT) or self._described.get(group) == "default_pg"
        has_torch_prefix = prefix is not None and prefix[1] is not None
        rank = inside if named is None or (is_default and not has_torch_prefix) else named
        group = _DEFAULT if is_default else group
        self._in_group.setdefault(group, {})[inside] = rank
        return rank, group

    def _process(self, rank: int, group: str) -> _Process:
        self._lines += 1
        if self._lines > _MOST_LINES:
            raise InputError(f"lines of watchdogs must be at most {_MOST_LINES}; got more")
        self._heard.add(self._bounded(rank))
        return self._of.setdefault((rank, group), _Process())

    def _bounded(self, rank: int) -> int:
        if rank >= MAX_RANKS:
            raise InputError(f"ranks must be below {MAX_RANKS}; got {rank}")
        return rank

    def dumps(self, known: Iterable[ProcessGroup] = ()) -> list[Dump]:
        """Return all that is known as dumps, one for each rank with lines of its own.

        `known`: groups of the job by another source, which knows all of their ranks.
        """
        by_name = {group.name: group for group in known}
        ranks = self._heard | {rank for group in by_name.values() for rank in group.ranks}
        is_plausible = self.world_size <= 64 * (1 + max(self._heard, default=0))
        world_size = max(1 + max(ranks, default=0), self.world_size if is_plausible else 0)
        names = dict.fromkeys(group for _, group in self._of) or (_DEFAULT,)
        groups = {}
        for name in names:
            if name == _DEFAULT:
                group = ProcessGroup(name, "default_pg", tuple(range(world_size)))
            elif name == _BARRIERS:
                group = ProcessGroup(name, name, tuple(sorted(rank for rank, of in self._of if of == name)))
            else:
                group = ProcessGroup(name, self._described.get(name, ""), _members(self._in_group[name]))
            groups[name] = by_name.get(name, group)
        dumps = []
        for rank in sorted(self._heard):
            own = {name: process for (one, name), process in self._of.items() if one == rank}
            entries = [entry for name, process in own.items() for entry in _entries(rank, groups[name], process)]
            completed = {name: at for name, one in own.items() if (at := one.completed) is not None and at >= 0}
            dumps.append(Dump(rank, groups, entries, completed))
        return dumps


_BARRIERS: Final = "monitored_barrier"
_BARRIER_CALL: Final = UNTOLD_CALLS.stop  # its number is not told


def _entries(rank: int, group: ProcessGroup, process: _Process) -> Iterator[Entry]:
    """Yield the operators in which a rank stands: those that timed out, else the one after the last completed."""
    completed = -1 if process.completed is None else process.completed
    standing = {number: one for number, one in process.open.items() if number > completed}
    if not standing and process.enqueued is not None and process.enqueued > max(completed, 0):
        standing = {completed + 1 if completed > 0 else process.enqueued: (UNKNOWN_OPERATOR, np.nan)}
    for number, (operator, elements) in sorted(standing.items()):
        others = [one for one in group.ranks if one != rank]
        if operator not in P2P:
            yield Entry(group.name, operator, number, None, UNKNOWN, np.nan, elements)
        elif len(others) == 1:
            ends = (others[0], rank) if operator == RECV else (rank, others[0])
            yield Entry(group.name, operator, -1, ends, UNKNOWN, np.nan, elements)


def _members(seen: Mapping[int, int]) -> tuple[int, ...]:
    """Return the ranks of a group by those of its members that were heard, which stand at equal distances.

    >>> _members({0: 1, 2: 17}), _members({3: 7})
    ((1, 9, 17), (7,))
    """
    (first, rank), *others = sorted(seen.items())
    if not others:
        return (rank,)
    last, far = others[-1]
    step, rest = divmod(far - rank, last - first)
    is_even = not rest and step > 0 and all(rank + (at - first) * step == one for at, one in others)
    if not is_even or rank - first * step < 0:
        return tuple(sorted({rank, *(one for _, one in others)}))
    return tuple(rank + (at - first) * step for at in range(last + 1))


def _elements(numel: bytes | None, shape: bytes | None) -> float:
    if numel is not None:
        return float(numel)
    return np.nan if shape is None else float(np.prod([int(one) for one in shape.split(b",") if one.strip()]))


NOTE_ELEMENTS: Final = "a watchdog tells elements and no types: sizes are as if of one byte an element"
