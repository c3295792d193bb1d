"""Dumps of PyTorch's flight recorder (format 2.x): the operators around a hang, of each rank and joined to a job.

All functions take plain values, as `load_plain` and JSON give them. Starts are times of the
enqueue, the only ones that a dump holds. A dump is the tail of a log: a communicator's collectives before its first
entry have ended.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from struct import Struct
from struct import error as StructError
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from irregulars.errors import InputError
from irregulars.grouping import grouped
from irregulars.messages.records import OPERATOR_CODES, P2P, SEND, UNKNOWN, UNTOLD_CALLS
from irregulars.producers.importers.groups import (
    ProcessGroup,
    bytes_of_tensors,
    communicators_of,
    operator_of,
    ranks_of,
)
from irregulars.producers.importers.imported import ENDED_NS, ITERATION, Array, ImportedJob, RankRows
from irregulars.producers.trace.job_file import RankLocation

UNKNOWN_OPERATOR: Final = -1  # of a collective that other ranks may name
_ENDS: Final = re.compile(r"(\d{1,7})\s*(->|<-)\s*(\d{1,7})")
_MOST_GROUPS: Final = 65_536
_LARGEST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Dump:
    """One rank's dump, checked."""

    rank: int  # -1: not known
    groups: Mapping[str, ProcessGroup]
    entries: PackedEntries
    completed: Mapping[str, int] = field(default_factory=dict)
    skipped: int = 0
    own_rank: int | None = None  # by its own sends and recvs, which name both ends; None: it has none, or they differ
    digest: bytes = b""  # of the file's content; empty: it was no file
    is_whole: bool = False  # whether it begins with the rank's first call: the ring has dropped none

    @property
    def world_size(self) -> int | None:
        """Number of ranks of its largest group; None without groups."""
        return max((len(group.ranks) for group in self.groups.values()), default=None) or None


class Entry(NamedTuple):
    """One entry: an operator of this rank."""

    group: str  # name of the process group
    operator: int
    sequence: int  # of collectives; of p2p -1
    ends: tuple[int, int] | None  # sender and receiver inside the group; None for collectives
    start_ns: int
    elapsed_ns: float  # NaN if it has not ended
    size_bytes: float


