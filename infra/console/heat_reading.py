"""The heat map's questions to the database, with answers as arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from irregulars.dtypes import Column, Flags, Floats, Ints
from irregulars.infra.console.heat_levels import UNKNOWN, Names, Places, Values, peers_of
from irregulars.infra.console.heat_matrix import HeatMatrix, Quantity, extended, matrix_of, sampled

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_CHUNK_CELLS: Final = 1 << 21  # cells of one question: 20 MB on the way
# Iterations of which a rank's usual is the median; chosen: its standard error is a fifth of the noise
_SAMPLED: Final = 41

MOST_TIMES: Final = 100_000  # iterations of a window at most
_SETTLED_S: Final = 15  # so long after the newest iteration was stored, s, the rows of its ranks are stored too
FAR: Final = 1 << 62  # beyond any iteration

_WINDOW: Final = """
SELECT iteration, toUnixTimestamp64Nano(started_at) AS started_ns, elapsed_ns,
    ifNull(reference_ns, nan) AS reference_ns, phase, toInt8(ifNull(toInt8(is_irregular), -1)) AS irregular,
    ranks_reported, verdict_ids, toInt64(toUnixTimestamp(stored_at)) AS stored_s, now() - stored_at AS age_s
FROM iterations FINAL
WHERE job = {job:String} AND attempt = {attempt:Int64} AND iteration >= {first:Int64} AND iteration <= {last:Int64}
ORDER BY iteration DESC
LIMIT {limit:UInt32}"""

_FROM: Final = """
SELECT DISTINCT iteration
FROM iterations
WHERE job = {job:String} AND attempt = {attempt:Int64} AND iteration >= {around:Int64}
ORDER BY iteration
LIMIT {limit:UInt32}"""

_BEFORE: Final = """
SELECT DISTINCT iteration
FROM iterations
WHERE job = {job:String} AND attempt = {attempt:Int64} AND iteration < {around:Int64}
ORDER BY iteration DESC
LIMIT {limit:UInt32}"""

_SPAN: Final = """
SELECT min(iteration), max(iteration)
FROM iterations
WHERE job = {job:String} AND attempt = {attempt:Int64}"""

_PLACES: Final = """
SELECT rank, ifNull(gpu, -1) AS gpu, ifNull(toString(host), '') AS host, ifNull(toString(nic), '') AS nic,
    ifNull(toString(switch), '') AS switch,
    arrayMap((kind, size) -> if(size > 1, toString(kind), ''), communicator_kinds, communicator_sizes) AS kinds,
    toString(communicators[indexOf(kinds, 'pp')]) AS pp, toString(communicators[indexOf(kinds, 'tp')]) AS tp,
    toString(communicators[indexOf(kinds, 'dp')]) AS dp
FROM jobs FINAL
WHERE job = {job:String} AND attempt = {attempt:Int64} AND is_logged
ORDER BY rank"""

_SEEN: Final = """
SELECT DISTINCT rank
FROM rank_iterations
WHERE job = {job:String} AND attempt = {attempt:Int64} AND iteration IN {some:Array(Int64)}
ORDER BY rank"""

_CELLS: Final = """
SELECT toUInt32(iteration - {first:Int64}) AS after_first, rank, toFloat32(ifNull({column:Identifier}, nan)) AS value
FROM rank_iterations FINAL
WHERE job = {job:String} AND attempt = {attempt:Int64}"""

_BETWEEN: Final = _CELLS + " AND iteration >= {first:Int64} AND iteration <= {last:Int64}"
_SOME: Final = _CELLS + " AND iteration IN {some:Array(Int64)}"
# An iteration in four bytes, not eight: most of the time goes into bringing the rows here.

_CELL: Final = """
SELECT elapsed_ns, work_ns, score, operators, late_rows
FROM rank_iterations FINAL
WHERE job = {job:String} AND attempt = {attempt:Int64} AND iteration = {iteration:Int64} AND rank = {rank:UInt32}"""

_USUAL: Final = """
SELECT median(work_ns), count(work_ns)
FROM rank_iterations FINAL
WHERE job = {job:String} AND attempt = {attempt:Int64} AND rank = {rank:UInt32}
    AND iteration IN {some:Array(Int64)}"""

_PEERS: Final = """
SELECT median(work_ns), max(work_ns), argMax(rank, work_ns), countIf(work_ns > {work_ns:Int64}), count(work_ns)
FROM rank_iterations FINAL
WHERE job = {job:String} AND attempt = {attempt:Int64} AND iteration = {iteration:Int64}"""

_MARKS: Final = """
SELECT verdict_id, kind, state, first_iteration, past_last_iteration, name, ranks, probability, position
FROM accused
WHERE job = {job:String} AND attempt = {attempt:Int64} AND first_iteration <= {last:Int64}
    AND past_last_iteration > {first:Int64}
