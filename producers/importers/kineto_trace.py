"""One Kineto trace: collectives, launches, steps and groups of one rank, from its events and properties.

GPU collectives are kernels, known by the arguments that PyTorch copies onto them, else by their names: those of NCCL
and RCCL, and of all-reduces that engines bring themselves. A kernel's name may not name its operator (an all_to_all
runs as ``SendRecv``, with RCCL all are ``rcclGenericKernel``); then the ``nccl:*`` annotation around its launch does.
On the CPU the ``gloo:*`` annotations are the collectives. Annotations of other backends (``hccl:*``) only issue one,
and the trace does not tell when it ran. Events are plain values of any type: nothing about them is trusted.

Spans of a trace are the timed actions of each thread; lookups return the innermost span around a moment.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import IO, Any, Final, NamedTuple, TypeGuard

import numpy as np
import orjson

from irregulars.errors import InputError
from irregulars.grouping import grouped
from irregulars.messages.bounds import LATEST_NS, MOST_EXACT
from irregulars.messages.records import P2P, RECV
from irregulars.producers.importers.groups import ProcessGroup, bytes_of_tensors, bytes_of_type, operator_of, ranks_of
from irregulars.producers.importers.kineto_kernels import MOST_EVENTS, OF_THE_CPU, KernelParser, Profile, TimedSpan


class SpansByThread:
    """Spans of each thread, to find the innermost one around a moment."""

    def __init__(self, spans: Iterable[TimedSpan]) -> None:
        self._spans = grouped((span.thread, span) for span in sorted(spans, key=lambda one: one.start_ns))
        self._starts = {thread: [one.start_ns for one in own] for thread, own in self._spans.items()}

    def around(self, moment_ns: int, thread: object) -> TimedSpan | None:
        """Return the span of a thread that began last before a moment, if it lasted until then."""
        at = bisect_right(self._starts.get(thread, []), moment_ns) - 1
        return self._spans[thread][at] if at >= 0 and moment_ns <= self._spans[thread][at].end_ns else None


# Texts of which each event that matters has one. Between capital and small letters a file differs, so
# words begin in their midst.
WANTED: Final = (
    b"ccl", b"gloo:", b"ProfilerStep#", b"record_param_comms", b"c10d::send", b"c10d::recv", b"Collective name",
    b"device_reduce", b"ll_reduce", b"llreduce", b"llReduce", b"ll_gather", b"llgather", b"llGather",
    b"deep_ep", b"educe_scatter", b"educescatter", b"educeScatter", b"ll_to_all", b"lltoall", b"llToAll", b"ll2all",
    b"correlation", b'mm"', b"DataLoader",
)  # fmt: skip

# Kernels of collectives, by name. ``cross_device_reduce`` is the all-reduce of vLLM, SGLang and aiter,
# ``multimem_all_reduce_kernel`` that of PyTorch's symmetric memory. Inductor (``triton_*``) names kernels after the
# operators around them. ``deep_ep`` exchanges what experts get: such kernels are counted.
COLLECTIVE: Final = re.compile(
    r"(?!triton_).*(ccl|deep_ep|(all_?|device_)reduce|all_?gather|reduce_?scatter|all_?(to|2)_?all)",
    re.IGNORECASE | re.DOTALL,
)
_NOTE: Final = re.compile(r"(\w{0,8}ccl|gloo|mpi|ucc):\w")
STEP: Final = re.compile(r"ProfilerStep#(\d{1,15})$")
_MOST_US: Final = 1 << 53
_MOST_KEPT: Final = 500_000
_MOST_TEXT: Final = 32 << 20  # events that are kept of a trace, and characters of the different texts in them
_LONGEST_TEXT: Final = 1 << 16
_LONGEST_NAME: Final = 200
_MOST_GROUPS: Final = 65_536


class Kernel(NamedTuple):
    """A NCCL kernel on the GPU, with the arguments of its event."""

    start_ns: int
    elapsed_ns: float
    name: str
    arguments: Mapping[str, Any]


class Call(NamedTuple):
    """One collective of this rank."""

    group: ProcessGroup | None  # the process group; None where the trace does not say
    lane: str  # stands for the group where the trace does not name it: the stream, or the backend's name
    operator: int
    start_ns: int
    elapsed_ns: float
    size_bytes: float
    issued_ns: int | None  # when the call was made: it belongs to the step around that time; None: not in the trace
    peer: int = -1  # the other end of p2p as a rank of the group; -1 elsewhere


@dataclass(slots=True)
class Capture:
    """Contents of one trace."""

    rank: int | None  # by its own words, else None
    world_size: int | None
    host: str | None
    groups: tuple[ProcessGroup, ...]
    steps: list[TimedSpan]
    calls: list[Call]
    skipped: dict[str, int] = field(default_factory=dict)
    profile: Profile | None = None

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """From the start of its first call to the end of its last; None without any."""
        ends = [call.start_ns + int(call.elapsed_ns) for call in self.calls]
        return (min(call.start_ns for call in self.calls), max(ends)) if ends else None

    @property
    def is_bare(self) -> bool:
        """Whether it holds no collective, not even one that can't be used."""
        return not self.calls and not self.skipped

    @property
    def digest(self) -> bytes:
        """Digest of its calls, the same for copies of one trace in whatever form; empty without any."""
        times = np.array([(call.operator, call.start_ns, call.elapsed_ns) for call in self.calls], dtype=np.int64)
        return blake2b(times.tobytes(), digest_size=16).digest() if len(times) else b""


