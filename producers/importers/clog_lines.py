"""One log of clog, version 1: its lines in their order, as calls of operators that have ended.

A start and an end name the signature alone and not the call: those of one signature are paired in their order. Lines
of CUDA graphs are left out, since replays have no order. Times are whole milliseconds of the host's clock, and are
read as integers, so that they stay whole.

A signature is the line that gives a number ``C<id>`` its operator, once for each operator, size and communicator:
``C3|sig|all_reduce|in_count=…|…|comm=…``.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

from irregulars.errors import InputError
from irregulars.messages.records import OPERATOR_CODES, P2P, RECV, UNKNOWN
from irregulars.producers.importers.groups import MAX_RANKS, bytes_of_type, name_of

# Sends and recvs issued together: the log counts them, and names neither the operators nor their peers.
BATCH: Final = "batch_op_issue"
_COUNT: Final = re.compile(r"\d{1,15}", re.ASCII)  # no more digits than a float holds exactly


class Signature(NamedTuple):
    """Operator, communicator and size of the calls of one number."""

    communicator: str
    operator: int | None  # none where the name is none that we know
    peer: int  # the other end of a send or recv, as rank inside of the communicator; `UNKNOWN` for collectives
    size_bytes: float
    is_async: bool  # whether the caller goes on before the operator has ended


def read_signature(fields: list[str]) -> Signature | None:
    """Read a signature's fields, from the operator's name on; None where it names no communicator or no peer.

    >>> read_signature("send|in_count=4|out_count=0|dtype=bf16|peer=3|async_op=t|comm=pp_0".split("|"))
    Signature(communicator='pp_0', operator=9, peer=3, size_bytes=8.0, is_async=True)
    """
    *listed, communicator = fields
    named = dict(field.partition("=")[::2] for field in listed[1:])
    if not communicator.startswith("comm=") or len(communicator) == len("comm="):
        return None
    operator = OPERATOR_CODES.get(listed[0].removesuffix("_single").removesuffix("_v")) if listed else None
    peer = _count(named.get("peer", "")) if operator in P2P else UNKNOWN
    if operator in P2P and not 0 <= peer < MAX_RANKS:
        return None
    # The payload is the rank's input, or its output where it only receives.
    given = "out" if operator == RECV else "in"
    counts = named.get(f"{given}_count") or named.get(f"{given}_counts") or named.get("out_count", "")
    elements = [_count(one) for one in counts.split(",")]
    size_bytes = math.nan if min(elements) < 0 else float(sum(elements)) * bytes_of_type(named.get("dtype"))
    is_async = named.get("async_op") == "t"
    return Signature(name_of(communicator[len("comm=") :]), operator, peer, size_bytes, is_async)


def _count(text: str) -> int:
    return int(text) if _COUNT.fullmatch(text) else -1


VERSION: Final = 1
# Calls of one rank that have not ended: a log without ends would fill the memory with them.
MOST_OPEN: Final = 100_000
# Signatures stay in memory and in a follower's state; there is one for each operator, size and communicator.
MOST_SIGNATURES: Final = 200_000
MOST_MEMBERSHIPS: Final = 2_000
MOST_LISTED: Final = 1 << 21  # ranks in all split lines of a log
_MOST_LOST: Final = 1 << 40
# Threads write lines a moment after they looked at the clock; more than that, and the clock was put back.
_BACKWARDS_MS: Final = 100
_HEADER: Final = re.compile(r"V\|(\d{1,9})\|base_timestamp=(\d{1,12})\.(\d{3})", re.ASCII)
_TIME: Final = re.compile(r"\+(-?)(\d{1,12})\.(\d{3})", re.ASCII)
_ID: Final = re.compile(r"C\d{1,18}", re.ASCII)
_GRAPH: Final = re.compile(r"G\d{1,20}", re.ASCII)
_RANKS: Final = re.compile(r"\d{1,7}(,\d{1,7})*", re.ASCII)
BAD: Final = "lines that can't be read"
GRAPHS: Final = "events of CUDA graphs, which have no order"
NO_CALL: Final = "starts and ends without a call"
NO_END: Final = "calls whose end is missing"
UNSIGNED: Final = "calls without a signature"
BATCHES: Final = "batches of sends and recvs, of which the log names no peers"
UNKNOWN_OPERATORS: Final = "calls of operators that we don't know"
WARNINGS: Final = "warnings that TorchComms wrote itself"
FOREIGN: Final = "lines of files that are no clog"


class Membership(NamedTuple):
    """A communicator that this rank made or was given: its rank inside, and how many are in it."""

    communicator: str
    comm_rank: int
    size: int


class Split(NamedTuple):
    """A communicator made of another one; `ranks` are ranks inside of that one."""

    parent: str
    child: str
    ranks: tuple[int, ...]


class Call(NamedTuple):
    """One call of an operator; `start_ms` and `end_ms` are None where the log does not hold them (yet)."""

    communicator: str
    operator: int
    # How many collectives this rank called on the communicator before; of sends and recvs, how many with that peer
    number: int
    peer: int
    size_bytes: float
    is_async: bool
    called_ms: int
    start_ms: int | None = None
    end_ms: int | None = None


class LogParser:
    """Reads the lines of one log, in their order.

    `skips_foreign`: whether a file that does not begin as a log is counted line by line; else it is refused.
    """

    def __init__(self, *, skips_foreign: bool = False) -> None:
        self.skipped: Counter[str] = Counter()
        self.members: list[Membership] = []
        self.splits: list[Split] = []
        self.times = TimeCounts()
        self.calls = self.events = self.lost = self.backwards = 0
        self._skips_foreign = skips_foreign
        self._is_foreign = False
        self._line = 0
        self.base_ms: int | None = None  # when the log was begun, ms since the epoch; None before its first line
        self.newest_ms = self._newest_call_ms = 0  # time of the newest line and call, ms since the epoch
        self._newest_call = ""
        self._is_after_sync = False
        self._last_work = 0
        self._open_sync = self._open = self._listed = 0
        self._signatures: dict[str, Signature] = {}
        self._numbers: Counter[tuple[Any, ...]] = Counter()
        self._called: dict[str, deque[Call]] = {}
        self._running: dict[str, deque[Call]] = {}
        self._blocking: set[str] = set()  # signatures that may have open calls which block

    def parse(self, line: bytes) -> Call | None:
        """Read one line; return the call that ends with it.

        Raises InputError if this is no log of version 1, or more than one rank writes it, or nothing in it ever ends.
        """
        self._line += 1
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        if self._is_foreign:
            self.skipped[FOREIGN] += 1
            return None
        if self.base_ms is None:
            self._begin(text)
            return None
        if text.startswith("V|"):
            raise self._error("be within one log", text, "each rank needs a file of its own as output=")
        fields = text.split("|")
        if fields[0] == "WARN":
            self.skipped[WARNINGS] += 1
        elif _GRAPH.fullmatch(fields[0]) and len(fields) > 2:
            self._count_work(fields)
            self.skipped[GRAPHS] += 1
        elif _ID.fullmatch(fields[0]) and len(fields) > 2:
            return self._take_event(fields)
        elif text and not self._take_communicator(fields):
            self.skipped[BAD] += 1
        return None

    def collectives(self, communicator: str) -> int:
        """Return the number of collectives that were called on a communicator."""
        return self._numbers.get((communicator, UNKNOWN, UNKNOWN), 0)

    def open_calls(self) -> Iterator[Call]:
        """Yield the calls that have not ended, in the order of each signature."""
        for pairs in (self._running, self._called):
            for calls in pairs.values():
                yield from calls

    def drop_calls(self) -> None:
        """Forget the state for further lines: none of this log will come, and its open calls may be many.

        The counts of its times are forgotten too: a log in which calls never end looks as if none blocked.
        """
        for one in (self._signatures, self._numbers, self._called, self._running):
            one.clear()
        self._open = self._open_sync = 0
        self.times = TimeCounts()

    # --- lines ------------------------------------------------------------------------------------------------------

    def _begin(self, text: str) -> None:
        found = _HEADER.fullmatch(text)
        if found is not None and int(found[1]) == VERSION:
            self.base_ms = self.newest_ms = int(found[2]) * 1000 + int(found[3])
            return
        if found is None and self._skips_foreign:
            self._is_foreign = True
            self.skipped[FOREIGN] += 1
            return
        raise self._error(f"be V|{VERSION}|base_timestamp=SECONDS.MILLISECONDS, as clog of version {VERSION} begins",
                          text)  # fmt: skip

    def _error(self, rule: str, text: str, advice: str = "") -> InputError:
        return InputError(f"line {self._line} must {rule}; got {text[:40]!r}{advice and ': ' + advice}")

    def _take_event(self, fields: list[str]) -> Call | None:
        kind = fields[1]
        if kind == "sig":
            signature = read_signature(fields[2:]) if len(fields) > 3 else None
            if signature is None:
                self.skipped[BAD] += 1
                return None
            if len(self._signatures) >= MOST_SIGNATURES:
                raise self._error(f"be among the first {MOST_SIGNATURES} signatures", fields[0],
                                  "leave verbose= empty")  # fmt: skip
            is_batch = fields[2] == BATCH
            self._signatures[fields[0]] = signature._replace(communicator=BATCH) if is_batch else signature
            return None
        at_ms = None
        if (found := _TIME.fullmatch(fields[-1])) is not None:
            after_ms = int(found[2]) * 1000 + int(found[3])
            at_ms = (self.base_ms or 0) + (-after_ms if found[1] else after_ms)
            self.backwards += at_ms < self.newest_ms - _BACKWARDS_MS
            self.newest_ms = at_ms
        # A call has at most four fields (C3|Q|work_id=7|+0.004), the others have three.
        if at_ms is None or kind not in ("Q", "S", "E", "W") or len(fields) > (4 if kind == "Q" else 3):
            self.skipped[BAD] += 1
            if kind == "E":  # it ended at an unknown time: the next end is that of the next call
                self._end(fields[0], self.newest_ms)
        elif kind == "Q":
            self._call(fields, at_ms)
        elif kind == "S":
            identity = fields[0]
            self.events += 1
            calls = self._called.get(identity)
            if calls:
                self._running.setdefault(identity, deque()).append(calls.popleft()._replace(start_ms=at_ms))
            elif self._is_ours(identity):
                self.skipped[NO_CALL] += 1
        elif kind == "E":
            return self._end(fields[0], at_ms)
        return None  # a wait of the host (W) shows nothing of the operator

    def _take_communicator(self, fields: list[str]) -> bool:
        named = dict(field.partition("=")[::2] for field in fields[1:])
        if len(self.members) + len(self.splits) >= MOST_MEMBERSHIPS:
            return False
        if fields[0] == "new_comm":
            rank, size = named.get("rank", ""), named.get("world_size", "")
            if not named.get("comm") or not _RANKS.fullmatch(f"{rank},{size}"):
                return False
            one = Membership(name_of(named["comm"]), int(rank), int(size))
            if not one.comm_rank < one.size <= MAX_RANKS:
                return False
            # Two ranks that write into one file: their calls can't be told apart any more.
            if any(other[::2] == one[::2] and other.comm_rank != one.comm_rank for other in self.members):
                text = f"rank {one.comm_rank} of {one.communicator}"
                raise self._error("be of the same rank as those before", text, "each rank needs a file of its own")
            if one not in self.members:
                self.members.append(one)
            return True
        ranks = named.get("ranks", "?")
        if fields[0] != "split" or not named.get("parent") or not named.get("child"):
            return False
        if not ranks:  # a rank that is in no part
            return True
        if not _RANKS.fullmatch(ranks):
            return False
        split = Split(name_of(named["parent"]), name_of(named["child"]), tuple(map(int, ranks.split(","))))
        if split not in self.splits:
            self._listed += len(split.ranks)
            if self._listed > MOST_LISTED:
                raise self._error(f"list at most {MOST_LISTED} ranks, with all split lines before", fields[0])
            self.splits.append(split)
        return True

    # --- calls ------------------------------------------------------------------------------------------------------

    def _call(self, fields: list[str], at_ms: int) -> None:
        self._count_work(fields)
        identity = fields[0]
        signature = self._signatures.get(identity)
        if signature is None or signature.operator is None:
            is_batch = signature is not None and signature.communicator == BATCH
            self.skipped[UNSIGNED if signature is None else BATCHES if is_batch else UNKNOWN_OPERATORS] += 1
            if signature is not None and not is_batch:
                self._numbers[signature.communicator, UNKNOWN, UNKNOWN] += 1  # it has a place among the collectives
            return
        if self._open >= MOST_OPEN:
            raise self._error(f"come when at most {MOST_OPEN} calls have not ended", identity,
                              "clog writes ends with events=['LIFECYCLE']")  # fmt: skip
        if self._open_sync and self._newest_call and self.times.do_block():
            self._drop_endless()
        is_pair = signature.operator in P2P
        key = (signature.communicator, signature.peer, signature.operator if is_pair else UNKNOWN)
        call = Call(signature.communicator, signature.operator, self._numbers[key], *signature[2:], at_ms)
        self._numbers[key] += 1
        self.calls += 1
        # Before this call is counted itself: whether an earlier one that blocks is still open.
        self.times.followed += self._is_after_sync
        self.times.overlapped += self._open_sync > 0
        self._is_after_sync = not call.is_async
        self._open += 1
        if not call.is_async:
            self._open_sync += 1
            self._blocking.add(identity)
        self._newest_call, self._newest_call_ms = identity, at_ms
        self._called.setdefault(identity, deque()).append(call)

    def _drop_endless(self) -> None:
        """Drop the open calls that block: where each call ends before the next one, the lines of their ends are lost.

        Else each later end of the same signature would be taken for that of the call before it.
        """
        for pairs in (self._running, self._called):
            for identity in self._blocking & pairs.keys():
                calls = pairs[identity]
                kept = deque(call for call in calls if call.is_async)
                self.skipped[NO_END] += len(calls) - len(kept)
                self._open -= len(calls) - len(kept)
                pairs[identity] = kept
        self._open_sync = 0
        self._blocking.clear()

    def _count_work(self, fields: list[str]) -> None:
        """Count the numbers of calls that are missing: their lines were lost."""
        text = next((field[len("work_id=") :] for field in fields if field.startswith("work_id=")), "")
        if not text.isascii() or not text.isdigit() or len(text) > 15:
            return
        gap = int(text) - self._last_work - 1
        self.lost = min(max(self.lost + max(gap, -1), 0), _MOST_LOST)  # threads may write them in another order
        self._last_work = max(self._last_work, int(text))

    def _end(self, identity: str, at_ms: int) -> Call | None:
        self.events += 1
        calls = self._running.get(identity) or self._called.get(identity)
        if not calls:
            if self._is_ours(identity):
                self.skipped[NO_CALL] += 1
            return None
        call = calls.popleft()
        self._open -= 1
        self._open_sync -= not call.is_async
        # An end beside another call is a sign of a watchdog, which looks at each call; beside its own it is none.
        is_last = not self._running.get(identity) and not self._called.get(identity)
        other_ms = None if is_last and identity == self._newest_call else self._newest_call_ms
        self.times.add_end(call, at_ms, other_ms)
        return call._replace(end_ms=at_ms)

    def _is_ours(self, identity: str) -> bool:
        """Whether calls of a signature are taken; those that are not were counted when they were made."""
        signature = self._signatures.get(identity)
        return signature is None or signature.operator is not None


LONG_MS: Final = 2  # from the call to the end: of a shorter operator, either of both times may be its begin
_SAME_MS: Final = 1  # a start and an end that were written together may be rounded apart by this
# Share of long operators that began where they ended from which starts are not believed.
_MOST_HOLLOW: Final = 0.9
# Share of blocking calls that may have no end when the next one comes: lines of ends can be lost.
_MOST_OVERLAPPED: Final = 0.05
# Share of ends written at another call from which a watchdog wrote them.
_MOST_AT_CALLS: Final = 0.5
# Fewer ended operators, or calls after one that should block, prove nothing.
_LEAST_ENDED: Final = 20
_LEAST_CALLS: Final = 50
# Share of the operators that ended; fewer calls that should block prove nothing about the others.
_LEAST_FOLLOWED: Final = 0.1
# From when an operator of a rank is counted: its start, its call, or neither can be trusted.
START, CALL, UNCLEAR = "start", "call", "unclear"


@dataclass(slots=True)
class TimeCounts:
    """Counts of one log which show whether its times can be trusted: by when starts and ends were written.

    clog writes a start and an end when TorchComms *learns* of them. On gloo that is at once, and a call returns when
    the operator has ended, so the call is the start. On NCCL a watchdog looks at the events of the GPU, every second
    (every 100 ms on NCCLX) and at each further call. An operator that began and ended between two looks has the same
    time twice, and a rank that waited in between seems not to have waited.
    """

    # followed, overlapped: Calls that should block and had another one behind them; those of them that had not ended
    # by then
    followed: int = 0
    overlapped: int = 0
    # ended, hollow: Operators of calls that should block whose end comes `LONG_MS` after the call or later; those of
    # them that began where they ended
    ended: int = 0
    hollow: int = 0
    # ended_apart, hollow_apart: The same of calls that return at once
    ended_apart: int = 0
    hollow_apart: int = 0
    # Of both, those whose end was written right after the call of another one, at which the watchdog looked
    at_calls: int = 0

    def add_end(self, call: Call, end_ms: int, other_call_ms: int | None) -> None:
        """Count an end; `other_call_ms`: when the newest call was made, if that was another one."""
        if end_ms - call.called_ms < LONG_MS:
            return
        is_hollow = call.start_ms is None or end_ms - call.start_ms <= _SAME_MS
        self.at_calls += other_call_ms is not None and 0 <= end_ms - other_call_ms <= _SAME_MS
        if call.is_async:
            self.ended_apart += 1
            self.hollow_apart += is_hollow
        else:
            self.ended += 1
            self.hollow += is_hollow

    def do_block(self, least: int = _LEAST_CALLS) -> bool:
        """Whether a call returns when its operator has ended, as far as `least` calls show."""
        return self.followed >= least and self.overlapped <= _MOST_OVERLAPPED * self.followed

    def trusted(self) -> str:
        """Return the time from which operators are counted.

        >>> TimeCounts(followed=100, overlapped=0, ended=90, hollow=90).trusted()  # gloo
        'call'
        >>> TimeCounts(followed=100, overlapped=70, ended=90, hollow=80, at_calls=80).trusted()  # NCCL
        'unclear'
        """
        ended = self.ended + self.ended_apart
        is_told = self.followed >= max(1.0, _LEAST_FOLLOWED * ended)
        if is_told and not self.do_block(1):
            return UNCLEAR  # only GPUs let the caller of such a call go on, and those are looked at
        if not is_told and ended >= _LEAST_ENDED and self.at_calls >= _MOST_AT_CALLS * ended:
            return UNCLEAR
        if self.ended_apart >= _LEAST_ENDED and self.hollow_apart >= _MOST_HOLLOW * self.ended_apart:
            return UNCLEAR
        if self.hollow < max(1.0, _MOST_HOLLOW * self.ended):
            return START
        return CALL if self.do_block(1) else UNCLEAR

    @classmethod
    def of_all(cls, logs: Iterable[TimeCounts]) -> TimeCounts:
        """Add up the counts of several logs: ranks of one job are of one backend."""
        listed = list(logs)
        return cls(*(sum(getattr(one, field.name) for one in listed) for field in fields(cls)))
