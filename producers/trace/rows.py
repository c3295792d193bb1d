"""Rows of a trace file, checked. Vectorised: no Python loop over rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow._compute import CastOptions, SetLookupOptions, call_function  # pyarrow.compute takes 40 ms to import

from irregulars.arrow_numpy import from_numpy, to_numpy
from irregulars.messages.bounds import BOUNDS, LATEST_NS, Bound
from irregulars.messages.records import (
    AUDIT,
    NUMERICS,
    OPERATORS,
    PATHS,
    PAUSE,
    PHASE_UNKNOWN,
    PHASES,
    RECV,
    SEND,
    UNKNOWN,
    iteration_columns,
)
from irregulars.producers.publishing.batches import ends_ns
from irregulars.producers.trace.files import TableFile
from irregulars.producers.trace.job_file import JobFile
from irregulars.producers.trace.order import Keys, Rows
from irregulars.validation import MAX_NAME_CHARACTERS, shown

MOST_REASONS: Final = 10
ANY_INTEGER: Final = Bound(UNKNOWN + 1, -(UNKNOWN + 1))


@dataclass(frozen=True, slots=True)
class Rejected:
    """Number of rows that were left out, and the first reasons (``file: row N: column must be ...; got ...``)."""

    count: int = 0
    reasons: tuple[str, ...] = ()

    def __add__(self, other: Rejected) -> Rejected:
        return Rejected(self.count + other.count, (self.reasons + other.reasons)[:MOST_REASONS])


def check_commops(table: TableFile, job: JobFile) -> tuple[Rows, Rejected]:
    """Check rows of ``commops`` against the job."""
    check = Check(table)
    ids = [communicator.id for communicator in job.communicators]
    rank, ordinal, operator = check.ranks(job), check.codes("communicator", ids), check.codes("operator", OPERATORS)
    sequence, start_ns = check.integers("sequence"), check.integers("start_ns")
    peer = check.integers("peer", Bound(-LATEST_NS, LATEST_NS))  # `_check_peers` does more
    elapsed_ns, size_bytes = check.counts("elapsed_ns"), check.counts("size_bytes")
    iteration = check.integers("iteration")
    members = SetLookupOptions(value_set=from_numpy(job.membership.keys))
    pair = call_function("index_in", [from_numpy(ordinal * job.world_size + rank)], members)
    local = to_numpy(pair, -1).astype(np.int64)
    check.reject(local < 0, "rank", "a member of its communicator", beside="communicator")
    local -= _at(job.membership.first_of_rank, rank)
    is_p2p = (operator == SEND) | (operator == RECV)
    peer = np.where(is_p2p, peer, UNKNOWN)  # the contract gives it a meaning for send and recv alone
    rows = np.flatnonzero(is_p2p & check.is_good)
    is_member = call_function("is_in", [from_numpy((ordinal * job.world_size)[rows] + peer[rows])], members)
    is_bad = np.zeros(len(peer), dtype=bool)
    is_in_world = (peer[rows] >= 0) & (peer[rows] < job.world_size)
    is_bad[rows] = ~(to_numpy(is_member) & is_in_world)
    check.reject(is_bad, "peer", "a rank of the communicator of the send or recv", beside="communicator")
    columns: dict[str, np.ndarray] = {
        "communicator": local.astype(np.uint16), "operator": operator.astype(np.uint8), "sequence": sequence,
        "peer": peer, "start_ns": start_ns, "elapsed_ns": elapsed_ns, "size_bytes": size_bytes,
        "iteration": iteration,
    }  # fmt: skip

    def keys(columns: Mapping[str, np.ndarray]) -> Keys:
        operator = columns["operator"]
        direction = np.where((operator == SEND) | (operator == RECV), operator, 0)
        identity = (columns["communicator"], direction, columns["peer"], columns["sequence"])
        return Keys(ends_ns(columns["start_ns"], columns["elapsed_ns"]), identity)

    return check.rows(rank, columns, keys, lambda rank: tuple(ids[i] for i in job.membership.of_rank(rank)))


def check_iterations(table: TableFile, job: JobFile) -> tuple[Rows, Rejected]:
    """Check rows of ``iterations`` against the job."""
    check = Check(table)
    rank, iteration = check.ranks(job), check.integers("iteration")
    start_ns, elapsed_ns = check.integers("start_ns"), check.counts("elapsed_ns")
    phase = check.codes("phase", PHASES)
    phase = np.where(phase < 0, PHASE_UNKNOWN, phase).astype(np.uint8)
    columns = iteration_columns(iteration, start_ns, elapsed_ns, phase)
    columns |= {name: check.counts(name) for name in ("tokens", "not_finite")}
    columns |= {"parameters_checksum": check.checksums("parameters_checksum")}
    columns |= {name: check.numbers(name) for name in NUMERICS[:-2]}
    return check.rows(rank, columns, iterations_keys, names=lambda _: ())


def iterations_keys(columns: Mapping[str, np.ndarray]) -> Keys:
    """Return the keys of rows of ``iterations``, audits and pauses among them."""
    names = ("iteration", "phase", "start_ns", "elapsed_ns", *AUDIT, *PAUSE)
    identity = tuple(columns[name] for name in names)
    return Keys(ends_ns(columns["start_ns"], columns["elapsed_ns"]), identity)


def check_bandwidth(table: TableFile, job: JobFile) -> tuple[Rows, Rejected]:
    """Check rows of ``bandwidth`` against the job."""
    check = Check(table)
    rank = check.ranks(job)
    time_ns, path = check.integers("time_ns"), check.codes("path", PATHS)
    device, device_names = check.texts("device")
    rates = {name: check.rates(name) for name in ("tx_bytes_per_s", "rx_bytes_per_s")}
    pairs = np.unique((rank * len(device_names) + device)[check.is_good])
    first_of_rank = np.searchsorted(pairs, np.arange(job.world_size + 1) * len(device_names))
    local = np.searchsorted(pairs, rank * len(device_names) + device) - _at(first_of_rank, rank)
    check.reject(local > np.iinfo(np.uint16).max, "device", "one of at most 65536 of a rank")
    columns: dict[str, np.ndarray] = {"time_ns": time_ns, "path": path.astype(np.uint8), **rates}
    columns["device"] = local.astype(np.uint16)

    def names(rank: int) -> tuple[str, ...]:
        own = pairs[first_of_rank[rank] : first_of_rank[rank + 1]] - rank * len(device_names)
        return tuple(device_names[i] for i in own)

    def keys(columns: Mapping[str, np.ndarray]) -> Keys:
        return Keys(columns["time_ns"], tuple(columns[name] for name in ("time_ns", "path", "device")))

    return check.rows(rank, columns, keys, names)


# --- checks ---------------------------------------------------------------------------------------------------------


class Check:
    """Reads the columns of one file and remembers which rows broke a rule, and why the first ones did."""

    def __init__(self, table: TableFile) -> None:
        self._table = table
        self._bounds = BOUNDS.get(table.schema, {})
        self._reasons = list(table.unreadable[:MOST_REASONS])
        self.is_good = np.ones(len(table), dtype=bool)

    def integers(self, name: str, bound: Bound | None = None) -> np.ndarray:
        """Read a column of integers as int64, `UNKNOWN` where null; the bound is that of the table of bounds."""
        if name not in self._table.columns:
            return np.full(len(self._table), UNKNOWN)
        # `UNKNOWN` lies below every bound, so that nulls are bad where a column may not hold them.
        values, is_wrong = _integers(self._table.columns[name])
        is_null = values == UNKNOWN
        bound = bound or self._bounds[name]
        is_bad = (values < bound.least) | (values > bound.most)
        if self._table.is_nullable(name):
            is_bad &= ~is_null
        if is_wrong is not None:
            is_bad |= is_wrong
        self.reject(is_bad, name, f"an integer {bound}")
        return values

    def checksums(self, name: str) -> np.ndarray:
        """Read a column of checksums as `integers` does; its floats are integers that were rounded alike."""
        column = self._table.columns.get(name)
        if column is None or not pa.types.is_floating(column.type):
            return self.integers(name, ANY_INTEGER)
        values = _with_nans(column)
        is_known = (np.abs(values) < 2**63) & (np.floor(values) == values)
        self.reject(~is_known & ~np.isnan(values), name, f"an integer {ANY_INTEGER}")
        return np.where(is_known, np.where(is_known, values, 0.0).astype(np.int64), UNKNOWN)

    def ranks(self, job: JobFile) -> np.ndarray:
        """Read the ranks of the job."""
        return self.integers("rank", Bound(0, job.world_size - 1))

    def counts(self, name: str) -> np.ndarray:
        """Read a column of lengths, sizes or numbers of things as float64, NaN where null."""
        values = self.integers(name)
        is_unknown = values == UNKNOWN
        column = self._table.columns.get(name)
        # A file may hold the number that stands for "unknown" here: it is no null, and breaks the bound.
        if column is not None and pa.types.is_int64(column.type) and is_unknown.sum() > column.null_count:
            is_null = to_numpy(call_function("is_null", [column]))
            self.reject(is_unknown & ~is_null, name, f"an integer {self._bounds[name]}")
        return np.where(is_unknown, np.nan, values)

    def numbers(self, name: str) -> np.ndarray:
        """Read a column of numbers that a trainer computed: NaN where null, and infinity where one is not finite."""
        column = self._table.columns.get(name)
        if column is None:
            return np.full(len(self._table), np.nan)
        values = _with_nans(column)
        is_nan = np.isnan(values)
        if column.null_count == is_nan.sum():
            return values
        return np.where(is_nan & ~to_numpy(call_function("is_null", [column])), np.inf, values)

    def rates(self, name: str) -> np.ndarray:
        """Read a column of rates as float64, NaN where null: rates that no device can have are rejected."""
        values, bound = _with_nans(self._table.columns[name]), self._bounds[name]
        self.reject((values < bound.least) | (values > bound.most), name, f"a rate {bound}")
        return values

    def texts(self, name: str) -> tuple[np.ndarray, list[str]]:
        """Read a column of texts as codes into sorted names; rows without text are rejected."""
        codes, names = _dictionary(self._table.columns[name])
        order = sorted(range(len(names)), key=names.__getitem__)
        places = np.empty(len(names) + 1, dtype=np.int64)
        places[order], places[-1] = np.arange(len(names)), -1
        codes = places[codes]
        self.reject(codes < 0, name, "a text")
        return codes, [names[i] for i in order]

    def codes(self, name: str, choices: Sequence[str]) -> np.ndarray:
        """Read a column of texts as indices into `choices`; -1 where null, in columns that may be."""
        if name not in self._table.columns:
            return np.full(len(self._table), -1)
        codes, names = _dictionary(self._table.columns[name])
        known = {"": -1} | {choice: code for code, choice in enumerate(choices)}
        found = np.array([*(known.get(text, -2) for text in names), -1], dtype=np.int64)[codes]
        is_bad = found == -2 if self._table.is_nullable(name) else found < 0
        self.reject(is_bad, name, f"one of {' '.join(choices[:20])}{' ...' if len(choices) > 20 else ''}")
        return found

    def words(self, name: str) -> list[str]:
        """Read a column of texts of any kind, row by row; empty where null, and bounded as names of devices are."""
        column = self._table.columns.get(name)
        if column is None:
            return [""] * len(self._table)
        codes, names = _dictionary(column)
        bounded = [*(text[:MAX_NAME_CHARACTERS] for text in names), ""]
        return [bounded[code] for code in codes.tolist()]

    def rejected(self) -> Rejected:
        """Return how many rows broke a rule, and why the first ones did."""
        reasons = sorted(self._reasons)[:MOST_REASONS]
        texts = tuple(f"{self._table.name}: row {number}: {text}" for number, text in reasons)
        return Rejected(len(self._table.unreadable) + int((~self.is_good).sum()), texts)

    def reject(self, is_bad: np.ndarray, name: str, rule: str, beside: str | None = None) -> None:
        """Leave rows out; the reason shows the value of column `name` and of the one `beside` it."""
        # A row counts once, with the first rule that it breaks.
        is_new = is_bad & self.is_good
        if not is_new.any():
            return
        self.is_good &= ~is_new

        def value_of(name: str, row: int) -> str:
            try:
                return shown(self._table.columns[name][row].as_py())
            except UnicodeDecodeError:
                return shown("text that is not UTF-8")

        for row in np.flatnonzero(is_new)[:MOST_REASONS].tolist():
            value = value_of(name, row)
            place = f" ({beside} {value_of(beside, row)})" if beside else ""
            numbers = self._table.row_numbers
            number = self._table.rows_before + row + 1 if numbers is None else int(numbers[row])
            self._reasons.append((number, f"{name} must be {rule}; got {value}{place}"))

    def rows(
        self,
        rank: np.ndarray,
        columns: Mapping[str, np.ndarray],
        keys: Callable[[Mapping[str, np.ndarray]], Keys],
        names: Callable[[int], tuple[str, ...]],
    ) -> tuple[Rows, Rejected]:
        """Keep the good rows."""
        keep: Any = slice(None) if self.is_good.all() else self.is_good
        good = {name: column[keep] for name, column in columns.items()}
        return Rows(rank[keep].astype(np.int32), good, keys, names), self.rejected()


def _at(first_of_rank: np.ndarray, rank: np.ndarray) -> np.ndarray:
    # Rejected rows have ranks out of range; their value does not matter.
    return first_of_rank[np.clip(rank, 0, len(first_of_rank) - 1)]


# --- Arrow to numpy -------------------------------------------------------------------------------------------------


def _integers(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return integers with `UNKNOWN` for null, and a mask of values that are none (`None`: all are)."""
    if pa.types.is_null(column.type):
        return np.full(len(column), UNKNOWN), None
    if pa.types.is_floating(column.type):
        values = _with_nans(column)
        is_null = np.isnan(values)
        is_wrong = ~is_null & ~((np.floor(values) == values) & (np.abs(values) < 2**53))
        whole = np.where(is_null | is_wrong, 0, values).astype(np.int64)
        return np.where(is_null, UNKNOWN, whole), is_wrong if is_wrong.any() else None
    if pa.types.is_uint64(column.type):
        is_wrong = to_numpy(call_function("greater", [column, pa.scalar(2**63 - 1, pa.uint64())]), False)
        column, wrong = column.cast(pa.int64(), safe=False), is_wrong if is_wrong.any() else None
        return to_numpy(column, UNKNOWN), wrong
    if column.null_count:
        column = _as_type(column, pa.int64())  # which holds `UNKNOWN`
    return to_numpy(column, UNKNOWN).astype(np.int64, copy=False), None


def _with_nans(column: pa.ChunkedArray) -> np.ndarray:
    return to_numpy(_as_type(column, pa.float64()), math.nan)


def _as_type(column: Any, kind: pa.DataType) -> Any:
    """Cast a column of another type, as its `cast` does, which imports `pyarrow.compute`."""
    return column if column.type == kind else call_function("cast", [column], CastOptions.safe(kind))


def _dictionary(column: pa.ChunkedArray) -> tuple[np.ndarray, list[str]]:
    """Return codes and their texts; -1, the place after the last, is null."""
    if pa.types.is_null(column.type):
        return np.full(len(column), -1), []
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    whole = encoded.unify_dictionaries().combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # pyarrow before 17 gives one chunk in a chunked array
        whole = whole.chunk(0)
    is_signed = pa.types.is_signed_integer(whole.indices.type)
    indices = whole.indices if is_signed else whole.indices.cast(pa.int64())
    try:
        texts = list(whole.dictionary.to_pylist())
    except UnicodeDecodeError:  # Arrow does not check the texts of a parquet file
        texts = [text.decode(errors="replace") for text in whole.dictionary.cast(pa.binary()).to_pylist()]
    return to_numpy(indices, -1).astype(np.int64), texts