class TraceParser:
    """Gather the events of one trace: `add` each of them, then `capture` once."""

    def __init__(self) -> None:
        self._base_ns = 0
        self._kernels: list[Kernel] = []
        self._steps: dict[int, TimedSpan] = {}
        self._notes: list[TimedSpan] = []  # annotations of the CPU that issue a collective: nccl:*, hccl:*
        self._writers: dict[str, object] = {}  # the process that made the calls, and the GPU that ran them
        self._gloo: list[TimedSpan] = []
        self._pairs: list[TimedSpan] = []  # c10d::send and c10d::recv_, with the peer
        self._gpu = KernelParser()
        self._launches: dict[int, tuple[int, object]] = {}
        self._issued: dict[int, tuple[int, Mapping[str, Any]]] = {}  # record_param_comms by External id
        self._kept = self._timeless = 0
        self._texts: dict[str, str] = {}
        self._text_length = 0

    # --- events -----------------------------------------------------------------------------------------------------

    def add(self, event: Mapping[str, Any]) -> None:
        """Take in an event; InputError if there are more collectives than a trace can have."""
        # Only complete events (X) have a start and a length; the others are flows, counters and names of threads.
        name, category, arguments = event.get("name"), event.get("cat"), event.get("args")
        start_us, length_us = event.get("ts"), event.get("dur")
        if event.get("ph") != "X" or not isinstance(name, str) or not isinstance(arguments, dict):
            return
        category = category.lower() if isinstance(category, str) else ""  # "Kernel" and "Operator" up to PyTorch 1.11
        is_kernel = category == "kernel" and ("Collective name" in arguments or bool(COLLECTIVE.match(name)))
        is_own = is_kernel or category.startswith(OF_THE_CPU)
        is_note = is_own and not is_kernel and _NOTE.match(name) is not None
        if not (is_time(start_us) and is_time(length_us)):
            self._timeless += is_kernel or is_note
            return
        # A length beyond the contract's bounds stays beyond them, and its sums fit into 64 bits.
        start_ns, elapsed_ns = to_ns(start_us), min(to_ns(length_us), MOST_EXACT + 1)
        span = TimedSpan(start_ns, start_ns + elapsed_ns, thread_of(event.get("tid")), name[:_LONGEST_NAME])
        self._gpu.add(category, span, arguments, is_communication=is_kernel)
        if not is_own:
            return
        name = self._shared(span.name)
        span = span._replace(name=name)
        if is_kernel:
            self._keep("GPU", arguments.get("device"))
            self._kernels.append(Kernel(start_ns, elapsed_ns, name, self._arguments(arguments)))
        elif is_note:
            self._keep("process", event.get("pid"))
            size_bytes = bytes_of_tensors(arguments.get("Input Dims"), arguments.get("Input type"))
            (self._gloo if name.startswith("gloo:") else self._notes).append(span._replace(size_bytes=size_bytes))
        elif (step := STEP.match(name)) is not None:
            self._keep("process", event.get("pid"))
            # Two threads may mark one step at the same time; apart, the file holds two captures.
            known = self._steps.setdefault(int(step[1]), span)
            if known is not span and (known.end_ns <= span.start_ns or span.end_ns <= known.start_ns):
                raise InputError(f"{name} must be there once; got it twice, as when captures are merged")
        elif name == "record_param_comms" and type(_number(arguments, "External id")) is int:
            self._keep("process", event.get("pid"))
            self._issued[_number(arguments, "External id")] = start_ns, self._arguments(arguments)
        elif name.startswith(("c10d::send", "c10d::recv")):
            self._keep("process", event.get("pid"))
            # c10d::send takes tensors, group, destination (a rank in the group), tag; c10d::recv_ alike.
            values = arguments.get("Concrete Inputs")
            text = values[2] if isinstance(values, list) and len(values) > 2 else None
            is_rank = isinstance(text, str) and re.fullmatch(r"\d{1,6}", text) is not None
            self._pairs.append(span._replace(peer=int(str(text)) if is_rank else -1))

    def _keep(self, what: str, number: object) -> None:
        """Count an event that is kept; InputError if there are too many, or of several processes or GPUs."""
        self._kept += 1
        if self._kept > _MOST_KEPT:
            raise InputError(f"a trace must hold at most {_MOST_KEPT} events of collectives; got more")
        if isinstance(number, (int, str)) and self._writers.setdefault(what, number) != number:
            both = f"{str(self._writers[what])[:20]} and {str(number)[:20]}"
            raise InputError(f"a trace must be of one {what}; got collectives of {both}, as when traces are merged")

    def _arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments of an event that matter here and are hashable."""
        kept: dict[str, Any] = {}
        for name in _ARGUMENTS:
            value = _number(arguments, name) if name == "External id" else arguments.get(name)
            if name in ("External id", "correlation"):
                if type(value) is int:
                    kept[name] = value
            elif isinstance(value, str) and len(value) <= _LONGEST_TEXT:
                kept[name] = self._shared(value)
            elif isinstance(value, (int, float)):
                kept[name] = value
        return kept

    def _shared(self, text: str) -> str:
        """Keep each text once: thousands of events name the same few groups."""
        known = self._texts.get(text)
        if known is not None:
            return known
        self._text_length += len(text)
        if self._text_length > _MOST_TEXT:
            raise InputError(f"names of groups and operators must have at most {_MOST_TEXT} characters; got more")
        self._texts[text] = text
        return text

    def _unknown(self) -> set[int]:
        """Return the correlations of kernels whose calls are not known: their launches tell when those were made."""
        known = {at for at, one in enumerate(self._kernels) if self._issue(one) and self._named(one) is not None}
        unknown = (one for at, one in enumerate(self._kernels) if at not in known and (self._notes or self._steps))
        return {one.arguments["correlation"] for one in unknown if "correlation" in one.arguments}

    # --- the capture ------------------------------------------------------------------------------------------------

    def capture(self, properties: Mapping[str, Any], unreadable: int = 0) -> Capture:
        """Return the contents of the trace; `unreadable`: number of wanted events that were no JSON."""
        base_ns = properties.get("baseTimeNanoseconds")
        self._base_ns = base_ns if type(base_ns) is int and 0 <= base_ns < LATEST_NS else 0
        self._launches = self._gpu.launches(self._unknown())
        told = properties.get("distributedInfo")
        told = told if isinstance(told, dict) else {}
        own = set()  # ranks that calls name: their place in their group, and the group's ranks
        for _, one in self._issued.values():
            ranks, place = ranks_of(one.get("Process Group Ranks")), one.get("Rank")
            if ranks is not None and _is_count(place) and place < len(ranks):
                own.add(ranks[place])
        rank = told["rank"] if _is_count(told.get("rank")) else own.pop() if len(own) == 1 else None
        sizes = (kernel.arguments.get("Group size") for kernel in self._kernels)  # the job has no fewer ranks
        largest = max((size for size in sizes if _is_count(size)), default=None)
        world_size = told["world_size"] if _is_count(told.get("world_size")) else largest
        # A size that the rank contradicts is not believed.
        if world_size is not None and world_size <= (rank or 0):
            world_size = None
        config = told.get("pg_config")
        groups: dict[str, ProcessGroup] = {}
        for one in config[:_MOST_GROUPS] if isinstance(config, list) else ():
            ranks = ranks_of(one.get("ranks")) if isinstance(one, dict) else None
            if ranks is not None:
                name = str(one.get("pg_name"))[:200]
                groups[name] = ProcessGroup(name, str(one.get("pg_desc") or "")[:200], ranks)
        left_out = {"events that are no JSON": unreadable, "collectives without a usable time": self._timeless}
        skipped = {reason: count for reason, count in left_out.items() if count}
        calls = list(self._kernel_calls(groups, skipped))
        self._count_unseen(calls, skipped)
        calls += self._gloo_calls(skipped)
        calls.sort(key=lambda call: (call.start_ns, call.issued_ns or 0))
        steps = []
        for number, span in sorted(self._steps.items()):
            start_ns = self._since_epoch(span.start_ns)
            steps.append(span._replace(start_ns=start_ns, end_ns=start_ns + span.end_ns - span.start_ns, peer=number))
        host = properties.get("host_name")
        host = host[:200] if isinstance(host, str) and host else None
        marks = [(span.start_ns, span.end_ns, number) for number, span in self._steps.items()]
        if self._gpu.left_out:
            skipped[f"kernels beyond {MOST_EVENTS:,}, so that none is measured"] = self._gpu.left_out
        profile = None if self._gpu.left_out else self._gpu.profile(marks, self._base_ns)
        return Capture(rank, world_size, host, tuple(groups.values()), steps, calls, skipped, profile)

    def _since_epoch(self, time_ns: int) -> int:
        """Return a time of the trace in ns since the epoch; all that no row may have are the first of these."""
        return min(time_ns + self._base_ns, LATEST_NS + 1)

    def _kernel_calls(self, groups: Mapping[str, ProcessGroup], skipped: dict[str, int]) -> Iterable[Call]:
        notes = SpansByThread(self._notes)
        for kernel in self._kernels:
            issue = self._issue(kernel)
            launch = self._launches.get(kernel.arguments.get("correlation", -1))
            note = notes.around(*launch) if launch is not None else None
            named = (self._named(kernel), None if note is None else operator_of(note.name), operator_of(kernel.name))
            operator = next((one for one in named if one is not None), None)
            if operator is None:
                _count(skipped, f"kernel {_word(kernel.name)} whose call is not in the trace")
                continue
            end = kernel.arguments.get("Src Rank" if operator == RECV else "Dst Rank")
            peer = end if _is_count(end) and operator in P2P else -1
            group = _group_of(kernel.arguments, groups) or _group_of({} if issue is None else issue[1], groups)
            if operator in P2P and (group is None or not 0 <= peer < len(group.ranks)):
                _count(skipped, "sends and recvs whose other end is not in the trace")
                continue
            issued_ns = issue[0] if issue is not None else launch[0] if launch is not None else None
            size_bytes, count = math.nan, kernel.arguments.get("In msg nelems")
            if note is not None:
                size_bytes = note.size_bytes
            elif is_time(count):
                size_bytes = count * bytes_of_type(kernel.arguments.get("dtype"))
            yield Call(
                group=group, lane=f"stream {kernel.arguments.get('stream')}", operator=operator,
                start_ns=self._since_epoch(kernel.start_ns), elapsed_ns=kernel.elapsed_ns, size_bytes=size_bytes,
                issued_ns=None if issued_ns is None else self._since_epoch(issued_ns), peer=peer,
            )  # fmt: skip

    def _issue(self, kernel: Kernel) -> tuple[int, Mapping[str, Any]] | None:
        """Return when a kernel's call was made, and its arguments; None where External id does not join them."""
        return self._issued.get(kernel.arguments.get("External id", -1))

    def _count_unseen(self, calls: Sequence[Call], skipped: dict[str, int]) -> None:
        """Count the issued collectives that no kernel shows, as those of a CPU-only trace or of another device."""
        seen = Counter(call.operator for call in calls)
        unnamed = len(self._kernels) - len(calls)  # kernels of unknown operators, which may be any of those issued
        for name, count in Counter(note.name for note in self._notes).items():
            own = operator_of(name)
            shown = 0 if own is None else min(count, seen[own])
            unclear = min(count - shown, unnamed)
            unnamed -= unclear
            if own is not None:
                seen[own] -= shown
            if count > shown + unclear:
                _count(skipped, f"{_word(name)} that no kernel in the trace shows", count - shown - unclear)

    def _named(self, kernel: Kernel) -> int | None:
        """Return the operator that a kernel's own arguments name."""
        _, told = self._issue(kernel) or (0, {})
        names = (one.get("Collective name") for one in (kernel.arguments, told))
        return next((operator_of(name) for name in names if isinstance(name, str)), None)

    def _gloo_calls(self, skipped: dict[str, int]) -> Iterable[Call]:
        pairs = SpansByThread(self._pairs)
        for span in self._gloo:
            operator = operator_of(span.name)
            if operator is None:
                _count(skipped, f"{_word(span.name)}: no operator that we know")
                continue
            call = pairs.around(span.start_ns, span.thread) if operator in P2P else None
            if operator in P2P and call is None:
                _count(skipped, "sends and recvs whose other end is not in the trace")
                continue
            yield Call(
                group=None, lane="gloo", operator=operator, start_ns=self._since_epoch(span.start_ns),
                elapsed_ns=span.end_ns - span.start_ns, size_bytes=span.size_bytes,
                issued_ns=self._since_epoch(span.start_ns), peer=-1 if call is None else call.peer,
            )  # fmt: skip


