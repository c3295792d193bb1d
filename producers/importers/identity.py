"""Which rank wrote which file, and which ranks are missing: decided in one place for all importers.

A file's own words go before its name. Names are read together, since only together they tell a rank from the number
of a host or of a step. Two files of one rank are copies if their contents are equal; else one is left out and named.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from irregulars.errors import InputError
from irregulars.grouping import grouped
from irregulars.producers.importers.groups import MAX_RANKS
from irregulars.producers.trace.foreign_files import rank_of_name, stem_of

_NUMBERS: Final = re.compile(r"(\d+)")
# A place in a dimension of parallel training
_PLACE: Final = re.compile(r"(?<![a-z])(tp|dp|pp|ep|cp)[-_.]?(rank[-_.]?)?\d", re.IGNORECASE)

# An engine's ranks that hold parts of one tensor
_TENSOR_PLACE: Final = re.compile(r"(?<![a-z])tp[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)


class LeftOut(NamedTuple):
    """A file that was not used."""

    name: str  # of the file, as people know it
    reason: str
    rank: int | None = None  # whose it is, by its name; None: not known


@dataclass(frozen=True, slots=True)
class Claim:
    """One file's words about its writer."""

    path: Path
    rank: int | None = None  # global rank by the file's own words; None: it holds none
    digest: bytes = b""  # of the content: files with equal ones are copies; empty: not known
    world_size: int | None = None  # number of ranks of the job by the file's own words
    span_ns: tuple[int, int] | None = None  # from when to when it recorded; None: not known


@dataclass(frozen=True, slots=True)
class Identified:
    """Files of a job by rank."""

    ranks: Mapping[int, int]  # position of each rank's claim among all claims
    left_out: Sequence[LeftOut] = ()  # files without a rank, copies, and second files of one rank
    later: Mapping[int, Sequence[int]] = field(default_factory=dict)  # further claims of a rank, of other times
    notes: Sequence[str] = field(default_factory=tuple)  # how ranks were found, where that is not plain


T = TypeVar("T")


