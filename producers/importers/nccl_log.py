"""NCCL's and RCCL's own log lines in training logs: the last collectives of each rank, and NCCL's warnings.

``NCCL_DEBUG=INFO`` with ``NCCL_DEBUG_SUBSYS=INIT,COLL`` writes a line when a collective is called, and none when it
ends: a collective that all ranks have called may have ended, and a rank that has called more waits for the others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from irregulars.messages.records import P2P, UNKNOWN
from irregulars.producers.importers.flight_recorder import Dump, Entry, PackedEntries
from irregulars.producers.importers.groups import MAX_RANKS, ProcessGroup, operator_of
from irregulars.producers.importers.imported import ENDED_NS
from irregulars.producers.trace.job_file import RankLocation

_KEPT_CALLS: Final = 1_000  # of each rank on each communicator, the newest: those before them are the same on all
_MOST_RANKS: Final = 1 << 17  # of all communicators together
_PROCESS: Final = rb"([\w.-]{1,253}):(\d{1,9}):\d+ \[(\d{1,4})\] "
_CALL: Final = re.compile(
    _PROCESS + rb"NCCL INFO (\w{1,40}): opCount ([0-9a-f]{1,12}) sendbuff \S+ recvbuff \S+ (?:acc \S+ )?"
    rb"count (\d{1,18}) datatype (\d{1,2}) op \d+ root -?\d+ comm (0x[0-9a-f]{1,16})(?: \[nranks=(\d{1,7})\])?"
)
_JOINED: Final = re.compile(
    _PROCESS + rb"NCCL INFO (?:\[Rank \d+\] )?(?:\w+ )?comm (0x[0-9a-f]{1,16}) rank (\d{1,7}) nranks (\d{1,7}) "
    rb"[^\n]{0,200}?(?:nvmlDev (\d{1,4}) [^\n]{0,200}?)?(?:commId (0x[0-9a-f]+) )?- Init "
)
_WARNING: Final = re.compile(rb"(?:" + _PROCESS + rb"[^\n]{0,200}?)?NCCL WARN ([^\n]{1,300})")
_DIGITS: Final = re.compile(rb"\d+")
_MOST_WARNINGS: Final = 2  # kinds of warnings that are repeated; NCCL's first ones are the cause of the others
_TYPE_BYTES: Final = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)  # by NCCL's code of a data type

_Gpu = tuple[bytes, int, int]  # host, process, and index of the device in the process
_Key = tuple[int, int]  # NCCL's count of launches on a communicator, and which call of that launch


class _Joined(NamedTuple):
    identity: bytes
    rank: int
    size: int
    gpu: int | None  # index on the host, by NVML; None: older NCCL writes none


class NcclLog:
    """The lines of NCCL in all logs of one job."""

    def __init__(self) -> None:
        self.skipped: Counter[str] = Counter()
        self._joined: dict[tuple[_Gpu, bytes], _Joined] = {}  # by the communicator's address, the newest last
        self._calls: dict[tuple[_Gpu, bytes], dict[_Key, tuple[int, float]]] = {}  # operator and bytes
        self._sizes: dict[tuple[_Gpu, bytes], int] = {}  # ranks of the communicators with calls, where they are told
        # The first of each kind, with where it came from, if that is told
        self._warnings: dict[bytes, tuple[_Gpu | None, str]] = {}
        # Of the file that is read: communicators and warnings that go when the job is started anew
        self._of_file: set[tuple[_Gpu, bytes]] = set()
        self._warned_in_file: set[bytes] = set()

    def begin_file(self) -> None:
        """Begin to read another log."""
        self._of_file, self._warned_in_file = set(), set()

    def forget_file(self) -> None:
        """Forget the lines of the log so far: they are of an earlier start of the job."""
        for own in self._of_file:
            self._joined.pop(own, None)
            self._calls.pop(own, None)
            self._sizes.pop(own, None)
        for kind in self._warned_in_file:
            self._warnings.pop(kind, None)
        self.begin_file()

    def read(self, block: bytes) -> None:
        """Read a part of a log that ends with a line."""
        for found in _find(block, b"- Init ", _JOINED):
            size = int(found[6])
            if int(found[5]) < size <= MAX_RANKS and len(self._joined) < _MOST_RANKS:
                own = _gpu(found), found[4]
                self._of_file.add(own)
                self._joined.pop(own, None)
                # Older NCCL writes no id: communicators of one size count as one
                identity, index = found[8] or b"%d-ranks" % size, None if found[7] is None else int(found[7])
                self._joined[own] = _Joined(identity, int(found[5]), size, index)
        for found in _find(block, b": opCount ", _CALL):
            operator, code = operator_of(found[4].decode()), int(found[7])
            if operator is None or operator in P2P:
                self.skipped["sends and recvs in NCCL's log, which don't tell which belong together"] += 1
                continue
            own = _gpu(found), found[8]
            if own not in self._calls and len(self._calls) >= _MOST_RANKS:
                continue
            self._of_file.add(own)
            calls = self._calls.setdefault(own, {})
            self._sizes[own] = int(found[9] or 0)
            launch = int(found[5], 16)
            # The calls of a group are launched as one, and have the same count.
            newest = next(reversed(calls), (-1, 0))
            key = launch, newest[1] + 1 if newest[0] == launch else 0
            calls[key] = operator, int(found[6]) * _TYPE_BYTES[code] if code < len(_TYPE_BYTES) else np.nan
            if len(calls) > _KEPT_CALLS:
                del calls[next(iter(calls))]
        for found in _find(block, b"NCCL WARN ", _WARNING) if len(self._warnings) < _MOST_WARNINGS else ():
            text = " ".join(found[4].decode(errors="replace").split())
            kind = _DIGITS.sub(b"", found[4])[:40]
            if len(self._warnings) < _MOST_WARNINGS and kind not in self._warnings:
                self._warnings[kind] = _gpu(found) if found[1] else None, text
                self._warned_in_file.add(kind)

    @property
    def notes(self) -> tuple[str, ...]:
        """The first warnings, a sentence each."""
        indices, notes = self._indices(), []
        for gpu, text in self._warnings.values():
            index = indices.get(gpu, gpu[2]) if gpu else None
            on = f" on {gpu[0].decode()}{'' if index is None else f', GPU {index}'}" if gpu else ""
            notes.append(f"NCCL warned{on}: {text}")
        return tuple(notes)

    @property
    def size(self) -> int:
        """Number of ranks of the largest communicator; 0: no line tells of one."""
        return max((one.size for one in self._joined.values()), default=0)

    def ranks(self) -> dict[_Gpu, int]:
        """Return the ranks in the job: those in the largest communicator of its newest start."""
        size = self.size
        largest = [(gpu, one) for (gpu, _), one in self._joined.items() if one.size == size]
        # A process makes the world's communicator before others of all ranks; a start of the job has new processes.
        newest = largest[-1][0] if largest else None
        world = next((one.identity for gpu, one in largest if gpu == newest), b"")
        # Without ids the starts have one identity: of a rank the newest process counts.
        gpus = {one.rank: gpu for gpu, one in largest if one.identity == world}
        return {gpu: rank for rank, gpu in gpus.items()}

    def places(self, world_size: int) -> dict[int, RankLocation]:
        """Return where the ranks of a job run; empty if it is larger than the largest communicator."""
        is_whole = any(one.size == world_size for one in self._joined.values())
        ranks = self.ranks() if is_whole else {}
        indices = self._indices()
        return {rank: RankLocation(gpu[0].decode(), indices[gpu], lost_rows=0) for gpu, rank in ranks.items()}

    def _indices(self) -> dict[_Gpu, int | None]:
        """Return each rank's index of its GPU on the host; None where it is unknown.

        The index in brackets is that in the process, which is 0 wherever a process sees its own GPU alone: it is the
        host's only where no two processes of a host have the same.
        """
        ranks = self.ranks()
        told = {gpu: one.gpu for (gpu, _), one in self._joined.items() if one.gpu is not None}
        users = Counter((host, index) for host, _, index in ranks)
        return {gpu: told.get(gpu, gpu[2] if users[gpu[0], gpu[2]] == 1 else None) for gpu in ranks}

    def dumps(self) -> list[Dump]:
        """Return the last calls of each rank as dumps; none where the ranks of no communicator are known."""
        if not self._joined:  # without a line of a communicator: by GPUs, if one host has as many as there are ranks
            size = max(self._sizes.values(), default=0)
            of_all = [instance for instance, one in self._sizes.items() if one == size]
            hosts, indices = {gpu[0] for gpu, _ in of_all}, sorted(gpu[2] for gpu, _ in of_all)
            if len(hosts) == 1 and indices == list(range(size)):
                self._joined = {(gpu, at): _Joined(b"%d-ranks" % size, gpu[2], size, gpu[2]) for gpu, at in of_all}
        ranks = self.ranks()
        instances: dict[bytes, dict[int, tuple[_Gpu, bytes]]] = {}  # of a communicator, by rank in it
        for instance, one in self._joined.items():
            if instance[0] in ranks and instance in self._calls:
                instances.setdefault(one.identity, {})[one.rank] = instance
        groups: dict[str, ProcessGroup] = {}
        entries: dict[int, list[Entry]] = {rank: [] for rank in ranks.values()} if instances else {}
        for identity, own in instances.items():
            members = {one.rank: ranks[gpu] for (gpu, _), one in self._joined.items()
                       if one.identity == identity and gpu in ranks}  # fmt: skip
            size = self._joined[next(iter(own.values()))].size
            if len(members) < size or len(set(members.values())) < size:
                self.skipped["communicators of which NCCL's log does not name all ranks"] += 1
                continue
            group = ProcessGroup(identity.decode(), "", tuple(members[at] for at in range(size)))
            groups[group.name] = group
            calls = {members[at]: self._calls.get(instance, {}) for at, instance in own.items()}
            calls |= {rank: {} for rank in group.ranks if rank not in calls}
            for rank, entry in _entries(group, calls):
                entries[rank].append(entry)
        return [Dump(rank, groups, PackedEntries(own)) for rank, own in sorted(entries.items())] if groups else []


def _find(block: bytes, sign: bytes, form: re.Pattern[bytes]) -> Iterator[re.Match[bytes]]:
    """Yield the matches in lines with a sign: it is found many times faster than a form that begins with a name."""
    at = block.find(sign)
    while at >= 0:
        # The pattern sees 1,024 bytes on each side at most: a line without end is not searched as a whole.
        begin, past = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
        past = len(block) if past < 0 else past
        found = form.search(block[max(begin, at - 1024) : min(past, at + 1024)])
        if found:
            yield found
        at = block.find(sign, past)


def _gpu(found: re.Match[bytes]) -> _Gpu:
    return found[1], int(found[2]), int(found[3])


def _entries(
    group: ProcessGroup, calls: Mapping[int, Mapping[_Key, tuple[int, float]]]
) -> Iterator[tuple[int, Entry]]:
    """Yield the calls of each rank on one communicator; they have ended up to the last that all made alike."""
    keys = sorted({key for own in calls.values() for key in own})
    is_plain = all(again == 0 for _, again in keys)
    numbers = {key: key[0] if is_plain else at for at, key in enumerate(keys)}
    common = min(max(own, default=(-1, 0)) for own in calls.values())
    # From the first call on in which operators or sizes differ, none has ended: the ranks wait for each other.
    for key in keys:
        made = {own[key] for own in calls.values() if key in own}
        has_sizes = not any(np.isnan(size_bytes) for _, size_bytes in made)
        if len(made if has_sizes else {operator for operator, _ in made}) > 1:
            common = min(common, (key[0], key[1] - 1))
            break
    for rank, own in calls.items():
        for key, (operator, size_bytes) in own.items():
            elapsed_ns = ENDED_NS if key <= common else np.nan
            yield rank, Entry(group.name, operator, numbers[key], None, UNKNOWN, elapsed_ns, size_bytes)