_ARGUMENTS: Final = (
    "Collective name", "In msg nelems", "dtype", "Process Group Name", "Process Group Ranks",
    "Process Group Description", "Dst Rank", "Src Rank", "External id", "correlation", "stream", "Group size", "Rank",
)  # fmt: skip


def _number(arguments: Mapping[str, Any], name: str) -> Any:
    return arguments.get(name, arguments.get(name.lower()))  # "external id" up to PyTorch 1.11


def thread_of(value: object) -> object:
    """Return a thread's id as a key."""
    return value if isinstance(value, (int, str)) else None


def is_time(value: object) -> TypeGuard[float]:
    """Whether a value can be µs since some moment."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _MOST_US


def to_ns(value_us: Any) -> int:
    """Convert µs with decimals; whole µs since the epoch are more ns than a float can hold."""
    whole = int(value_us)
    return whole * 1000 + round((value_us - whole) * 1000)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 20


def _word(name: str) -> str:
    return re.sub(r"[^\w:.-].*", "", name[:60].removeprefix("void "), flags=re.DOTALL)


def _count(skipped: dict[str, int], reason: str, count: int = 1) -> None:
    # Reasons hold names of the file: a strange one must not fill the memory with them.
    if reason in skipped or len(skipped) < 20:
        skipped[reason] = skipped.get(reason, 0) + count


def _group_of(arguments: Mapping[str, Any], groups: Mapping[str, ProcessGroup]) -> ProcessGroup | None:
    """Return the group that an event names, with the ranks of the trace's list of groups: events shorten them."""
    name = arguments.get("Process Group Name")
    if not isinstance(name, str):
        return None
    if name in groups:
        return groups[name]
    ranks = ranks_of(arguments.get("Process Group Ranks"))
    if ranks is None:
        return None
    description = arguments.get("Process Group Description")
    return ProcessGroup(name[:200], description[:200] if isinstance(description, str) else "", ranks)