ORDER BY (job, verdict_id) IN (SELECT job, verdict_id FROM incidents WHERE state = 'open') DESC, lost_s DESC,
    verdict_id, position
LIMIT 200"""


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a job."""

    job: str
    attempt: int

    @property
    def values(self) -> dict[str, Any]:
        """As parameters of a question."""
        return {"job": self.job, "attempt": self.attempt}


@dataclass(frozen=True, slots=True)
class Window:
    """Judged iterations, ascending."""

    # iterations, started_ns, elapsed_ns: Of each: its number, when it began, and how long it took
    iterations: Ints
    started_ns: Ints
    elapsed_ns: Ints
    reference_ns: Floats  # mean of the window before it; NaN: none yet
    # is_train, is_irregular: Whether its phase is training, and whether it was judged irregular
    is_train: Flags
    is_irregular: Flags
    verdict_ids: Sequence[Sequence[str]]  # verdicts whose cause was seen in it
    # Changes when one of them is judged anew. Also once, soon after the newest was stored: until then rows of its
    # ranks may be on their way.
    version: str
    judgements: Ints  # a row of numbers for each iteration, which are others when it is judged anew
    is_settled: Flags  # whether enough time has passed for the rows of its ranks to be stored

    def columns_in(self, other: Window) -> Ints:
        """Return where each iteration stands in a window that was read before; -1: nowhere, or it may be another."""
        if not len(other.iterations):
            return np.full(len(self.iterations), -1, dtype=np.int64)
        at, are_there = _places_in(other.iterations, self.iterations)
        at = np.where(are_there, at, 0)
        is_same = are_there & other.is_settled[at] & (self.judgements == other.judgements[at]).all(axis=1)
        return np.where(is_same, at, -1)

    @property
    def usual_iterations(self) -> Ints:
        """Iterations from which usual values are computed: regular ones of training, else any, evenly spread."""
        regular = self.iterations[self.is_train & ~self.is_irregular]
        some = regular if len(regular) else self.iterations
        return some[sampled(len(some), _SAMPLED)]


def read_span(client: Client, start: Start) -> tuple[int, int]:
    """Return the first and the last iteration that is stored."""
    [(first, last)] = client.query(_SPAN, parameters=start.values).result_rows
    return int(first), int(last)