class PackedEntries:
    """Entries in 64 bytes each: of a thousand dumps of thousands of entries all are in memory at once."""

    _ROW: Final = Struct("=6q2d")
    _COLUMNS: Final = np.dtype(
        [(name, np.int64) for name in ("group", "operator", "sequence", "source", "destination", "start_ns")]
        + [(name, np.float64) for name in ("elapsed_ns", "size_bytes")]
    )

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._names: dict[str, int] = {}
        self._rows = bytearray()
        for group, operator, sequence, ends, start_ns, elapsed_ns, size_bytes in entries:
            name = self._names.setdefault(group, len(self._names))
            source, destination = (-1, -1) if ends is None else ends
            numbers = sequence, source, destination, start_ns
            try:
                self._rows += self._ROW.pack(name, operator, *numbers, elapsed_ns, size_bytes)
            except StructError:  # a log may hold any number; no row may have the largest
                bounded = (max(-_LARGEST, min(one, _LARGEST)) for one in numbers)
                self._rows += self._ROW.pack(name, operator, *bounded, elapsed_ns, size_bytes)

    def __len__(self) -> int:
        return len(self._rows) // self._ROW.size

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the process groups, by the column ``group``."""
        return tuple(self._names)

    @property
    def columns(self) -> Array:
        """The entries as one structured array; source and destination are -1 for collectives."""
        return np.frombuffer(self._rows, self._COLUMNS)

    def __iter__(self) -> Iterator[Entry]:
        names = tuple(self._names)
        for name, operator, sequence, source, destination, *values in self._ROW.iter_unpack(self._rows):
            yield Entry(names[name], operator, sequence, None if source < 0 else (source, destination), *values)


def read_dump(value: Any, rank: int | None) -> Dump:
    """Check one dump.

    `rank`: by the name of its file; None: that has none. Raises InputError if it is no dump of a version that we
    read. Single entries that make no sense are counted as skipped.
    """
    value = _of_first_version(value)
    if not isinstance(value, dict) or not isinstance(value.get("version"), str):
        raise InputError(f"must be a flight recorder dump with a text under 'version'; got {_kind(value)}")
    is_first = value["version"].startswith("1.") and "pg_config" not in value
    if not is_first and not value["version"].startswith("2."):
        raise InputError(f"version must be 1.x or 2.x; got {value['version'][:20]!r}")
    groups = {"0": ProcessGroup("0", "default_pg", ())} if is_first else _groups(value.get("pg_config"))
    listed = value.get("entries", [])
    if not isinstance(listed, (list, tuple)):
        raise InputError(f"entries must be a list; got {_kind(listed)}")
    rows = [one for one in listed if isinstance(one, dict)]
    has_states = any(one.get("state") == "completed" for one in rows)
    whole = [(one, _entry(one, groups, has_states=has_states)) for one in _with_coalesced(rows)]
    status = value.get("pg_status")
    good = _with_ends([entry for _, entry in whole if entry is not None], has_states=has_states or bool(status))
    is_whole = bool(rows) and _integer(rows[0].get("record_id")) == 0
    if _is_numbered_through(rows):
        names = [entry.group if entry.ends is None else None for entry in good]
        for at, number in _counted(good, names, 1, dict.fromkeys(names, 0) if is_whole else {}).items():
            good[at] = good[at]._replace(sequence=number)
    skipped = len(listed) - len(good)
    completed, enqueued = _by_status(status if isinstance(status, dict) else {}, rows, groups)
    with_entries = {_name_of_group(one) for one in rows}
    for name, last in enqueued.items():  # by the status alone the rank stands in a collective of a group
        number = completed.get(name, 0) + 1
        if name not in with_entries and last >= number:
            good.append(Entry(name, UNKNOWN_OPERATOR, number, None, UNKNOWN, np.nan, np.nan))
    own = {entry.ends[entry.operator != SEND] for entry in good if entry.ends is not None}
    return Dump(
        -1 if rank is None else rank, groups, PackedEntries(good), completed,
        skipped=skipped, own_rank=own.pop() if len(own) == 1 else None, is_whole=is_whole,
    )  # fmt: skip


def _of_first_version(value: Any) -> Any:
    """Return a dump of PyTorch 2.2 or 2.3 in the later form; any other value unchanged.

    It has no groups, and PyTorch 2.2 wrote the list of entries alone. The first group is that of all ranks, of which
    `job_of_dumps` knows the number; entries of others are skipped.
    """
    is_dict = isinstance(value, dict) and "pg_config" not in value
    listed = value.get("entries") if is_dict else value
    rows = [one for one in listed if isinstance(one, dict)] if isinstance(listed, (list, tuple)) else []
    if not any("seq_id" in one for one in rows):
        return value
    entries = [
        {**one, "process_group": [str(one.get("pg_id")), ""], "collective_seq_id": one.get("seq_id"),
         "time_created_ns": 1000 * micros if type(micros := one.get("time_created_us")) is int else None}
        for one in rows
    ]  # fmt: skip
    return {"version": value.get("version") if is_dict else "1.0", "entries": entries}


def _with_ends(entries: Sequence[Entry], *, has_states: bool) -> list[Entry]:
    """Let all collectives of a group before its last completed one have ended: they run in order.

    Where states were never kept the last of each group is the only one that is open: TorchComms keeps none on devices
    without events, and all its entries stay ``scheduled``.
    """
    last = {
        entry.group: at
        for at, entry in enumerate(entries)
        if not has_states or (entry.ends is None and not np.isnan(entry.elapsed_ns))
    }
    return [
        entry._replace(elapsed_ns=ENDED_NS)
        if at < last.get(entry.group, -1) and np.isnan(entry.elapsed_ns) and (entry.ends is None or not has_states)
        else entry
        for at, entry in enumerate(entries)
    ]


def _is_numbered_through(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one row of numbers counts the collectives of several groups, as TorchComms has it.

    PyTorch counts each group from 1, sends and recvs apart, so that numbers of its groups come twice or have holes.
    """
    numbers = [number for one in rows if type(number := one.get("collective_seq_id")) is int]
    groups = {_name_of_group(one) for one in rows}
    is_told = len(groups) > 1 and len(numbers) == len(rows)
    return is_told and all(later - one == 1 for one, later in pairwise(numbers))


