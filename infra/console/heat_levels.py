"""Times as levels on a logarithmic scale: two bytes a cell where the console keeps them, one where it sends them.

A level is monotone in the value, so the largest level of some cells is the level of the largest value: bins may be
made of levels and still show an extreme. Level 0: nothing is stored, which is not the same as quick.

Bins show the extremes of their cells, never a mean: averaged over the ranks of a bin a straggler disappears, which
the heat map is there to show. A tile is a header, the codes, and where in its bin each extreme lies, little-endian::

    float64  value of code 1 and below, ns or score     uint32  rows of bins       uint32  bytes of a place, 1 or 2
    float64  value of code 255                          uint32  columns of bins    uint32  0
    uint8    codes, row by row
    uint8/16 which row of its bin the extreme is, row by row
    uint8/16 which column of its bin, row by row
"""

from __future__ import annotations

import gzip
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from irregulars.dtypes import Column, Floats, Ints

Levels: TypeAlias = NDArray[np.uint16]  # values as levels; 0: not stored
# Levels as the browser gets them; 0: not stored, 1: at or below the scale's `low`, 255: at or above its `high`
Codes: TypeAlias = NDArray[np.uint8]

Values: TypeAlias = NDArray[np.float32]  # values of cells; NaN: not stored
MISSING: Final = 0
LEAST_NS: Final = 1e3  # smallest time that is told apart, ns. Times are logged to the microsecond.
LEAST_SCORE: Final = 1e-3  # smallest score that is told apart; 1 is where strange begins
_DECADES: Final = 10
_TOP: Final = 0xFFFF
_PER_E: Final = (_TOP - 1) / (_DECADES * np.log(10.0))  # levels in a factor of e: 0.035 % each
_CODES: Final = 254  # codes for values: 1 to 254 steps above MISSING


def levels_of(values: Values, least: float) -> Levels:
    """Return the level of each value.

    `values`: NaN where nothing is stored. Negative ones (quicker than usual) get the lowest level. `least`: Value of
    level 1, in the unit of `values`.
    """
    clipped = np.fmax(values, np.float32(least))  # fmax: NaN becomes `least`, and is set to MISSING below
    # + 1, since level 1 is `least`, and + 0.5, since the cast below cuts the fraction off.
    scaled = np.log(clipped * np.float32(1 / least)) * np.float32(_PER_E) + np.float32(1.5)
    levels: Levels = np.minimum(scaled, np.float32(_TOP)).astype(np.uint16)
    levels[np.isnan(values)] = MISSING
    return levels


def values_of(levels: Levels, least: float) -> Floats:
    """Return the value of each level; NaN where nothing is stored.

    >>> values_of(levels_of(np.array([2.5e6, np.nan], dtype=np.float32), LEAST_NS), LEAST_NS).round(-3).tolist()
    [2500000.0, nan]
    """
    values = least * np.exp((levels.astype(np.float64) - 1) / _PER_E)
    return np.where(levels == MISSING, np.nan, values)


@dataclass(frozen=True, slots=True)
class Scale:
    """The levels between which colours run."""

    # low, high: Levels; `high` is above `low`
    low: int
    high: int
    least: float  # value of level 1, ns or score

    @property
    def ends(self) -> tuple[float, float]:
        """The values of `low` and `high`, in ns or as scores."""
        low, high = values_of(np.array([self.low, self.high], dtype=np.uint16), self.least).tolist()
        return low, high

    def codes_of(self, levels: Levels) -> Codes:
        """Return the code of each level: higher levels have codes that are as high or higher."""
        # A table of all 65,536 levels, so that each cell costs one look-up and no arithmetic.
        steps = np.arange(_TOP + 1, dtype=np.float64) - self.low
        table = np.clip(np.ceil(steps * (_CODES / (self.high - self.low))), 0, _CODES) + 1
        table[MISSING] = 0
        codes: Codes = table.astype(np.uint8)[levels]
        return codes


def scale_of(levels: Levels, low: float, least: float) -> Scale:
    """Return a scale from the value `low` to the largest level there is, at least a factor of 1.1 above.

    Where nothing is above `low` the scale spans a factor of ten, so that noise does not get the strongest colours.
    """
    at = max(1, int(levels_of(np.array([low], dtype=np.float32), least)[0]))
    # `high` must be above it, and is `_TOP` at most.
    at = min(at, _TOP - 1)
    most = int(levels.max(initial=0))
    high = most if most > at else at + int(_PER_E * np.log(10.0))
    return Scale(at, min(_TOP, max(high, at + int(_PER_E * np.log(1.1)))), least)


_LAST: Final = 0xFFFF


@dataclass(frozen=True, slots=True)
class Bins:
    """Extremes of a rectangle of cells, ``[row bin, column bin]``."""

    levels: Levels  # the largest level in each bin; `MISSING` only where no cell of it is stored
    # row, column: Where that cell lies in its bin, counted from the bin's first row and column. Of equals the first
    # row's, in it the first column's.
    row: Ints
    column: Ints