Array = np.ndarray
BLOCK_BYTES: Final = 1 << 20
MAX_EVENT_BYTES: Final = 4 << 20
MAX_HEAD_BYTES: Final = 8 << 20  # of the text before and behind the events: properties of devices, groups, logs
_NAME_BYTES: Final = 1 << 10  # of the name of the list, with the white space behind it
_QUOTE, _BACKSLASH = 0x22, 0x5C
_OPENING, _CLOSING = 0x0B, 0x0D  # lower halves of { [ and of } ]
_LIST_DEPTH: Final = 2  # of the list of events: the file's object is 1, so that events begin there


class Structure(NamedTuple):
    """Brackets of a block that are not inside strings."""

    at: Array  # their places
    depth: Array  # depth after each of them, when the block begins at depth 0
    is_open: Array  # whether they open an object or a list


def find_structure(block: bytes) -> Structure:
    """Find the brackets of a block that begins outside of strings; a string that the block cuts hides its rest."""
    codes = np.frombuffer(block, dtype=np.uint8)
    # Quotes, and bytes equal to { } [ ] but for three bits; five others of that kind (Y _ y and two more) are sorted
    # out below.
    places = np.flatnonzero((codes == _QUOTE) | ((codes & 0xD9) == 0x59))
    found = codes[places]
    is_quote = found == _QUOTE
    if b"\\" in block:  # an odd number of backslashes before a quote escapes it
        slashes = np.flatnonzero(codes == _BACKSLASH)
        is_first = np.diff(slashes, prepend=-2) != 1
        run = np.cumsum(is_first) - 1
        length = np.arange(len(slashes)) - np.flatnonzero(is_first)[run] + 1  # of each run up to and with each slash
        is_escaping = np.zeros(len(codes) + 1, dtype=bool)
        is_escaping[slashes[length % 2 == 1] + 1] = True
        is_quote &= ~is_escaping[places]
    is_outside = (np.cumsum(is_quote, dtype=np.int32) & 1) == 0
    low = found & 0x0F
    is_bracket = is_outside & ((low == _OPENING) | (low == _CLOSING)) & ~is_quote
    is_open = low[is_bracket] == _OPENING
    return Structure(places[is_bracket], np.cumsum(np.where(is_open, 1, -1), dtype=np.int32), is_open)