def _counted(entries: Sequence[Entry], keys: Iterable[Any], first: int, since: Mapping[Any, int]) -> dict[int, int]:
    """Number the entries of each key by themselves; by place. None as key: not numbered.

    `since`: by key the place from which on all ranks have the same entries: the first one there has the number
    `first`. Of other keys the first entry that never ended has the same number on all ranks.
    """
    numbers: dict[int, int] = {}
    for key, own in grouped((key, at) for at, key in enumerate(keys) if key is not None).items():
        begin = since.get(key)
        if begin is None:
            ended = next((n for n, at in enumerate(own) if np.isnan(entries[at].elapsed_ns)), len(own))
            number = _FIRST_OPEN - ended
        else:
            number = first - sum(at < begin for at in own)
        numbers.update((at, number + n) for n, at in enumerate(own))
    return numbers


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def _text(value: Any) -> str:
    """Return a text unchanged, and an empty one for any other value, which could take for ever to print."""
    return value if isinstance(value, str) else ""


def _groups(config: Any) -> dict[str, ProcessGroup]:
    if not isinstance(config, dict) or len(config) > _MOST_GROUPS:
        raise InputError(f"pg_config must be an object of process groups; got {_kind(config)}")
    groups = {}
    for name, one in config.items():
        ranks = ranks_of(one.get("ranks")) if isinstance(one, dict) else None
        if ranks is None:
            raise InputError(f"pg_config[{str(name)[:40]!r}].ranks must be the ranks of a group; got none")
        groups[str(name)] = ProcessGroup(str(name), _text(one.get("desc"))[:200], ranks)
    return groups


def _with_coalesced(rows: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Copy the state of a coalesced entry to the operators that it stands for, and drop the entry itself."""

    def key(one: Mapping[str, Any]) -> tuple[Any, ...]:
        is_pair = one.get("is_p2p") is True
        return _name_of_group(one), is_pair, _integer(one.get("p2p_seq_id" if is_pair else "collective_seq_id"))

    for _, own in groupby(rows, key):
        run = list(own)
        if len(run) < 2:
            yield from run
        elif _text(run[-1].get("profiling_name")).endswith("coalesced"):
            state = {name: run[-1].get(name) for name in ("state", "retired", "time_discovered_completed_ns")}
            yield from ({**one, **state} for one in run[:-1])
        # Else they are parts of an operator that has ended: they have no state of their own, and its entry is gone.


def _entry(one: Mapping[str, Any], groups: Mapping[str, ProcessGroup], *, has_states: bool) -> Entry | None:
    group = groups.get(_name_of_group(one))
    operator = operator_of(_text(one.get("profiling_name")))
    if group is None or operator is None:
        return None
    ends = None
    if operator in P2P:  # sender and receiver stand in the name: nccl:recv 3<-0
        found = _ENDS.search(_text(one.get("profiling_name")))
        if found is None or max(int(found[1]), int(found[3])) >= len(group.ranks):
            return None
        first, second = group.ranks[int(found[1])], group.ranks[int(found[3])]
        ends = (first, second) if found[2] == "->" else (second, first)
    sequence = one.get("collective_seq_id")
    # Batches carry a sequence in 32 bits.
    if type(sequence) is not int or not 0 <= sequence < 1 << 32:
        return None
    start_ns, end_ns = _time(one.get("time_created_ns")), _time(one.get("time_discovered_completed_ns"))
    elapsed_ns, duration_ms = ENDED_NS, one.get("duration_ms")
    # Retired and not completed: it timed out. Where no entry was ever completed states are not kept.
    if one.get("state") != "completed" and (has_states or one.get("retired") is not True):
        elapsed_ns = np.nan
    elif isinstance(duration_ms, (int, float)) and 0 <= duration_ms < 1e9:
        elapsed_ns = float(round(duration_ms * 1e6))
    elif UNKNOWN not in (end_ns, start_ns) and end_ns >= start_ns:
        elapsed_ns = float(end_ns - start_ns)
    size_bytes = bytes_of_tensors(one.get("input_sizes"), one.get("input_dtypes"))
    return Entry(group.name, operator, -1 if ends else sequence, ends, start_ns, elapsed_ns, size_bytes)


def _name_of_group(one: Mapping[str, Any]) -> str:
    group = one.get("process_group")
    return _text(group[0])[:200] if isinstance(group, (list, tuple)) and group else ""


def _time(value: Any) -> int:
    return value if type(value) is int and 0 < value < 1 << 62 else UNKNOWN  # JSON has 0 where a pickle has None


_NAMELESS: Final = OPERATOR_CODES["barrier"]
_LAST: Final = ("last_completed_collective", "last_enqueued_collective")


def _by_status(
    status: Mapping[Any, Any], rows: Sequence[Mapping[str, Any]], groups: Mapping[str, ProcessGroup]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return for each group the last collective that completed, and the last that was enqueued.

    The status goes by numbers that count a rank's groups as they were made; entries pair them with names, and where a
    rank has none, names that are numbers are in the same order. Groups with p2p are left out: there the status counts
    sends and recvs too.
    """
    names = {str(_integer(one.get("pg_id"))): _name_of_group(one) for one in rows}
    ids = sorted(_integer(number) for number in status if _integer(number) is not None)  # type: ignore[type-var]
    in_order = sorted(int(name) for name in groups if name.isdecimal() and len(name) < 10)
    if len(status) == len(ids) == len(in_order) == len(groups):
        by_order = {str(number): str(name) for number, name in zip(ids, in_order, strict=True)}
        if all(by_order.get(number) == name for number, name in names.items()):  # no entry contradicts it
            names = by_order
    pairs = {_name_of_group(one) for one in rows if one.get("is_p2p") is True}
    found: tuple[dict[str, int], dict[str, int]] = {}, {}
    for number, one in status.items():
        name = names.get(str(number))
        for told, key in zip(found, _LAST, strict=True):
            last = _integer(one.get(key)) if isinstance(one, dict) else None
            if last is not None and 0 <= last < 1 << 32 and name is not None and name not in pairs:
                told[name] = last
    return found


def _integer(value: Any) -> int | None:
    # The same keys are numbers in a pickle and texts in JSON.
    if type(value) is int:
        return value
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,15}", value):
        return int(value)
    return None


