"""Answers of NCCL's RAS service: asked for over TCP, and read as communicators, ranks and counts of collectives.

Field names and meanings are those of NCCL's user guide, chapter "RAS", section "JSON Output" (NCCL 2.28.7 and later).
Anything may answer on that port: sizes are bounded, and each value is checked before it is used.

The service listens in each process of a job, on ``localhost:28028`` unless ``NCCL_RAS_ADDR`` says otherwise, and
speaks for the whole job, in lines of text: ``CLIENT PROTOCOL n`` is answered by ``SERVER PROTOCOL n``, ``SET FORMAT
json`` by ``OK`` (since NCCL 2.28.7), and ``STATUS`` by one answer, after which the service closes the connection.
"""

from __future__ import annotations

import re
import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import orjson

from irregulars.errors import InputError
from irregulars.messages.records import P2P
from irregulars.producers.importers.groups import operator_of

MAX_ANSWER_BYTES: Final = 64 << 20  # of one answer: 8,192 ranks in four communicators each take 18 MiB
MOST_MEMBERS: Final = 1 << 18  # ranks of all communicators together
_MOST_PARTS: Final = 4 * MOST_MEMBERS
# Objects and lists of an answer, and values in them; in a rank there are four and 18. An answer of nothing but these
# takes thirty times its bytes when it is read.
_MOST_VALUES: Final = 16 * MOST_MEMBERS
_MOST_KINDS: Final = 64
_MOST_GPUS: Final = 1 << 20  # of a host
_MOST_COUNT: Final = 1 << 62  # sums of a few still fit into 64 bits
_LONGEST_TEXT: Final = 256
# NCCL 2.28.9 forgets the comma before the status of a missing rank.
_BROKEN: Final = re.compile(rb'("nvml_dev"\s*:\s*-?\d+)(\s+"status")')
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


class Worker(NamedTuple):
    """A process with one of its GPUs: it has one rank in each communicator. Unknown: host ``""``, the others -1."""

    host: str
    pid: int
    gpu: int

    @property
    def is_known(self) -> bool:
        """Whether the service knew its process."""
        return self.host != "" and self.pid >= 0

    @property
    def local_gpu(self) -> int | None:
        """Index of its GPU on its host; None where it is not known, or impossible."""
        return self.gpu if 0 <= self.gpu < _MOST_GPUS else None


def unknown_worker(rank: int) -> Worker:
    """Return a stand-in for the process of a rank that the service does not know."""
    return Worker(UNKNOWN_HOST, rank, -1)


UNKNOWN_HOST: Final = "(unknown)"
_IN_PROGRESS: Final = 7  # NCCL's result code of an operation that goes on: no error


@dataclass(frozen=True, slots=True)
class Answered:
    """A rank that answered."""

    worker: Worker  # its process and GPU
    # How many collectives of each kind it has launched on this communicator, by code of the operator. NCCL does not
    # count sends and recvs.
    launched: Mapping[int, int]
    is_running: bool  # whether it has joined the communicator, and neither leaves nor aborts it
    async_error: int  # NCCL's result code of its last error; 0: none

    @property
    def has_failed(self) -> bool:
        """Whether NCCL reports an error of it."""
        return self.async_error not in (0, _IN_PROGRESS)

    @property
    def total(self) -> int:
        """How many collectives it has launched: they are launched in the same order by all."""
        return sum(self.launched.values())