def bin_extremes(cells: Levels, rows_per_bin: int, columns_per_bin: int) -> Bins:
    """Return the extremes of bins.

    `cells`: Levels, ``[column, row]`` as `matrix.HeatMatrix` keeps them: a column is an iteration, a row is a rank.
    The last bins may be smaller. `rows_per_bin`, `columns_per_bin`: How many ranks, and how many iterations, a bin
    has.

    Two iterations of four ranks, two ranks a bin: rank 3 is the extreme of the second bin, in the second iteration.

    >>> cells = np.array([[5, 5, 5, 0], [5, 6, 5, 9]], dtype=np.uint16)
    >>> bins = bin_extremes(cells, rows_per_bin=2, columns_per_bin=2)
    >>> bins.levels.tolist(), bins.row.tolist(), bins.column.tolist()
    ([[6], [9]], [[1], [1]], [[1], [1]])
    """
    # A bin that is larger than all cells, as anybody may ask for, would be filled up with gigabytes.
    columns_per_bin, rows_per_bin = min(columns_per_bin, cells.shape[0] or 1), min(rows_per_bin, cells.shape[1] or 1)
    columns, rows = -(-cells.shape[0] // columns_per_bin), -(-cells.shape[1] // rows_per_bin)
    whole = (columns * columns_per_bin, rows * rows_per_bin)
    if cells.shape != whole:  # fill up with cells that are missing: never an extreme where another is stored
        padded = np.zeros(whole, dtype=cells.dtype)
        padded[: cells.shape[0], : cells.shape[1]] = cells
        cells = padded
    highest, in_column = _over_columns(cells.reshape(columns, columns_per_bin, -1))
    levels, row = _over_rows(highest.reshape(columns, rows, rows_per_bin))
    at = in_column.reshape(columns, rows, rows_per_bin)
    column = np.take_along_axis(at, row[:, :, None], axis=2)[:, :, 0]
    return Bins(levels.T, row.T, column.T.astype(np.int64))


def _over_columns(cells: Levels) -> tuple[Levels, Column]:
    """Return the largest of the middle axis, and where it first stands: one pass of whole rows for each place."""
    levels, at = cells[:, 0].copy(), np.zeros(cells[:, 0].shape, dtype=np.uint16)
    for place in range(1, cells.shape[1]):
        is_larger = cells[:, place] > levels
        np.copyto(levels, cells[:, place], where=is_larger)
        np.copyto(at, place, where=is_larger)
    return levels, at


def _over_rows(cells: Levels) -> tuple[Levels, Column]:
    """Return the largest of the last axis, which has at most 65,536 places, and where it first stands.

    Level and place in one number, level before place, so that one maximum gives both: numpy's `argmax` over a short
    axis costs ten times as much. Earlier places are the larger numbers.
    """
    if cells.shape[2] == 1:
        return cells[:, :, 0], np.zeros(cells.shape[:2], dtype=np.int64)
    keys = cells.astype(np.uint32) << np.uint32(16)
    keys |= (_LAST - np.arange(cells.shape[2])).astype(np.uint32)
    largest = keys.max(axis=2)
    return (largest >> np.uint32(16)).astype(np.uint16), _LAST - (largest & np.uint32(_LAST)).astype(np.int64)


HEADER: Final = struct.Struct("<ddIIII")
_SMALL: Final = 1 << 8
_LEAST_BYTES: Final = 1_024  # below, compression saves nothing worth its time


def tile_bytes(bins: Bins, scale: Scale, per_bin: tuple[int, int]) -> bytes:
    """Return a tile as the browser reads it."""
    width = 1 if max(per_bin) <= _SMALL else 2
    place = "<u1" if width == 1 else "<u2"
    rows, columns = bins.levels.shape
    return b"".join(
        (
            HEADER.pack(*scale.ends, rows, columns, width, 0),
            scale.codes_of(bins.levels).tobytes(),
            bins.row.astype(place).tobytes(),
            bins.column.astype(place).tobytes(),
        )
    )


def compressed(body: bytes, accepted: str) -> tuple[bytes, str]:
    """Return a body and its ``Content-Encoding``; empty: as it is. `accepted`: the request's ``Accept-Encoding``."""
    encodings = {
        part.partition(";")[0].strip() for part in accepted.lower().split(",") if "q=0" not in part.split(";")
    }
    if len(body) < _LEAST_BYTES:
        return body, ""
    if "zstd" in encodings:
        return pa.Codec("zstd", compression_level=3).compress(body, asbytes=True), "zstd"
    if "gzip" in encodings:
        # Without a time in its header, equal bodies give equal bytes, and so an equal ETag.
        return gzip.compress(body, compresslevel=1, mtime=0), "gzip"
    return body, ""


# Orders of rows, with their titles
ORDERS: Final = {
    "rank": "rank",
    "host": "host",
    "switch": "switch",
    "stage": "pipeline stage",
    "tp": "tensor parallel group",
    "dp": "data parallel group",
    "strange": "strangeness",
}

UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class Names:
    """A text for each rank, most of which repeat: ``names[codes]``; code `UNKNOWN`: not announced."""

    names: Sequence[str]
    codes: Ints


@dataclass(frozen=True, slots=True)
class Places:
    """The ranks of one start of a job that log, ascending, with their announced places."""

    ranks: Ints  # global ranks, ascending
    gpu: Ints  # GPU index on its host; `UNKNOWN`: not announced
    # host, nic, switch: As announced
    host: Names
    nic: Names
    switch: Names
    groups: dict[str, Names]  # by kind (``pp``, ``tp``, ``dp``): the communicator of each rank

    def rows_of(self, ranks: Sequence[int]) -> Ints:
        """Return where `ranks` stand in `ranks`; those that don't log are left out."""
        wanted = np.unique(np.asarray(ranks, dtype=np.int64))
        return np.flatnonzero(np.isin(self.ranks, wanted))


@dataclass(frozen=True, slots=True)
class Order:
    """The heat map's rows."""

    rows: Ints  # which row of `Places` stands at each place from the top
    borders: Sequence[int] = ()  # place of each group's first row, ascending; empty: there are no groups
    labels: Sequence[str] = ()  # name of each group


def stages_of(places: Places) -> Ints:
    """Return each rank's pipeline stage: its place in its pp communicator; `UNKNOWN` where it has none.

    >>> pp = Names(["a", "b"], np.array([0, 1, 0, 1]))
    >>> none = Names([], np.full(4, UNKNOWN))
    >>> stages_of(Places(np.arange(4), np.zeros(4, int), none, none, none, {"pp": pp})).tolist()
    [0, 0, 1, 1]
    """
    group = places.groups["pp"].codes if "pp" in places.groups else np.full(len(places.ranks), UNKNOWN)
    stages = np.full(len(group), UNKNOWN, dtype=np.int64)
    by_group = np.argsort(group, kind="stable")
    ordered = group[by_group]
    starts = np.searchsorted(ordered, ordered)  # where each one's group begins
    stages[by_group] = np.arange(len(group)) - starts
    return np.where(group == UNKNOWN, UNKNOWN, stages)


def peers_of(places: Places) -> Ints:
    """Return a number for each rank: ranks of equal numbers do the same work. Pipeline stages, else all ranks."""
    stages = stages_of(places)
    return stages + 1 if (stages != UNKNOWN).any() else np.zeros(len(stages), dtype=np.int64)


def orders_of(places: Places) -> list[str]:
    """Return the names of the orders that this job knows enough for."""
    known = {
        "host": places.host.codes, "switch": places.switch.codes, "stage": stages_of(places),
        **{kind: names.codes for kind, names in places.groups.items()},
    }  # fmt: skip
    return [name for name in ORDERS if name in ("rank", "strange") or (known.get(name, _NONE) != UNKNOWN).any()]


_NONE: Final = np.array([UNKNOWN])


def order_of(places: Places, name: str, strangeness: Ints | None = None) -> Order:
    """Return the rows in one of `ORDERS`.

    `strangeness`: a number for each rank, the highest first; needed for ``strange``.
    """
    if name == "strange" and strangeness is not None:
        return Order(np.argsort(-strangeness, kind="stable"))
    if name == "stage":
        stages = stages_of(places)
        return _grouped(stages, [f"stage {stage}" for stage in range(int(stages.max(initial=UNKNOWN)) + 1)])
    names = places.host if name == "host" else places.switch if name == "switch" else None
    if names is not None:
        # Numbered as people sort them: node-2 before node-10
        order = sorted(range(len(names.names)), key=lambda at: natural_key(names.names[at]))
        number = np.empty(len(order) + 1, dtype=np.int64)
        number[order] = np.arange(len(order))
        # UNKNOWN is -1, which as an index is the extra last place.
        number[UNKNOWN] = UNKNOWN
        return _grouped(number[names.codes], [names.names[at] for at in order])
    if name in places.groups:
        return _grouped(places.groups[name].codes, places.groups[name].names)
    # By rank; also where a job lacks the columns of the order.
    return Order(np.arange(len(places.ranks)))


def natural_key(text: str) -> tuple[tuple[int, str], ...]:
    """Return a key by which numbers in texts sort as numbers.

    >>> sorted(["node-10", "node-2"], key=natural_key)
    ['node-2', 'node-10']
    """
    parts = re.findall(r"[0-9]+|[^0-9]+", text)
    return tuple((int(part), "") if part[0] in "0123456789" else (-1, part) for part in parts)


def _grouped(codes: Ints, names: Sequence[str]) -> Order:
    """Sort by group, those without one last, in a group by rank."""
    last = len(names)
    keys = np.where(codes == UNKNOWN, last, codes)
    rows = np.argsort(keys, kind="stable")
    ordered = keys[rows]
    borders = np.flatnonzero(np.diff(ordered, prepend=-1))
    labels = [names[key] if key < last else "not announced" for key in ordered[borders].tolist()]
    return Order(rows, borders.tolist(), labels)