# Number of the first send or recv of a pair from which on both dumps hold all (`begin_of_both`); where that is not
# known, of the first one that never ended. The recorder's own numbers differ at the two ends. Those that both have
# completed are the same but for the last one: NCCL ends a small send before it is received.
_FIRST_OPEN: Final = UNTOLD_CALLS.stop + (1 << 20)
NOTE_TIMES: Final = "flight recorder dumps hold times of the enqueue: use them for hangs, not to find who is slow"


def job_of_dumps(
    dumps: Iterable[Dump],
    job: str,
    *,
    size: int = 0,
    is_whole: bool = True,
    dumped_ns: Mapping[int, int] | None = None,
) -> ImportedJob:
    """Join the dumps of a job, each of another rank.

    `is_whole`: whether these are the dumps of all ranks. `dumped_ns`: when the dump of each rank was written, where
    that is known: then the iteration is marked, and ends before.
    """
    by_rank = {dump.rank: dump for dump in dumps}
    everybody = tuple(range(max(size, 1 + max(by_rank, default=-1))))
    for rank, dump in by_rank.items():  # those of PyTorch 2.3 and before do not tell the members
        if not all(group.ranks for group in dump.groups.values()):
            groups = {name: group._replace(ranks=everybody) for name, group in dump.groups.items()}
            by_rank[rank] = replace(dump, groups=groups)
    known = {group for dump in by_rank.values() for group in dump.groups.values()}
    world_size = 1 + max(*by_rank, *(rank for group in known for rank in group.ranks), -1)
    communicators = communicators_of(known, world_size, is_whole=is_whole)
    # Groups have thousands of ranks: they are looked up once for each dump, and not for each entry
    ids = {rank: {name: communicators[group].id for name, group in d.groups.items()} for rank, d in by_rank.items()}
    with_pairs: set[str] = set()
    called: dict[tuple[str, int], int] = {}
    for rank, dump in by_rank.items():
        rows, of_group = dump.entries.columns, np.array([ids[rank][name] for name in dump.entries.names], object)
        is_pair = rows["source"] >= 0
        with_pairs.update(of_group[np.unique(rows["group"][is_pair])])
        told = rows[~is_pair & (rows["operator"] != UNKNOWN_OPERATOR)]
        keys = zip(of_group[told["group"]], told["sequence"].tolist(), strict=True)
        called.update(zip(keys, told["operator"].tolist(), strict=True))
    ranks = {rank: _rows(dump, by_rank, ids, with_pairs, called) for rank, dump in by_rank.items()}
    for rank, until_ns in (dumped_ns or {}).items():
        # The iteration lasts while operators are issued; a rank that issued none enters it at its end.
        start_ns = by_rank[rank].entries.columns["start_ns"]
        start_ns = start_ns[(start_ns > UNKNOWN) & (start_ns <= until_ns)]
        first_ns = int(np.min(start_ns, initial=until_ns))
        ranks[rank].add_iteration(ITERATION, first_ns, int(start_ns.max() if len(start_ns) else until_ns) - first_ns)
    skipped = sum(dump.skipped for dump in by_rank.values())
    return ImportedJob(
        job=job, world_size=world_size, clock="per_host", communicators=communicators.values(), ranks=ranks,
        places={rank: RankLocation(lost_rows=0) for rank in by_rank},  # the ring drops the oldest: a tail is complete
        notes=(NOTE_TIMES,), complete_until_ns=dumped_ns or {},
        skipped={"no operator that we know, or part of one that ended": skipped} if skipped else {},
    )  # fmt: skip


