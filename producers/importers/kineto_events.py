"""Events of a Chrome trace, found in blocks of bytes: only those that matter are parsed.

A profiler writes hundreds of thousands of events, of which some hundred are collectives. So the structure of a block
(strings, brackets, depth) is found for all its bytes at once, in numpy; that gives the exact borders of all events,
whatever is written inside of strings. Events that hold one of some wanted texts are then parsed, the others never.
The file's object apart from its events is kept and parsed at the end, which also tells a file that was cut off.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import IO, Any, Final, NamedTuple

import numpy as np
import orjson

from irregulars.errors import InputError

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
    if b"\\" in block:
        is_quote &= ~_are_escaped(codes, places)
    is_outside = (np.cumsum(is_quote, dtype=np.int32) & 1) == 0
    low = found & 0x0F
    is_bracket = is_outside & ((low == _OPENING) | (low == _CLOSING)) & ~is_quote
    is_open = low[is_bracket] == _OPENING
    return Structure(places[is_bracket], np.cumsum(np.where(is_open, 1, -1), dtype=np.int32), is_open)


def _are_escaped(codes: Array, places: Array) -> Array:
    """Whether an odd number of backslashes stands before each of these places."""
    slashes = np.flatnonzero(codes == _BACKSLASH)
    first_of_run = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
    run = np.cumsum(np.diff(slashes, prepend=-2) != 1) - 1
    length = np.arange(len(slashes)) - first_of_run[run] + 1  # of each run up to and with each slash
    is_escaping = np.zeros(len(codes) + 1, dtype=bool)
    is_escaping[slashes[length % 2 == 1] + 1] = True
    return is_escaping[places]


class EventReader:
    """Read the wanted events of a trace, block by block; memory does not grow with the file.

    `wanted`: events that hold none of these texts are not parsed.
    """

    def __init__(self, stream: IO[bytes], wanted: Sequence[bytes], block_bytes: int = BLOCK_BYTES) -> None:
        self._stream, self._wanted, self._block_bytes = stream, tuple(wanted), block_bytes
        self._rest = b""
        self._head: list[bytes] = []
        self.events = 0

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the wanted events.

        Raises InputError if the file is no such trace, is cut off, or an event or the rest are larger than any
        profiler writes.
        """
        if not self._find_list():
            raise InputError("must be a JSON object with a list 'traceEvents'; got none")
        while not (yield from self._read_block()):
            if not self._fill():
                raise InputError("must be a complete trace; got the end of the file inside of traceEvents")

    def properties(self) -> dict[str, Any]:
        """Give the file's object without its events; call it after `read` has ended.

        Raises InputError if it is no complete JSON object.
        """
        while self._fill():
            if len(self._rest) > MAX_HEAD_BYTES:
                raise InputError(f"what follows traceEvents must be at most {MAX_HEAD_BYTES} bytes; got more")
        try:
            found = orjson.loads(b"".join([*self._head, self._rest]))
        except (orjson.JSONDecodeError, RecursionError) as error:
            raise InputError(f"must be a complete JSON object; got: {' '.join(str(error).split())[:160]}") from None
        if not isinstance(found, dict):
            raise InputError(f"must be a JSON object; got a {type(found).__name__}")
        return found

    def _fill(self) -> bool:
        block = self._stream.read(self._block_bytes)
        self._rest += block
        return bool(block)

    # --- before the events ------------------------------------------------------------------------------------------

    def _find_list(self) -> bool:
        """Read up to the list of events, and keep the text before it."""
        while self._fill():
            begin = self._begin_of_list()
            if begin is not None:
                self._head.append(self._rest[:begin])
                self._rest = self._rest[begin:]
                return True
            if len(self._rest) > MAX_HEAD_BYTES:
                raise InputError(f"what precedes traceEvents must be at most {MAX_HEAD_BYTES} bytes; got more")
        return False

    def _begin_of_list(self) -> int | None:
        if b'"traceEvents"' not in self._rest:
            return None
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
        after = np.flatnonzero(structure.depth < 0)
        is_over = bool(len(after))
        if is_over:
            structure = Structure(*(column[: after[0] + 1] for column in structure))
        begins = structure.at[structure.is_open & (structure.depth == 1)]
        pasts = structure.at[~structure.is_open & (structure.depth == 0)] + 1
        past = int(structure.at[-1]) if is_over else int(pasts[-1]) if len(pasts) else 0
        for at in self._wanted_events(block, begins[: len(pasts)], pasts):
            try:
                event = orjson.loads(block[begins[at] : pasts[at]])
            except (orjson.JSONDecodeError, RecursionError) as error:
                reason = " ".join(str(error).split())[:160]
                raise InputError(f"event {self.events + at + 1} must be JSON; got: {reason}") from None
            if isinstance(event, dict):
                yield event
        self.events += len(pasts)
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
