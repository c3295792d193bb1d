"""Messages that are laid out as ours are: their columns straight from the bytes, each when it is asked for.

Most messages were encoded by our own agents: one Arrow stream with one batch, the schema's fields in their order,
nothing compressed. The compiled loop finds where their columns stand in a microsecond, and reads those of operators
as they are. Arrow itself reads all others, and gives the reasons of those that are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np

from irregulars.compiled import KERNEL
from irregulars.dtypes import Column
from irregulars.messages.arrow_limits import MAX_BATCH_ROWS

_PLACES: Final = Struct("<qq")
_ROWS: Final = Struct("<q")
_NO_NULLS: Final = -1
_MOST_KNOWN: Final = 1024
"""Structures of one schema: they differ by the length of the header, and by the version of Arrow that wrote them."""


class Field(NamedTuple):
    """A field as it is asked for with each batch: asking Arrow takes longer than encoding the column."""

    name: str
    type: Any  # in Arrow
    kind: np.dtype[Any]  # on the wire
    limits: tuple[int, int]  # of an integer
    is_nullable: bool
    in_numpy: np.dtype[Any]  # in the process
    unknown: float  # in place of null in numpy


class Layout(NamedTuple):
    """How messages of one schema are laid out."""

    fields: Mapping[str, tuple[int, Field]]  # by name, with their places
    plan: bytes  # the same, as the compiled loop reads it
    # Structures of messages that Arrow has taken: it checks more of the metadata than where columns stand
    known: set[bytes]


def layout_of(fields: Sequence[Field]) -> Layout:
    """Describe the fields of a schema."""
    plan = b""
    for field in fields:  # length of the name, name, Arrow's number of the type, bits, sign, null
        name, kind = field.name.encode(), field.kind
        arrow_type = 3 if kind.kind == "f" else 2  # FloatingPoint, Int in Arrow's `Schema.fbs`
        plan += bytes([len(name), *name, arrow_type, kind.itemsize * 8, kind.kind == "i", field.is_nullable])
    return Layout({field.name: (place, field) for place, field in enumerate(fields)}, plan, set())


class PlainColumns(Mapping[str, np.ndarray]):
    """The columns of a message, made of its bytes when they are asked for.

    Parameters
    ----------
    places
        Where its columns stand: see ``irregulars/_kernel.c``.
    highest
        For each field the highest of its codes, -1 if it has none.
    """

    __slots__ = ("_found", "_highest", "_layout", "places", "rows", "value")

    def __init__(self, value: bytes, places: bytes, highest: bytes, layout: Layout) -> None:
        self.value = value
        self.places = places
        self.rows: int = _ROWS.unpack_from(places)[0]
        self._highest = highest
        self._layout = layout
        self._found: dict[str, Column] = {}

    def __getitem__(self, name: str) -> Column:
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = self._made(name, 0, self.rows)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.fields)

    def __len__(self) -> int:
        return len(self._layout.fields)

    def part(self, name: str, first: int, past: int) -> Column:
        """Return some rows of a column, which is not kept for it."""
        known = self._found.get(name)
        return self._made(name, first, past) if known is None else known[first:past]

    def highest(self, name: str) -> int:
        """Return the highest code in a column of codes."""
        found: int = _ROWS.unpack_from(self._highest, self._layout.fields[name][0] * _ROWS.size)[0]
        return found

    def _made(self, name: str, first: int, past: int) -> Column:
        place, field = self._layout.fields[name]
        data, valid = _PLACES.unpack_from(self.places, _ROWS.size + place * _PLACES.size)
        array = np.frombuffer(self.value, field.kind, past - first, data + first * field.kind.itemsize)
        if valid == _NO_NULLS:
            return array.astype(field.in_numpy, copy=False)
        array = array.astype(field.in_numpy)
        bits = np.frombuffer(self.value, np.uint8, (past + 7) // 8 - first // 8, valid + first // 8)
        is_known = np.unpackbits(bits, bitorder="little")[first % 8 : first % 8 + past - first]
        array[is_known == 0] = field.unknown
        return array


class PlainMessage(NamedTuple):
    """A message that is laid out as ours are."""

    metadata: bytes  # the header, as JSON
    columns: PlainColumns
    structure: bytes  # see `Layout.known`


def find_plain(value: bytes, layout: Layout) -> PlainMessage | None:
    """Return a message as the compiled loop finds it; None: it is laid out in another way, and Arrow must read it."""
    if KERNEL is None or not isinstance(value, bytes):
        return None
    found = KERNEL.plain_layout(value, layout.plan, len(layout.fields), MAX_BATCH_ROWS)
    if found is None:
        return None
    first, length, places, highest, structure = found
    return PlainMessage(value[first : first + length], PlainColumns(value, places, highest, layout), structure)


def note_known(message: PlainMessage, layout: Layout) -> None:
    """Note that Arrow has taken a message: it will take all others of the same structure."""
    # Beyond it Arrow reads the others each time: a sender of ever new structures must not fill our memory.
    if len(layout.known) < _MOST_KNOWN:
        layout.known.add(message.structure)