def begin_of_both(one: Dump, other: Dump, ids: Mapping[int, Mapping[str, str]]) -> int | None:
    """Return the place in a dump from which on it and another one hold all; None: not known.

    Rings that have dropped their first calls begin at different ones, but are complete behind the newest collective
    that both ranks have ended: a send is issued before it if its recv is.

    `ids`: of each rank the communicators by the names of its groups.
    """
    if one.is_whole and other.is_whole:
        return 0
    codes: dict[str, int] = {}
    keys, places = [], []
    in_order = sorted((one, other), key=lambda dump: dump.rank)  # so that both ends find the same collective
    for dump in in_order:
        rows = dump.entries.columns
        places.append(np.flatnonzero((rows["source"] < 0) & ~np.isnan(rows["elapsed_ns"])))
        own = [codes.setdefault(ids[dump.rank][name], len(codes)) for name in dump.entries.names]
        keys.append(np.array(own, np.int64)[rows["group"][places[-1]]] << 32 | rows["sequence"][places[-1]])
    _, first, second = np.intersect1d(keys[0], keys[1], return_indices=True)
    if not len(first):
        return None
    newest = np.argmax(places[0][first])
    return int(places[0][first[newest]] if in_order[0] is one else places[1][second[newest]])


def _rows(
    dump: Dump,
    by_rank: Mapping[int, Dump],
    all_ids: Mapping[int, Mapping[str, str]],
    with_pairs: set[str],
    called: Mapping[tuple[str, int], int],
) -> RankRows:
    """Return the rows of a dump; an operator that it does not name is the one that `called` has of other ranks.

    `by_rank`: all dumps. `all_ids`: of each rank the communicators by the names of its groups; `with_pairs`, `called`
    go by them.
    """
    rows, names, found, ids = RankRows(), dump.entries.names, dump.entries.columns, all_ids[dump.rank]
    own = {name for name, group in dump.groups.items() if dump.rank in group.ranks}
    group, operator, number = found["group"], found["operator"].copy(), found["sequence"].copy()
    is_pair = found["source"] >= 0
    # Sends and recvs count from the first of their pair that both ends know.
    paired = [entry for entry in dump.entries if entry.ends] if is_pair.any() else []
    keys, pairs = [(entry.group, entry.ends) for entry in paired], np.flatnonzero(is_pair)
    since, begins = {}, dict[int, int | None]()
    for key in dict.fromkeys(keys):
        others = [end for end in key[1] or () if end != dump.rank and end in by_rank]
        # Once for each other rank: both are searched, and they may be a pair in many groups, both ways.
        if others and others[0] not in begins:
            begins[others[0]] = begin_of_both(dump, by_rank[others[0]], all_ids)
        begin = begins[others[0]] if others else None
        if begin is not None:
            since[key] = int(np.searchsorted(pairs, begin))
    counted = _counted(paired, keys, _FIRST_OPEN, since)
    number[pairs[list(counted)]] = list(counted.values())
    is_own = np.array([name in own for name in names], bool)[group]
    for at in np.flatnonzero(is_own & (operator == UNKNOWN_OPERATOR)).tolist():
        known = called.get((ids[names[group[at]]], int(number[at])))
        operator[at] = _NAMELESS if known is None else known
        if known is None:  # no rank tells, so that it is unknown on all
            number[at] = UNTOLD_CALLS[int(number[at]) % len(UNTOLD_CALLS)]
    peer = np.where(is_pair, np.where(operator == SEND, found["destination"], found["source"]), UNKNOWN)
    rows.unusable += int(np.count_nonzero(~is_own))
    columns = {"communicator": group, "operator": operator, "sequence": number, "peer": peer,
               "start_ns": found["start_ns"], "iteration": np.full(len(found), ITERATION),
               "elapsed_ns": found["elapsed_ns"], "size_bytes": found["size_bytes"]}  # fmt: skip
    rows.add_columns([ids[name] for name in names], {name: column[is_own] for name, column in columns.items()})
    seen = set(zip(group[is_own].tolist(), number[is_own].tolist(), strict=True))
    places = {name: at for at, name in enumerate(names)}
    # A rank whose entries were dropped, or that has none, still shows by its status that it has left a collective.
    for name, last in dump.completed.items():
        known = called.get((ids[name], last))
        is_seen = (places.get(name), last) in seen
        if known is not None and ids[name] not in with_pairs and not is_seen and name in own:
            rows.add(ids[name], known, last, elapsed_ns=ENDED_NS, iteration=ITERATION)
    return rows