def read_each(
    paths: Sequence[Path],
    read: Callable[[Path], T],
    *,
    in_parallel: bool = False,
    keep: Callable[[T], T] = lambda found: found,
) -> tuple[list[tuple[Path, T]], list[LeftOut]]:
    """Read files one by one; those that can't be used are left out, with the reason.

    `in_parallel`: with as many processes as there are cores, if there are many files; then `read` is a function of a
    module. `keep`: makes of each result, when it comes, the one that is kept: those of several processes share no
    part of theirs. Raises InputError if none can be used: that of the first file.
    """
    found: list[tuple[Path, T]] = []
    left_out: list[LeftOut] = []
    processes = min(len(os.sched_getaffinity(0)), len(paths) // _FILES_PER_PROCESS) if in_parallel else 1
    results = map(partial(_tried, read), paths) if processes < 2 else _tried_in_parallel(read, paths, processes)
    for path, result in zip(paths, results, strict=True):
        if isinstance(result, InputError):
            left_out.append(LeftOut(str(path), str(result).removeprefix(f"{path}: "), rank_of_name(path)))
        else:
            found.append((path, keep(result)))
    if not found and left_out:
        raise InputError(f"{left_out[0].name}: {left_out[0].reason}")
    return found, left_out


_FILES_PER_PROCESS: Final = 32  # fewer take less time than a process takes to begin


def _tried(read: Callable[[Path], T], path: Path) -> T | InputError:
    try:
        return read(path)
    except InputError as error:
        return error


def _tried_in_parallel(read: Callable[[Path], T], paths: Sequence[Path], processes: int) -> Iterator[T | InputError]:
    """Read files in processes that begin anew: a fork would copy the locks of threads."""
    ignore_ctrl_c = (signal.SIGINT, signal.SIG_IGN)  # which ends this process, and so the others
    with ProcessPoolExecutor(processes, get_context("spawn"), signal.signal, ignore_ctrl_c) as pool:
        try:
            yield from pool.map(partial(_tried, read), paths, chunksize=8)
        except BaseException as error:
            # Leaving the pool would wait for all files that are still queued.
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                raise InputError("files must fit into memory; a process that read some was killed") from None
            raise


def identify(claims: Sequence[Claim]) -> Identified:
    """Find the rank that wrote each file: the rank of its own words, else that of its name.

    Where own words give several files of one time the same rank (a process that recorded before it knew its own), and
    each file's name another one, names are right.
    Several files of one rank are local ranks of several hosts (`node0/rank_0`, `node1/rank_0`) if each host has the
    same ones, from 0 on, and the job is that large; else copies if their contents are equal; else recordings of one
    process at different times, if they say when; else the first in the order of names counts.
    """
    ranks = [rank_of_name(claim.path) if claim.rank is None else claim.rank for claim in claims]
    notes: tuple[str, ...] = ()
    size = max((claim.world_size or 0 for claim in claims), default=0)  # of the job; 0: not known
    is_named = all(claim.rank is None for claim in claims) and None not in ranks
    if size and is_named and sorted(rank for rank in ranks if rank is not None) == list(range(1, size + 1)):
        ranks = [(rank or 0) - 1 for rank in ranks]
        notes = (f"names count ranks from 1 to {size}: rank 0 is that of 1",)
    if all(claim.rank is None for claim in claims) and (None in ranks or has_twice(ranks)):
        # Names of an engine (TP-3-DP-0-DECODE) tell places in several dimensions: the one that differs counts.
        places = [int(told[1]) if (told := _TENSOR_PLACE.search(claim.path.name)) else None for claim in claims]
        if None not in places and not has_twice(places):
            ranks = places
    if has_twice(ranks):
        named, spread = _told_by_names(claims, ranks, size), _local_ranks(claims, ranks, size)
        if named is not None:
            ranks = list(named)
            notes = ("files of one time say that they are of the same rank: their names, which differ, were taken",)
        elif spread is not None:
            ranks = list(spread)
            notes = ("files of several hosts have the same local ranks: hosts were numbered in the order of names",)
    found: dict[int, int] = {}
    later: dict[int, list[int]] = {}
    left_out: list[LeftOut] = []
    for at, (claim, rank) in enumerate(zip(claims, ranks, strict=True)):
        if rank is None:
            left_out.append(LeftOut(str(claim.path), "neither the file nor its name says of which rank it is"))
        elif found.setdefault(rank, at) != at:
            others = [claims[n] for n in (found[rank], *later.get(rank, ()))]
            copied = next((one for one in others if claim.digest == one.digest != b""), None)
            if copied is not None:
                left_out.append(LeftOut(str(claim.path), f"a copy of {copied.path}", rank))
            elif any(_are_at_once(claim, one) for one in others):
                left_out.append(LeftOut(str(claim.path), f"{SECOND.format(rank=rank)}: {others[0].path}", rank))
            else:
                later.setdefault(rank, []).append(at)
    return Identified(found, left_out, later, notes)


SECOND: Final = "rank {rank} too, by another file"


def _are_at_once(one: Claim, other: Claim) -> bool:
    """Whether two recordings may be of one time."""
    if one.span_ns is None or other.span_ns is None:
        return True
    return one.span_ns[0] < other.span_ns[1] and other.span_ns[0] < one.span_ns[1]


def has_twice(ranks: Iterable[int | None]) -> bool:
    """Whether a rank occurs more than once."""
    return any(count > 1 for rank, count in Counter(ranks).items() if rank is not None)


def _told_by_names(claims: Sequence[Claim], ranks: Sequence[int | None], world_size: int) -> list[int] | None:
    """Return the ranks in the files' names if these can tell files of the same own rank apart; else None."""
    named = [rank for claim in claims if (rank := rank_of_name(claim.path)) is not None]
    is_each = len(named) == len(claims) and not has_twice(named)
    is_possible = is_each and max(named) < (world_size or MAX_RANKS) and not _has_copies(claims)
    return named if is_possible and _are_of_one_time(claims, ranks) else None


def _local_ranks(claims: Sequence[Claim], ranks: Sequence[int | None], world_size: int) -> list[int] | None:
    """Number local ranks of several hosts through; None where they are not that.

    ``node-1/rank_0, node-1/rank_1, node-2/rank_0, node-2/rank_1`` are the ranks 0 to 3.
    """
    hosts = []  # folder and name of each file without its rank
    for claim, rank in zip(claims, ranks, strict=True):
        head, _, tail = f"{claim.path.parent}/{stem_of(claim.path)}".rpartition(str(rank))
        hosts.append(f"{head}*{tail}")

    def natural(host: str) -> list[tuple[int, str]]:  # node-2 comes before node-10
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in _NUMBERS.split(host)]

    of_host: dict[str, list[int]] = {host: [] for host in sorted(set(hosts), key=natural)}
    for host, rank in sorted((host, rank) for host, rank in zip(hosts, ranks, strict=True) if rank is not None):
        of_host[host].append(rank)
    size = len(next(iter(of_host.values()), ()))
    is_alike = all(own == list(range(size)) for own in of_host.values()) and len(of_host) > 1
    if not is_alike or 0 < world_size < size * len(of_host) or not _are_of_one_time(claims, ranks):
        return None
    if any(map(_PLACE.search, of_host)):  # tp0_dp1: nothing tells which of them counts faster
        return None
    # Copies of one host's files in several folders look like hosts, unless the job is known to be that large.
    if not world_size and _has_copies(claims):
        return None
    first = {host: at * size for at, host in enumerate(of_host)}
    return [first[host] + (rank or 0) for host, rank in zip(hosts, ranks, strict=True)]


def _has_copies(claims: Sequence[Claim]) -> bool:
    return len({claim.digest for claim in claims}) < len(claims)


def _are_of_one_time(claims: Sequence[Claim], ranks: Sequence[int | None]) -> bool:
    """Whether files of one rank may be of several processes: those of one record at different times."""
    by_rank = grouped(zip(ranks, claims, strict=True))
    return all(_are_at_once(own[0], one) for own in by_rank.values() for one in own[1:])
