"""Records in a partition of a snapshot topic: one of each monitor, pieces of large states, and a position.

A state of up to `PIECE_BYTES` is in the monitor's record. Of a larger one the record names pieces: messages of their
own, whose keys are made of their bytes. A part of a state that has not changed since the snapshot before
(`irregulars.state_codec.Part`) has the same pieces, which need not be written again. A record counts only if all of
its pieces are there.

A piece's key begins with the epoch of its writer. So a worker that lost its partitions without noticing deletes no
piece that the next owner has written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeVar

from irregulars.errors import RecordError
from irregulars.state_codec import decode_state, encode_root, encode_state
from irregulars.streams.health.monitor_faults import NOT_GIVEN_UP, GivenUp
from irregulars.streams.snapshots.published_verdicts import Told

T = TypeVar("T")

POSITION_KEY: Final = b"\x00position"  # key of the partition's own record; no `JobName` begins with a zero byte
RECORD_VERSION: Final = 1  # of the records of this module, without the states in them
STATE_VERSION: Final = 1
"""Of the states of monitors: raise it with each change of their classes but that of a new field with a default. A
worker lets those begin anew whose states are of another version (`streams.stages.stage`)."""

PIECE_BYTES: Final = 512 * 1024  # longest piece, bytes: half of a broker's default limit of a message (1 MiB)
PART_BYTES: Final = 16 * 1024
"""Shortest part of a state that gets pieces of its own, bytes: below that its key, its tombstone and its place in the
record cost more than writing it again. An iteration of 44 ranks."""

_PIECE_KEY: Final = b"\x00piece/"
_DIGEST_BYTES: Final = 16

Offsets = dict[str, int]  # offsets by topic, named without the prefix
Ends = dict[str, dict[int, int]]  # end offsets by result topic (without prefix) and partition
Keys = tuple[bytes, ...]  # keys of the pieces of something, in order


class EncodedState(NamedTuple):
    """A state as bytes: without its larger parts, and these."""

    root: bytes
    parts: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class MonitorRecord:
    """One monitor's record."""

    epoch: int
    seen: Offsets  # the newest offsets in the state
    state: bytes  # the encoded state without its larger parts; empty if that itself is cut into pieces
    root: Keys = ()  # pieces of the state, where it is too long for `state`
    parts: tuple[Keys, ...] = ()  # pieces of each of the larger parts
    given_up: GivenUp = NOT_GIVEN_UP  # how often the monitor began anew because its work did not end

    @property
    def pieces(self) -> Iterator[bytes]:
        """Keys of all pieces of the state."""
        yield from self.root
        for part in self.parts:
            yield from part


@dataclass(frozen=True, slots=True)
class PositionRecord:
    """The partition's own record: where to go on reading, by input topic."""

    epoch: int = 0
    positions: Offsets = field(default_factory=dict)
    # The ends of the result topics before anything that the stored states do not hold; None: never set
    ends: Ends | None = None
    begin: int = 0  # offset in the snapshot topic from which on all records lie that count
    # Offset in the snapshot topic up to which the writer has read before it wrote; records of others behind that do
    # not count
    claimed: int = 0
    told: Told = field(default_factory=Told)  # of the revisions before `ends`, those that are still of use
    # Ids of the topics to which these offsets belong, by topic; a topic that was made anew has another one
    topic_ids: dict[str, str] = field(default_factory=dict)
    told_pieces: Keys = ()  # pieces of `told`, where it is too long for the record


Record = MonitorRecord | PositionRecord


@dataclass(frozen=True, slots=True)
class Draft:
    """A monitor's state on its way to the topic."""

    seen: Offsets
    root: bytes  # the state without its larger parts, encoded
    parts: Sequence[Any] = ()  # these, not yet encoded; they do not change
    given_up: GivenUp = NOT_GIVEN_UP


def draft_of(seen: Mapping[str, int], state: Any, given_up: GivenUp = NOT_GIVEN_UP) -> Draft:
    """Return a draft of a state, in which all that may still change is encoded."""
    return Draft(dict(seen), *encode_root(state, STATE_VERSION, PART_BYTES), given_up)


def encode_record(record: Record) -> bytes:
    """Encode a record."""
    return encode_state(record, RECORD_VERSION)


def decode_record(key: bytes, value: bytes) -> Record:
    """Decode a monitor's record, or the partition's own; raises `RecordError`."""
    kind: type[Record] = PositionRecord if key == POSITION_KEY else MonitorRecord
    return decode_state(value, kind, RECORD_VERSION)


def encode_part(part: Any) -> bytes:
    """Encode one of a draft's parts."""
    return encode_state(part, STATE_VERSION)


def decode_monitor(state: EncodedState, kind: type[T]) -> T:
    """Decode a monitor's state; raises `RecordError`."""
    return decode_state(state.root, kind, STATE_VERSION, state.parts)


def cut(value: bytes, monitor: bytes, epoch: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield key and content of the pieces of some bytes; `monitor` is the key of the monitor whose they are.

    Monitors never share a piece, not even an equal one (of two replays of one recording, say): each deletes its own.
    """
    owner = blake2b(monitor, digest_size=_DIGEST_BYTES).digest()
    for begin in range(0, len(value), PIECE_BYTES):
        piece = value[begin : begin + PIECE_BYTES]
        digest = blake2b(piece, digest_size=_DIGEST_BYTES, key=owner).digest()
        yield b"%s%d/%s" % (_PIECE_KEY, epoch, digest), encode_state(piece, RECORD_VERSION)


def is_piece(key: bytes) -> bool:
    """Whether the message of this key is a piece."""
    return key.startswith(_PIECE_KEY)


def assemble(record: MonitorRecord, pieces: Mapping[bytes, bytes]) -> EncodedState:
    """Put a state together again; raises `RecordError`."""
    root = record.state or _joined(record.root, pieces)
    return EncodedState(root, tuple(_joined(part, pieces) for part in record.parts))


def with_told(record: PositionRecord, pieces: Mapping[bytes, bytes]) -> PositionRecord:
    """Return a partition's own record with `told` put together again; raises `RecordError`."""
    if not record.told_pieces:
        return record
    told = decode_state(_joined(record.told_pieces, pieces), Told, RECORD_VERSION)
    return replace(record, told=told, told_pieces=())


def _joined(keys: Sequence[bytes], pieces: Mapping[bytes, bytes]) -> bytes:
    missing = sum(key not in pieces for key in keys)
    if missing:
        raise RecordError(f"state must have all of its pieces; got {len(keys) - missing} of {len(keys)}")
    return b"".join(decode_state(pieces[key], bytes, RECORD_VERSION) for key in keys)