MAX_INTEGER_BITS: Final = 64
MAX_INSTRUCTIONS: Final = 3_000_000  # a dump of 2,000 entries with their stacks has some hundred thousand
_INTEGERS: Final = ("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "LONG", "INT")
_PUTS: Final = ("BINPUT", "LONG_BINPUT", "PUT")
# Opcodes that build None, booleans, numbers, texts, bytes, lists, tuples and dictionaries
_BUILDING: Final = frozenset((
    *_INTEGERS, *_PUTS, "BINFLOAT", "FLOAT", "BINUNICODE", "BINUNICODE8", "SHORT_BINUNICODE", "UNICODE", "BINBYTES",
    "BINBYTES8", "SHORT_BINBYTES", "BINSTRING", "SHORT_BINSTRING", "STRING", "NONE", "NEWTRUE", "NEWFALSE",
    "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "LIST", "DICT", "APPEND",
    "APPENDS", "SETITEM", "SETITEMS", "MARK", "BINGET", "LONG_BINGET", "GET", "MEMOIZE", "PROTO", "FRAME", "STOP",
))  # fmt: skip


def load_plain(value: bytes) -> Any:
    """Read one pickle of plain data without running anything.

    Python's own unpickler calls any function that the file names. So opcodes are looked at first: any but those that
    build plain data, and so every name of a class or function, is refused. A regular expression looks at those that
    PyTorch writes, 20 times as fast as `pickletools`; the slower of Python's readers reads the rest.

    Raises InputError if it is truncated or broken, names a class or a function, or builds anything but plain data.
    """
    try:
        if not _is_plain(value):
            for count, (opcode, argument, _) in enumerate(pickletools.genops(value)):
                number = argument if isinstance(argument, int) else 0
                if count > MAX_INSTRUCTIONS or (opcode.name in _PUTS and number > MAX_INSTRUCTIONS):
                    raise ValueError(f"more than {MAX_INSTRUCTIONS} instructions")
                if opcode.name not in _BUILDING:
                    raise ValueError(f"the instruction {opcode.name}, which builds more than plain data")
                if opcode.name in _INTEGERS and number.bit_length() > MAX_INTEGER_BITS:
                    raise ValueError(f"an integer of more than {MAX_INTEGER_BITS} bits")
            # Latin-1 has a character for each byte: the texts of Python 2 can't fail to decode.
            return _Careful(io.BytesIO(value), encoding="latin-1").load()
        return _Plain(io.BytesIO(value)).load()
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError, UnicodeError,
            EOFError, pickle.UnpicklingError) as error:  # fmt: skip
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise InputError(f"must be a complete pickle of plain data; got: {reason}") from None