# Numbers as a profiler wrote them that are none of JSON: no finite ones, and with the decimal comma of its locale
_NOT_FINITE: Final = re.compile(rb"(?<=[:\[,])\s*-?(nan|inf(inity)?)(?=\s*[],}])", re.IGNORECASE)
_COMMA: Final = re.compile(rb'("\s*:\s*-?\d+),(?=\d+\s*[,}])')


def load_event(text: bytes) -> Any:
    """Parse an event; None where it is no JSON, apart from its numbers.

    >>> load_event(b'{"ts": 3.5, "args": {"blocks per SM": 7,75, "warps per SM": -nan}}')
    {'ts': 3.5, 'args': {'blocks per SM': 7.75, 'warps per SM': None}}
    """
    with suppress(orjson.JSONDecodeError, RecursionError):
        return orjson.loads(text)
    with suppress(orjson.JSONDecodeError, RecursionError):
        return orjson.loads(_COMMA.sub(rb"\1.", _NOT_FINITE.sub(b"null", text)))
    return None


class EventReader:
    """Read the wanted events of a Chrome trace, block by block; memory does not grow with the file.

    A profiler writes hundreds of thousands of events, of which some hundred are collectives. So the structure of a
    block (strings, brackets, depth) is found for all its bytes at once, in numpy; that gives the exact borders of all
    events, whatever is written inside of strings. Only events that hold one of the `wanted` texts are parsed. The
    file's object apart from its events is kept and parsed at the end, which also tells a file that was cut off.
    """

    def __init__(self, stream: IO[bytes], wanted: Sequence[bytes], block_bytes: int = BLOCK_BYTES) -> None:
        self._stream, self._wanted, self._block_bytes = stream, tuple(wanted), block_bytes
        self._rest = b""
        self._head = b""
        self.unreadable = 0  # wanted events that are no JSON

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the wanted events.

        Raises InputError if the file is no such trace, is cut off, or an event or the rest are larger than any
        profiler writes. Events that are no JSON (names with bare quotes) are counted.
        """
        # Up to the list of events (Chrome's format: in an object, or alone); the text before it is kept.
        while self._fill():
            self._rest = self._rest.removeprefix(BOM_UTF8)
            begin = self._begin_of_list()
            if begin is not None:
                self._head, self._rest = self._rest[:begin], self._rest[begin:]
                break
            if len(self._rest) > MAX_HEAD_BYTES:
                raise InputError(f"what precedes traceEvents must be at most {MAX_HEAD_BYTES} bytes; got more")
        else:
            raise InputError("must be a JSON object with a list 'traceEvents', or a list of events; got none")
        while not (yield from self._read_block()):
            if not self._fill():
                raise InputError("must be a complete trace; got the end of the file inside of traceEvents")

    def properties(self) -> dict[str, Any]:
        """Return the file's object without its events, empty for a list; call it after `read` has ended.

        Raises InputError if it is no complete JSON object or list.
        """
        while self._fill():
            if len(self._rest) > MAX_HEAD_BYTES:
                raise InputError(f"what follows traceEvents must be at most {MAX_HEAD_BYTES} bytes; got more")
        try:
            found = orjson.loads(self._head + self._rest)
        except (orjson.JSONDecodeError, RecursionError) as error:
            raise InputError(f"must be a complete JSON object; got: {' '.join(str(error).split())[:160]}") from None
        return found if isinstance(found, dict) else {}

    def _fill(self) -> bool:
        block = self._stream.read(self._block_bytes)
        self._rest += block
        return bool(block)

    # --- before the events ------------------------------------------------------------------------------------------

    def _begin_of_list(self) -> int | None:
        if self._rest.lstrip()[:1] == b"[":
            return self._rest.index(b"[") + 1
        if b'"traceEvents"' in self._rest:
            structure = find_structure(self._rest)
            is_list = structure.is_open & (structure.depth == _LIST_DEPTH)
            for at in structure.at[is_list].tolist():
                before = self._rest[max(0, at - _NAME_BYTES) : at].rstrip().removesuffix(b":").rstrip()
                if self._rest[at : at + 1] == b"[" and before.endswith(b'"traceEvents"'):
                    return int(at) + 1
        return None

    # --- the events -------------------------------------------------------------------------------------------------

    def _read_block(self) -> Generator[dict[str, Any], None, bool]:
        """Yield the wanted events that are complete so far; return whether the list has ended."""
        block = self._rest
        structure = find_structure(block)
        # The block begins inside of the list: the bracket that goes below depth 0 closes it.
        after = np.flatnonzero(structure.depth < 0)
        is_over = bool(len(after))
        if is_over:
            structure = Structure(*(column[: after[0] + 1] for column in structure))
        begins = structure.at[structure.is_open & (structure.depth == 1)]
        pasts = structure.at[~structure.is_open & (structure.depth == 0)] + 1
        past = int(structure.at[-1]) if is_over else int(pasts[-1]) if len(pasts) else 0
        for at in self._wanted_events(block, begins[: len(pasts)], pasts):
            event = load_event(block[begins[at] : pasts[at]])
            if isinstance(event, dict):
                yield event
            else:
                self.unreadable += 1
        self._rest = block[past:]
        if not is_over and len(self._rest) > MAX_EVENT_BYTES:
            raise InputError(f"an event must be at most {MAX_EVENT_BYTES} bytes; got more")
        return is_over

    def _wanted_events(self, block: bytes, begins: Array, pasts: Array) -> list[int]:
        """Return the events that hold one of the wanted texts, in their order."""
        if not len(pasts):
            return []
        places: list[int] = []
        end = int(pasts[-1])
        for text in self._wanted:
            at = block.find(text, 0, end)
            while at >= 0:
                places.append(at)
                at = block.find(text, at + len(text), end)
        holders = np.searchsorted(begins, np.array(places, dtype=np.int64), side="right") - 1
        is_inside = (holders >= 0) & (np.array(places, dtype=np.int64) < pasts[np.maximum(holders, 0)])
        found: list[int] = np.unique(holders[is_inside]).tolist()
        return found
