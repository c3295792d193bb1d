"""The attributions in a judge's state, each once and all of them as columns.

An open verdict keeps up to 64 of them, and the newest iterations and the last reading hold some of the same. As a
record each, with the names of hundreds of lanes and their usual times in every one, they were nine tenths of a
snapshot. Columns compress: values that are the same in all iterations take next to nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from irregulars.detectors.arrays.row_keys import pack_columns
from irregulars.detectors.blame.observation import Observation
from irregulars.detectors.job.lanes import LANE_KINDS, Lane, LaneExcess
from irregulars.detectors.judging.iteration_judge import JudgeState
from irregulars.detectors.nics.steadiness import Swing
from irregulars.detectors.path.critical_path import Attribution, Piece
from irregulars.dtypes import Column, Floats, Ints, Numbers
from irregulars.errors import RecordError
from irregulars.messages.ragged import Ragged

_NOWHERE: Final = -1  # the number of an attribution that there is not
_MANTISSA_BITS: Final = 15  # of an int16
_EXPONENT: Final = "_exponent"  # ends the name of a column, behind that of the column that it belongs to
_PIECE: Final = Piece._fields[1:]  # the first is the lane


class Head(NamedTuple):
    """Fields of `Attribution` that hold a single value."""

    iteration: int
    incomplete: frozenset[int]
    excess_ns: float | None
    swings: tuple[Swing, ...]
    is_by_peers: bool
    left_first: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class StoredAttributions:
    """Attributions, and where in a judge's state they belong; raises `ValueError`."""

    heads: tuple[Head, ...]  # one for each attribution
    lanes: tuple[Lane, ...]  # all lanes that occur; tables name them by their place here
    # path, pieces, excess, work, rates: Tables of each attribution by lane or rank: `path_excess_ns` (NaN: the excess
    # of the lane's piece), `pieces`, `lanes`, `work_excess_ns` and `rates`
    path: Ragged
    pieces: Ragged
    excess: Ragged
    work: Ragged
    rates: Ragged
    # The attribution of each observation of the state, in the order of `_observed`; -1: it has none
    observations: Ints
    read_last: int  # that of the last reading; -1: nothing was read
    read_excess_ns: float  # the number beside it in `JudgeState.read_last`

    def __post_init__(self) -> None:
        numbers = [*self.observations.tolist(), self.read_last]
        if min(numbers) < _NOWHERE or max(numbers) >= len(self.heads):
            raise ValueError(f"numbers of attributions must be below {len(self.heads)}")
        for table in (self.path, self.pieces, self.excess):
            lane = table["lane"]
            if len(lane) and not 0 <= lane.min() <= lane.max() < len(self.lanes):
                raise ValueError(f"numbers of lanes must be below {len(self.lanes)}")


def take_out(judge: JudgeState) -> tuple[JudgeState, StoredAttributions]:
    """Return a judge's state without its attributions, and these."""
    found = [one.attribution for one in _observed(judge)]
    distinct = {id(one): one for one in [*found, judge.read_last and judge.read_last[0]] if one is not None}
    numbers = {key: number for number, key in enumerate(distinct)} | {id(None): _NOWHERE}
    read, read_excess_ns = judge.read_last or (None, math.nan)
    stored = _store(
        list(distinct.values()), [numbers[id(one)] for one in found], numbers[id(read)], float(read_excess_ns)
    )
    return replace(_changed(judge, lambda one: replace(one, attribution=None)), read_last=None), stored


def put_back(judge: JudgeState, stored: StoredAttributions) -> JudgeState:
    """Return a judge's state with its attributions; raises `RecordError` if they are those of another one."""
    if len(stored.observations) != sum(1 for _ in _observed(judge)):
        raise RecordError(f"state must have {len(stored.observations)} observations; got others")
    known = [*_restore(stored), None]  # -1, the place after the last, is none
    own = iter(stored.observations.tolist())
    judge = _changed(judge, lambda one: replace(one, attribution=known[next(own)]))
    read = known[stored.read_last]
    return replace(judge, read_last=None if read is None else (read, stored.read_excess_ns))


# --- where they are -------------------------------------------------------------------------------------------------


def _observed(judge: JudgeState) -> Iterator[Observation]:
    """Yield the observations of a state, in the order in which `_changed` changes them."""
    tracker = judge.tracker
    for some in (tracker.recent, tracker.spikes, *(verdict.kept for verdict in tracker.open)):
        yield from some


def _changed(judge: JudgeState, change: Callable[[Observation], Observation]) -> JudgeState:
    def each(some: Iterable[Observation]) -> tuple[Observation, ...]:
        return tuple(change(one) for one in some)

    tracker = judge.tracker
    recent, spikes = each(tracker.recent), each(tracker.spikes)
    opened = tuple(replace(verdict, kept=deque(each(verdict.kept))) for verdict in tracker.open)
    return replace(judge, tracker=replace(tracker, recent=recent, spikes=spikes, open=opened))


# --- columns --------------------------------------------------------------------------------------------------------


def _store(
    some: Sequence[Attribution], observations: Sequence[int], read: int, excess_ns: float
) -> StoredAttributions:
    lanes: dict[Lane, int] = {}

    def number(lane: Lane) -> int:
        return lanes.setdefault(lane, len(lanes))

    path = [
        [
            # Most often a lane's excess is that of its only piece, and follows from that: NaN compresses to nothing.
            (number(lane), math.nan if lane in one.pieces and one.pieces[lane].excess_ns == ns else ns)
            for lane, ns in one.path_excess_ns.items()
        ]
        for one in some
    ]
    pieces = [[(number(lane), *piece[1:]) for lane, piece in one.pieces.items()] for one in some]
    kinds: dict[str, Any] = {name: np.float64 if name.endswith("_ns") else np.int32 for name in _PIECE}
    excess = _excess(some, number)
    return StoredAttributions(
        heads=tuple(Head(*(getattr(one, name) for name in Head._fields)) for one in some),
        lanes=tuple(lanes),
        path=_table(path, lane=np.int32, ns=np.float64),
        pieces=_table(pieces, lane=np.int32, **kinds),
        excess=excess,
        work=_of_ranks([(ranks, ns[:, None]) for ranks, ns in (one.work_columns for one in some)], ("ns",), ("ns",)),
        rates=_of_ranks([one.rate_columns for one in some], ("tx", "rx")),
        observations=np.array(observations, dtype=np.int64),
        read_last=read,
        read_excess_ns=excess_ns,
    )