def _sized(opcode: bytes, head: bytes, lengths: range) -> bytes:
    """Match an opcode and the bytes that its length counts; a regular expression can only list the lengths."""
    each = (re.escape(bytes([n]) + head) + b".{%d}" % n for n in lengths)
    return opcode + b"(?:" + b"|".join(each) + b")"


# Opcodes of `_BUILDING` in a row, with texts of less than 256 bytes, integers of at most 64 bits, and places in the
# memory below 3 million: Python's own makes room for all places up to the largest. A tuple holds what stands right
# before it and is in no memory, so that none holds another: as a key, a deep one takes for ever to hash, or too much
# stack.
_PUT: Final = rb"(?:q.|r..[\x00-\x2d]\x00|\x94)?+"
_SCALAR: Final = (
    rb"(?:[N\x88\x89]|[Kh].|M..|[Jj].{4}|G.{8}|" + _sized(b"X", b"\0\0\0", range(256)) + b"|"
    + _sized(rb"\x8c", b"", range(256)) + b"|" + _sized(rb"\x8a", b"", range(9)) + b")" + _PUT
)  # fmt: skip
_PLAIN: Final = re.compile(
    rb"(?:\x80[\x02-\x05]|\x95.{8}|\(|[ldaesu\]})]" + _PUT + b"|"
    + _SCALAR + rb"(?:\x85|" + _SCALAR + rb"(?:\x86|" + _SCALAR + rb"\x87))|" + _SCALAR + rb")*+",
    re.DOTALL,
)  # fmt: skip
_AFTER_TEXT: Final = re.compile(_PUT, re.DOTALL)
_LONG_TEXT: Final = Struct("<cI")  # the opcode and the length: ranks of large groups
_CONTAINERS: Final = b"]})(\x85\x86\x87"
# A pickle beyond either of these bounds is counted instruction by instruction.
_MOST_CONTAINERS: Final = 1_000_000  # bytes that may each make one, of some 60 bytes
_MOST_PLAIN_BYTES: Final = 16 << 20


def _is_plain(value: bytes) -> bool:
    if len(value) > _MOST_PLAIN_BYTES or sum(value.count(one) for one in _CONTAINERS) > _MOST_CONTAINERS:
        return False
    at = 0
    # Protocols 0 and 1 do not begin with this opcode, and have others than PyTorch writes.
    while value[:1] == b"\x80" and (found := _PLAIN.match(value, at)):
        at = found.end()
        # Only a text of 256 bytes or more may stop the expression: it is stepped over by its length.
        if value[at : at + 1] != b"X" or len(value) < at + _LONG_TEXT.size:
            return len(value) == at + 1 and value[at : at + 1] == b"."
        at += _LONG_TEXT.size + _LONG_TEXT.unpack_from(value, at)[1]
        after = _AFTER_TEXT.match(value, at)
        at = after.end() if after else at
    return False


def _no_class(_reader: Any, module: str, name: str) -> Any:
    raise pickle.UnpicklingError(f"the name {module}.{name}, which is more than plain data")


class _Plain(pickle.Unpickler):
    """Python's own reader, which here finds no class or function."""

    find_class = _no_class


def _with_plain_keys(opcode: int) -> Callable[[Any], None]:
    """Return a reader of an opcode that fills a dictionary, which checks the keys before they are hashed."""
    read = pickle._Unpickler.dispatch[opcode]

    def checked(reader: Any) -> None:
        for key in reader.stack[-2:-1] if opcode == pickle.SETITEM[0] else reader.stack[::2]:
            if not isinstance(key, str | int):
                raise pickle.UnpicklingError(f"a key that is a {type(key).__name__}")
        read(reader)

    return checked


class _Careful(pickle._Unpickler):
    """The same in Python, many times slower: here each key is checked before it is hashed."""

    find_class = _no_class
    dispatch: ClassVar = pickle._Unpickler.dispatch | {
        opcode[0]: _with_plain_keys(opcode[0]) for opcode in (pickle.SETITEM, pickle.SETITEMS, pickle.DICT)
    }