def read_around(client: Client, start: Start, around: int | None, limit: int) -> Window:
    """Return up to `limit` iterations, with `around` in their middle where there are enough; None: the newest."""
    if around is None:
        return read_window(client, start, -FAR, FAR, limit)
    after = _numbers(client, _FROM, start, around, limit)
    before = _numbers(client, _BEFORE, start, around, limit)
    ahead = min(len(after), max(-(-limit // 2), limit - len(before)))
    chosen = [*before[: limit - ahead], *after[:ahead]]
    return read_window(client, start, min(chosen, default=0), max(chosen, default=-1))


def _numbers(client: Client, question: str, start: Start, around: int, limit: int) -> list[int]:
    rows = client.query(question, parameters={**start.values, "around": around, "limit": limit}).result_rows
    return [int(iteration) for (iteration,) in rows]


def read_window(client: Client, start: Start, first: int, last: int, limit: int = MOST_TIMES) -> Window:
    """Return the iterations from `first` to `last`, both included; of more than `limit`, the newest."""
    asked = {**start.values, "first": first, "last": last, "limit": limit}
    newest_first = _arrow(client, _WINDOW, asked, limit)
    table = newest_first.take(np.arange(newest_first.num_rows)[::-1])
    texts = ("phase", "verdict_ids")
    columns = {name: table.column(name).to_numpy() for name in table.column_names if name not in texts}
    print_of = hashlib.blake2b(digest_size=8)
    judged = ("iteration", "elapsed_ns", "irregular", "ranks_reported", "stored_s")
    judgements = np.stack([columns[name].astype(np.int64) for name in judged], axis=1)
    print_of.update(judgements.tobytes())
    print_of.update(b"settled" if columns["age_s"].min(initial=_SETTLED_S + 1) > _SETTLED_S else b"")
    return Window(
        columns["iteration"].astype(np.int64), columns["started_ns"].astype(np.int64),
        columns["elapsed_ns"].astype(np.int64), columns["reference_ns"].astype(np.float64),
        np.array([one == "train" for one in table.column("phase").to_pylist()], dtype=bool),
        columns["irregular"] == 1, table.column("verdict_ids").to_pylist(), print_of.hexdigest(), judgements,
        columns["age_s"] > _SETTLED_S,
    )  # fmt: skip


def read_places(client: Client, start: Start, window: Window) -> Places:
    """Return the ranks that log and where they live; of a job without announcements, the ranks of some iterations."""
    table = _arrow(client, _PLACES, start.values)
    ranks = table.column("rank").to_numpy().astype(np.int64)
    some = window.iterations[sampled(len(window.iterations), 3)].tolist()
    seen = _arrow(client, _SEEN, {**start.values, "some": some})
    known = np.union1d(ranks, seen.column("rank").to_numpy().astype(np.int64))
    at = np.searchsorted(known, ranks)
    gpu = np.full(len(known), UNKNOWN, dtype=np.int64)
    gpu[at] = table.column("gpu").to_numpy()
    host, nic, switch, pp, tp, dp = (
        _names(table.column(name), at, len(known)) for name in ("host", "nic", "switch", "pp", "tp", "dp")
    )
    return Places(known, gpu, host, nic, switch, {"pp": pp, "tp": tp, "dp": dp})


def _names(column: pa.ChunkedArray, at: Ints, size: int) -> Names:
    coded = column.cast(pa.string()).combine_chunks().dictionary_encode()
    names = coded.dictionary.to_pylist()
    codes = np.full(size, UNKNOWN, dtype=np.int64)
    codes[at] = coded.indices.to_numpy()
    if "" in names:
        codes[codes == names.index("")] = UNKNOWN
    return Names(names, codes)


def read_matrix(client: Client, start: Start, quantity: Quantity, window: Window, places: Places) -> HeatMatrix:
    """Return one quantity of all ranks in a window; reads a few million cells at a time."""
    cells = _Cells(client, start, quantity.column, places.ranks)
    sample = cells.of(window.usual_iterations, _SOME, {"some": window.usual_iterations.tolist()})
    columns = len(window.iterations)
    each = max(1, _CHUNK_CELLS // max(1, len(places.ranks)))

    def read(first: int) -> Values:
        own = window.iterations[first : first + each]
        return cells.of(own, _BETWEEN, {"last": int(own[-1])})

    def chunks() -> Iterator[tuple[int, Values]]:
        # The database reads the next chunk while we compute: two of them are in memory at most.
        with ThreadPoolExecutor(1, "irregulars-cells") as ahead:
            coming = ahead.submit(read, 0)
            for first in range(0, columns, each):
                values = coming.result()
                if first + each < columns:
                    coming = ahead.submit(read, first + each)
                yield first, values

    return matrix_of(quantity, chunks, sample, peers_of(places), window.iterations, window.version)


def extend_matrix(
    client: Client, start: Start, quantity: Quantity, window: Window, places: Places, base: HeatMatrix, columns: Ints
) -> HeatMatrix:
    """Return a matrix of a window of which another one has some columns: only the others are read."""
    new = window.iterations[columns < 0]
    values = np.empty((0, len(places.ranks)), dtype=np.float32)
    if len(new):
        values = _Cells(client, start, quantity.column, places.ranks).of(new, _SOME, {"some": new.tolist()})
    return extended(base, quantity, columns, values, peers_of(places), window.version)


@dataclass(frozen=True, slots=True)
class _Cells:
    """Reads cells of one column into ``[iteration, rank]``."""

    client: Client
    start: Start
    column: str
    ranks: Ints

    def of(self, iterations: Ints, question: str, asked: dict[str, Any]) -> Values:
        first = int(iterations[0])
        parameters = {**self.start.values, "column": self.column, "first": first, **asked}
        table = _arrow(self.client, question, parameters, 2 * len(iterations) * len(self.ranks) + 1)
        values = np.full(len(iterations) * len(self.ranks), np.nan, dtype=np.float32)
        for batch in table.to_batches():
            at, are_known = _places_in(iterations - first, batch.column("after_first").to_numpy())
            row, are_ranks = _places_in(self.ranks, batch.column("rank").to_numpy())
            at *= len(self.ranks)
            at += row
            keep = are_known & are_ranks
            found = batch.column("value").to_numpy()
            if keep.all():
                values[at] = found
            else:
                values[at[keep]] = found[keep]
        return values.reshape(len(iterations), len(self.ranks))


def _places_in(ascending: Ints, wanted: Column) -> tuple[Ints, Flags]:
    """Return where each of `wanted` stands in `ascending`, and whether it does."""
    if ascending[-1] - ascending[0] == len(ascending) - 1:  # without gaps: no search
        at = wanted.astype(np.int64) - ascending[0]
        return at, (at >= 0) & (at < len(ascending))
    at = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    return at, ascending[at] == wanted


def read_marks(client: Client, start: Start, first: int, last: int) -> list[dict[str, Any]]:
    """Return verdicts whose range touches the window, with the ranks of each suspect."""
    rows = client.query(_MARKS, parameters={**start.values, "first": first, "last": last}).result_rows
    names = ("verdict_id", "kind", "state", "first", "past", "name", "ranks", "probability", "position")
    return [dict(zip(names, row, strict=True)) for row in rows]


def read_cell(client: Client, start: Start, iteration: int, rank: int, usual_iterations: Ints) -> dict[str, Any]:
    """Return the stored values of one rank in one iteration beside the usual ones; empty if none are stored."""
    asked = {**start.values, "iteration": iteration, "rank": rank}
    rows = client.query(_CELL, parameters=asked).result_rows
    if not rows:
        return {}
    elapsed_ns, work_ns, score, operators, late_rows = rows[0]
    some = usual_iterations[usual_iterations != iteration].tolist()
    [(usual_ns, usual_of)] = client.query(_USUAL, parameters={**asked, "some": some}).result_rows
    peers = client.query(_PEERS, parameters={**asked, "work_ns": work_ns if work_ns is not None else 0}).result_rows
    median_ns, most_ns, most_rank, longer, ranks = peers[0]
    return {
        "elapsed_ns": elapsed_ns, "work_ns": work_ns, "score": score, "operators": operators, "late_rows": late_rows,
        "usual_ns": usual_ns if usual_of else None, "median_ns": median_ns, "most_ns": most_ns,
        "most_rank": most_rank, "longer": longer, "ranks": ranks,
    }  # fmt: skip


def _arrow(client: Client, question: str, parameters: dict[str, Any], most: int = 1 << 20) -> pa.Table:
    # Where the console bounds the rows of an answer, these need more; they are bounded by `matrix.MOST_CELLS`.
    is_bounded = client.get_client_setting("max_result_rows") is not None
    settings = {"max_result_rows": most} if is_bounded else {}
    return client.query_arrow(question, parameters=parameters, settings=settings)