def _excess(some: Sequence[Attribution], number: Callable[[Lane], int]) -> Ragged:
    """Make the table of `Attribution.lanes`, from their arrays: those of all iterations are tens of thousands."""
    own = [one.lane_columns for one in some]
    keys = np.concatenate([np.empty((0, 3), np.int64), *(one.keys for one in own)])
    values = np.concatenate([np.empty((0, len(LaneExcess._fields))), *(one.values for one in own)])
    _, first, which = np.unique(pack_columns([*keys.T]), return_index=True, return_inverse=True)
    numbers = [number(Lane(LANE_KINDS[kind], *ends)) for kind, *ends in keys[first].tolist()]
    columns = {"lane": np.array(numbers, dtype=np.int32)[which]}
    columns |= _values(LaneExcess._fields, values, ("excess_ns", "slow_transfers"))
    return Ragged(np.array([len(one.keys) for one in own], dtype=np.int64), columns)


def _of_ranks(own: Sequence[tuple[Ints, Floats]], names: Sequence[str], rounded: Sequence[str] = ()) -> Ragged:
    """Make a table of values of ranks: for each attribution ranks, and a row of values for each of them."""
    ranks = np.concatenate([np.empty(0, np.int64), *(ranks for ranks, _ in own)])
    values = np.concatenate([np.empty((0, len(names))), *(values for _, values in own)])
    columns = {"rank": ranks.astype(np.int32), **_values(names, values, rounded)}
    return Ragged(np.array([len(ranks) for ranks, _ in own], dtype=np.int64), columns)


def _values(names: Sequence[str], values: Floats, rounded: Sequence[str]) -> dict[str, Column]:
    """Return the columns of some rows of values; those that are `rounded` take fewer bytes, if that is exact."""
    columns: dict[str, Column] = {}
    for name, column in zip(names, values.T, strict=True):
        columns |= _split(name, column) if name in rounded else {name: column.copy()}
    return columns


def _table(rows: Sequence[Sequence[tuple[Any, ...]]], **kinds: Any) -> Ragged:
    values = list(zip(*(row for some in rows for row in some), strict=True)) or [()] * len(kinds)
    columns = {name: np.array(column, kind) for (name, kind), column in zip(kinds.items(), values, strict=True)}
    return Ragged(np.array([len(some) for some in rows], dtype=np.int64), columns)


def _split(name: str, values: Floats) -> dict[str, Column]:
    """Return floats of few digits (`round_to_bits`) in fewer bytes; others as they are.

    They are eighths of small numbers, or mantissas and exponents.
    """
    # Eighths of the largest floats are infinite, and so are not taken for small whole numbers.
    with np.errstate(over="ignore"):
        eighths = values * 8
    if _are_whole(eighths, 1 << 7):
        return {name: eighths.astype(np.int8)}
    mantissa, exponent = np.frexp(values)
    whole = np.ldexp(mantissa, _MANTISSA_BITS)
    if _are_whole(whole, 1 << _MANTISSA_BITS) and _are_whole(exponent, 1 << 7):
        return {name: whole.astype(np.int16), name + _EXPONENT: exponent.astype(np.int8)}
    return {name: values}


def _are_whole(values: Numbers, past: int) -> bool:
    return bool(((values == np.rint(values)) & (np.abs(values) < past)).all())


def _joined(columns: Mapping[str, Column]) -> Iterator[Column]:
    """Yield the columns of a table as they were before `_split`."""
    for name, column in columns.items():
        if column.dtype == np.int8 and not name.endswith(_EXPONENT):
            yield column / 8
        elif name + _EXPONENT in columns:
            yield np.ldexp(column.astype(np.float64), columns[name + _EXPONENT].astype(np.int64) - _MANTISSA_BITS)
        elif not name.endswith(_EXPONENT):
            yield column


def _restore(stored: StoredAttributions) -> list[Attribution]:
    lanes = stored.lanes
    found = []
    tables = (stored.path, stored.pieces, stored.excess, stored.work, stored.rates)
    for head, path, pieces, excess, work, rates in zip(stored.heads, *map(_rows, tables), strict=True):
        own = {lanes[lane]: Piece(lanes[lane], *row) for lane, *row in pieces}
        named = [(lanes[lane], ns) for lane, ns in path]
        found.append(
            Attribution(
                **head._asdict(),
                path_excess_ns={
                    lane: own[lane].excess_ns if math.isnan(ns) and lane in own else ns for lane, ns in named
                },
                pieces=own,
                lanes={lanes[lane]: LaneExcess(*row) for lane, *row in excess},
                work_excess_ns=dict(work),
                rates={rank: (tx, rx) for rank, tx, rx in rates},
            )
        )
    return found


def _rows(table: Ragged) -> Iterator[list[tuple[Any, ...]]]:
    rows: list[tuple[Any, ...]] = list(zip(*(one.tolist() for one in _joined(table.columns)), strict=True))
    splits = table.splits.tolist()
    for begin, end in pairwise(splits):
        yield rows[begin:end]