@dataclass(frozen=True, slots=True)
class Missing:
    """A rank of which there was no answer."""

    worker: Worker  # its process and GPU
    # Whether its process could not be reached. Else it answered, and does not take itself for a member: it joins or
    # leaves just now.
    is_gone: bool
    is_dead: bool = False  # whether the service calls it dead: it was out of reach for a minute


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """A communicator; its ranks by their number in it."""

    id: str
    size: int
    answered: Mapping[int, Answered]
    missing: Mapping[int, Missing]

    @property
    def workers(self) -> dict[int, Worker]:
        """Members whose process the service knew, by rank in the communicator."""
        both: Iterable[tuple[int, Answered | Missing]] = [*self.answered.items(), *self.missing.items()]
        return {rank: one.worker for rank, one in both if one.worker.is_known}

    @property
    def is_settled(self) -> bool:
        """Whether all have joined and none leaves: only then a rank waits where counts differ."""
        states = [one.is_running for one in self.answered.values()] + [one.is_gone for one in self.missing.values()]
        return len(states) == self.size and all(states)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the service."""

    version: str  # NCCL's
    told: str  # time of the answer by the service: local time to the second, without zone; it orders saved answers
    communicators: tuple[RasCommunicator, ...]  # those that could be used
    unusable: int  # number of those that could not
    world_size: int = 0  # GPUs of the job, where the answer says so
    dead: tuple[Worker, ...] = ()  # processes that it calls dead, each with one of its GPUs

    @property
    def has_dead(self) -> bool:
        """Whether it calls a process dead or in error, so that one answer is enough."""
        missing = (one.is_dead for group in self.communicators for one in group.missing.values())
        failed = (one.has_failed for group in self.communicators for one in group.answered.values())
        return bool(self.dead) or any(missing) or any(failed)


def read_answer(value: bytes) -> Answer:
    """Read one answer, of at most `MAX_ANSWER_BYTES`; InputError if it is none, or one in text."""
    if value.count(b"{") + value.count(b"[") > _MOST_PARTS or value.count(b",") > _MOST_VALUES:
        raise InputError(f"RAS answer must tell of at most {MOST_MEMBERS} ranks; got parts of more")
    told = _load(value)
    listed = told.get("communicators")
    if not isinstance(listed, list):
        raise InputError(f"RAS answer must have a list of communicators; got {str(listed)[:80]!r}")
    parts = (one.get(name) for one in listed if isinstance(one, dict) for name in ("ranks", "missing_ranks"))
    if sum(len(part) for part in parts if isinstance(part, list)) > MOST_MEMBERS:
        raise InputError(f"communicators of a RAS answer must have at most {MOST_MEMBERS} ranks together; got more")
    found = [_communicator(one) for one in listed]
    usable = [one for one in found if one is not None]
    # NCCL's hash is the id; where several communicators have the same, the secondary hash tells them apart.
    counts = Counter(one.id for _, one in usable)
    distinct = (one if counts[one.id] == 1 else replace(one, id=f"{one.id}:{second}") for second, one in usable)
    written = told.get("timestamp")
    return Answer(
        version=_text(told.get("nccl_version")) or "unknown",
        told=written if isinstance(written, str) and _TIME.fullmatch(written) else "",
        communicators=tuple(distinct),
        unusable=len(found) - len(usable),
    )


def _load(value: bytes) -> dict[str, Any]:
    if not value.lstrip().startswith(b"{"):
        rule = "RAS answer must be JSON, which NCCL gives since 2.28.7 (ncclras -f json)"
        raise InputError(f"{rule}; got {value[:60]!r}")
    try:
        try:
            told = orjson.loads(value)
        except (orjson.JSONDecodeError, RecursionError):
            told = orjson.loads(_BROKEN.sub(rb"\1,\2", value))
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise InputError(f"RAS answer must be complete JSON; got: {' '.join(str(error).split())[:160]}") from None
    if not isinstance(told, dict):
        raise InputError(f"RAS answer must be a JSON object; got {value[:60]!r}")
    return told


def _communicator(told: Any) -> tuple[str, RasCommunicator] | None:
    if not isinstance(told, dict):
        return None
    identity, size = _text(told.get("hash")), _integer(told.get("size"))
    answered = _by_rank(told.get("ranks"), size, _answered)
    missing = _by_rank(told.get("missing_ranks"), size, _missing)
    if not identity or size < 1 or answered is None or missing is None or answered.keys() & missing.keys():
        return None
    return _text(told.get("secondary_hash")), RasCommunicator(identity, size, answered, missing)


def _by_rank(listed: Any, size: int, read: Any) -> dict[int, Any] | None:
    """Read a list of ranks; None where it is none, or a rank occurs twice or is outside of the communicator."""
    if not isinstance(listed, list):
        return None
    found: dict[int, Any] = {}
    for told in listed:
        rank = _integer(told.get("rank")) if isinstance(told, dict) else -1
        one = read(told) if 0 <= rank < size and rank not in found else None
        if one is None:
            return None
        found[rank] = one
    return found


def _answered(told: Mapping[str, Any]) -> Answered | None:
    status, counts = told.get("status"), told.get("collective_counts")
    if not isinstance(status, dict) or not isinstance(counts, dict) or len(counts) > _MOST_KINDS:
        return None
    launched: Counter[int] = Counter()
    for name, count in counts.items():
        operator = operator_of(name)
        if operator is not None and operator not in P2P:
            if not 0 <= _integer(count) <= _MOST_COUNT:
                return None
            launched[operator] += count
    is_leaving = any(status.get(name) is not False for name in ("finalize_called", "destroy_flag", "abort_flag"))
    is_running = _integer(status.get("init_state")) == 0 and not is_leaving
    if launched.total() > _MOST_COUNT:
        return None
    return Answered(_worker(told), launched, is_running, max(_integer(status.get("async_error")), 0))


def _missing(told: Mapping[str, Any]) -> Missing | None:
    status = told.get("status")
    if not isinstance(status, dict):
        return None
    is_gone = status.get("unresponsive") is True or status.get("considered_dead") is True
    return Missing(_worker(told), is_gone, status.get("considered_dead") is True)


def _worker(told: Mapping[str, Any]) -> Worker:
    host, pid = _text(told.get("host")), _integer(told.get("pid"))
    gpu = _integer(told.get("nvml_dev", told.get("cuda_dev")))  # the former differs among the GPUs of a node
    return Worker("" if host == "unknown" else host, pid, gpu)


def _integer(value: Any) -> int:
    return value if type(value) is int else -1


def _text(value: Any) -> str:
    """Return a short printable text without blanks; empty where it is none."""
    is_good = isinstance(value, str) and len(value) <= _LONGEST_TEXT and value.isprintable() and " " not in value
    return value if is_good else ""


PORT: Final = 28028
# As in NCCL 2.24 to 2.31. A service of another one is asked all the same, as NCCL's own client does.
PROTOCOL: Final = 2
# An answer may take as long. The service itself gives a process that does not answer 5 s, and some time on top.
ASKING_S: Final = 20.0
_MOST_LINE_BYTES: Final = 1024
_CHUNK_BYTES: Final = 1 << 16


class RasAway(Exception):
    """No service can be reached there: no job runs, it has not begun to communicate, or it has no RAS."""


class RasClient:
    """Asks one service, each time over a connection of its own.

    `asking_s`: how long an answer may take, from the connection to its last byte.
    """

    def __init__(self, host: str = "localhost", port: int = PORT, asking_s: float = ASKING_S) -> None:
        self._host, self._port, self._asking_s = host, port, asking_s

    def ask(self) -> bytes:
        """Return one answer, as JSON.

        Raises RasAway if no service listens there, or the service ends before it has answered; InputError if the
        answer is of no RAS service, of one that knows no JSON, or too long.
        """
        until_s = time.monotonic() + self._asking_s
        try:
            with socket.create_connection((self._host, self._port), timeout=self._asking_s) as connection:
                return _Conversation(connection, until_s, f"{self._host}:{self._port}").ask()
        except OSError as error:  # timeouts are too
            raise RasAway(f"{self._host}:{self._port}: {error.strerror or error}") from error


class _Conversation:
    def __init__(self, connection: socket.socket, until_s: float, where: str) -> None:
        self._connection, self._until_s, self._where = connection, until_s, where
        self._rest = b""

    def ask(self) -> bytes:
        greeting = self._command(f"CLIENT PROTOCOL {PROTOCOL}")
        if not greeting.upper().startswith(b"SERVER PROTOCOL "):
            rule = "must be NCCL's RAS service, which says SERVER PROTOCOL"
            raise InputError(f"{self._where} {rule}; got {greeting[:60]!r}")
        accepted = self._command("SET FORMAT json")
        if accepted.upper() != b"OK":
            rule = "RAS must answer in JSON, as NCCL does since 2.28.7"
            raise InputError(f"{self._where}: {rule}; got {accepted[:60]!r} (an older NCCL answers in text alone)")
        self._in_time().sendall(b"STATUS\n")
        # The answer has no length: it ends where the service closes the connection.
        parts, size = [self._rest], len(self._rest)
        while chunk := self._in_time().recv(_CHUNK_BYTES):
            parts.append(chunk)
            size += len(chunk)
            if size > MAX_ANSWER_BYTES:
                raise InputError(f"{self._where}: RAS answer must be at most {MAX_ANSWER_BYTES} bytes; got more")
        return b"".join(parts)

    def _command(self, command: str) -> bytes:
        self._in_time().sendall(f"{command}\n".encode())
        while b"\n" not in self._rest:
            if len(self._rest) > _MOST_LINE_BYTES:
                raise InputError(f"{self._where} must answer in lines; got {self._rest[:60]!r}")
            chunk = self._in_time().recv(_CHUNK_BYTES)
            if not chunk:
                raise ConnectionResetError("it closed the connection before it answered")
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line.strip()

    def _in_time(self) -> socket.socket:
        """Return the connection, which waits as long as is left."""
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("its answer took too long")
        self._connection.settimeout(left_s)
        return self._connection


# --- answers in text ------------------------------------------------------------------------------------------------

# All that NCCL 2.24 to 2.28.6 gives, with the output of `nc` or a shell around it. The text names only odd ranks:
# of a communicator with different counts all others have the most frequent one, and of one that it does not name all
# ranks are alike. Its sentences are those of NCCL's ``src/ras/client_support.cc``.
_BEGIN: Final = b"NCCL version "
_BEFORE: Final = re.compile(rb"^((?:\S+ ){1,8})NCCL version ", re.MULTILINE)
# Nodes, processes and GPUs; where all nodes are alike, the numbers of a node stand between
_JOB: Final = re.compile(r"\(total\) +\(total\)\s*\n *\d+(?: +\d+){0,2} +\d+ +(\d+)\s*$", re.MULTILINE)
_ROW: Final = re.compile(r"^\s*(\d+)\s+\d+\s+\d+\s+[\d-]+\s+(\d+)\s+\d+\s+[A-Z]+\s+[A-Z,]+\s*$", re.MULTILINE)
_SECTION: Final = re.compile(r"^#(\d+)-\d+ \(([0-9a-fA-F]+)\) (INCOMPLETE|ERROR|MISMATCH)\s*$", re.MULTILINE)
_COUNTS: Final = re.compile(r"Communicator ranks have different (\w+) operation counts")
_SEVERAL: Final = re.compile(r"^\s*(\d+) ranks? ha(?:ve|s) (?:launched up to operation (\d{1,18})|not launched any)")
_ONE: Final = re.compile(r"^\s*Rank (\d+) has (?:launched up to operation (\d{1,18})|not launched any)")
_RANK: Final = re.compile(r"^\s*Rank (\d+)\b.*?(?:-- GPU (\d+)\S* managed by process (\d+) on node (\S+))?\s*$")
_STATUS: Final = re.compile(r"^\s*Rank (\d+) has status (\w+)")
_MISSING: Final = re.compile(r"missing ranks?: ([\d, -]+)")
_PROCESS: Final = re.compile(r"^\s*Process (\d+) on node (\S+) managing GPUs? ([\d,]+)", re.MULTILINE)
_OBJECT: Final = re.compile(rb"^\{.*\}\s*$|^\{[\s\S]*?^\}", re.MULTILINE)


def split_answers(value: bytes) -> list[Answer]:
    """Read the answers of one file, in JSON or in text, that follow each other with anything between them.

    Raises InputError if there is none, or one can't be read.
    """
    value = value.replace(b"\r\n", b"\n")
    before = _BEFORE.search(value)
    if before is not None:  # the log of a container or launcher: as many words stand before each line
        value = re.sub(rb"^(?:\S+ ){%d}" % before[1].count(b" "), b"", value, flags=re.MULTILINE)
    at = value.find(b"{")
    if _BEGIN in (value if at < 0 else value[:at]):
        parts = re.split(rb"(?=^NCCL version )", value, flags=re.MULTILINE)
        return [read_text(part.decode(errors="replace")) for part in parts if part.startswith(_BEGIN)]
    found = _OBJECT.findall(value)
    return [read_answer(part) for part in found] if len(found) > 1 else [read_answer(value[max(at, 0) :])]


def read_text(text: str) -> Answer:
    """Read one answer in text; InputError if it names no size of the job."""
    job = _JOB.search(text)
    if job is None or not 0 < int(job[1]) <= MOST_MEMBERS:
        raise InputError("RAS answer must have a job summary with the number of GPUs; got none")
    sizes = {row[1]: int(row[2]) for row in _ROW.finditer(text)}
    sections: dict[str, tuple[int, list[str]]] = {}
    marks = list(_SECTION.finditer(text))
    pasts = [*(one.start() for one in marks[1:]), len(text)]
    for mark, past in zip(marks, pasts, strict=False):  # without marks there is one end too many
        size = sizes.get(mark[1], int(job[1]))
        sections.setdefault(mark[2], (size, []))[1].extend([mark[3], *text[mark.end() : past].splitlines()])
    begin = text.find("\nDEAD\n")
    listed = text[begin : text.find("\n\n", begin + 1)] if begin >= 0 else ""
    dead = tuple(
        Worker(process[2], int(process[1]), int(gpu))
        for process in _PROCESS.finditer(listed)
        for gpu in process[3].split(",")
        if gpu
    )
    usable = ((name, size, lines) for name, (size, lines) in sections.items() if 0 < size <= MOST_MEMBERS)
    made = [_communicator_of_text(name, size, lines, dead) for name, size, lines in usable]
    version = text[len(_BEGIN) :].split(maxsplit=1)
    return Answer(
        version=version[0][:40] if version else "unknown", told="", communicators=tuple(made), unusable=0,
        world_size=int(job[1]), dead=dead,
    )  # fmt: skip


def _communicator_of_text(name: str, size: int, lines: list[str], dead: tuple[Worker, ...]) -> RasCommunicator:
    workers: dict[int, Worker] = {}
    counts: dict[int, dict[int, int]] = {}
    missing: set[int] = set()
    failed: set[int] = set()
    usual: dict[int, int] = {}
    section, operator, value, is_listing_status = "", None, 0, False
    most = 0
    for line in lines:
        if line in ("INCOMPLETE", "ERROR", "MISMATCH"):
            section, operator = line, None
            continue
        if found := _COUNTS.search(line):
            operator, most, is_listing_status = operator_of(found[1]), 0, False
            operator = 0 if operator is None else operator  # "different collective operation counts": of all kinds
        elif "different status" in line:  # the ranks in the lines below have a status, and no counts
            is_listing_status = True
        elif (found := _SEVERAL.match(line)) and operator is not None:
            value = int(found[2] or 0)
            if int(found[1]) > most:
                most, usual[operator] = int(found[1]), value
        elif found := _MISSING.search(line):
            for part in re.findall(r"\d+(?:-\d+)?", found[1]):
                first, _, last = part.partition("-")
                missing.update(range(int(first), min(int(last or first), size - 1) + 1))
        elif found := _RANK.match(line):
            rank = int(found[1])
            if rank >= size:
                continue
            if found[3]:
                workers[rank] = Worker(found[4], int(found[3]), int(found[2]))
            own, status = _ONE.match(line), _STATUS.match(line)
            if section == "INCOMPLETE":
                missing.add(rank)
            elif section == "ERROR" or (status and status[2] in ("ABORT", "NOCOMM")):
                failed.add(rank)
            elif operator is not None and not is_listing_status:
                counts.setdefault(rank, {})[operator] = int(own[2] or 0) if own else value
    answered = {
        rank: Answered(
            workers.get(rank, unknown_worker(rank)), {**usual, **counts.get(rank, {})}, is_running=True,
            async_error=1 if rank in failed else 0,
        )
        for rank in range(size)
        if rank not in missing
    }  # fmt: skip
    if len(missing - workers.keys()) == len(dead):  # older texts give numbers here, and processes above
        workers |= dict(zip(sorted(missing - workers.keys()), dead, strict=True))
    gone = {
        rank: Missing(workers.get(rank, unknown_worker(rank)), is_gone=True, is_dead=workers.get(rank) in dead)
        for rank in missing
    }
    return RasCommunicator(name, size, answered, gone)
