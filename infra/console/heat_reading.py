"""The heat map's questions to the database, with answers as arrays; matrices are kept while they are asked for.

Kept matrices are bounded in memory; each answer is read once for all requests at the same time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from irregulars.dtypes import Column, Flags, Floats, Ints
from irregulars.errors import InputError
from irregulars.infra.console.database import ConsoleDatabase, mark_seen
from irregulars.infra.console.heat_levels import UNKNOWN, Names, Places, Values, peers_of
from irregulars.infra.console.heat_matrix import MOST_CELLS, HeatMatrix, Quantity, extended, matrix_of, sampled
from irregulars.words import name_kind

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

T = TypeVar("T")

_CHUNK_CELLS: Final = 1 << 21  # cells of one question: 20 MB on the way
# Iterations of which a rank's usual is the median; chosen: its standard error is a fifth of the noise
_SAMPLED: Final = 41

MOST_TIMES: Final = 100_000  # iterations of a window at most
_SETTLED_S: Final = 15  # so long after the newest iteration was stored, s, the rows of its ranks are stored too
_FAR: Final = 1 << 62  # beyond any iteration

_WINDOW: Final = """
SELECT iteration, elapsed_ns, ifNull(reference_ns, nan) AS reference_ns, phase,
    toInt8(ifNull(toInt8(is_irregular), -1)) AS irregular,
    ranks_reported, verdict_ids, toInt64(toUnixTimestamp(stored_at)) AS stored_s, now() - stored_at AS age_s
FROM judged_iterations
WHERE job = {job:String} AND attempt = {attempt:Int64} AND iteration >= {first:Int64} AND iteration <= {last:Int64}
ORDER BY iteration DESC
LIMIT {limit:UInt32}"""

# With `>=` and `ASC` the iterations from one on, with `<` and `DESC` those before it
_BESIDE: Final = """
SELECT DISTINCT iteration
FROM iterations
WHERE job = {job:String} AND attempt = {attempt:Int64} AND iteration %s {around:Int64}
ORDER BY iteration %s
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
SELECT known.verdict_id, kind, state, first_iteration, past_last_iteration, name, ranks, probability, position
FROM (SELECT * FROM incidents WHERE job = {job:String} AND attempt = {attempt:Int64}) AS known
LEFT JOIN (SELECT * FROM newest_suspects WHERE job = {job:String}) AS named ON named.verdict_id = known.verdict_id
WHERE first_iteration <= {last:Int64} AND past_last_iteration > {first:Int64}
ORDER BY state = 'open' DESC, lost_s DESC, known.verdict_id, position
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

    # iterations, elapsed_ns: Of each: its number, and how long it took
    iterations: Ints
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
        # Any valid index serves where it is not there: the last line puts -1 in its place.
        at = np.where(are_there, at, 0)
        is_same = are_there & other.is_settled[at] & (self.judgements == other.judgements[at]).all(axis=1)
        return np.where(is_same, at, -1)

    @property
    def usual_iterations(self) -> Ints:
        """Iterations from which usual values are computed: regular ones of training, else any, evenly spread."""
        regular = self.iterations[self.is_train & ~self.is_irregular]
        some = regular if len(regular) else self.iterations
        return some[sampled(len(some), _SAMPLED)]


def read_around(client: Client, start: Start, around: int | None, limit: int) -> Window:
    """Return up to `limit` iterations, with `around` in their middle where there are enough; None: the newest."""
    if around is None:
        return read_window(client, start, -_FAR, _FAR, limit)
    after = _numbers(client, _BESIDE % (">=", "ASC"), start, around, limit)
    before = _numbers(client, _BESIDE % ("<", "DESC"), start, around, limit)
    # Half of the places, rounded up, from `around` on; more where fewer iterations lie before it.
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
        columns["iteration"].astype(np.int64), columns["elapsed_ns"].astype(np.int64),
        columns["reference_ns"].astype(np.float64),
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

    return matrix_of(quantity, chunks, sample, peers_of(places), window.iterations)


def extend_matrix(
    client: Client, start: Start, quantity: Quantity, window: Window, places: Places, base: HeatMatrix, columns: Ints
) -> HeatMatrix:
    """Return a matrix of a window of which another one has some columns: only the others are read."""
    new = window.iterations[columns < 0]
    values = np.empty((0, len(places.ranks)), dtype=np.float32)
    if len(new):
        values = _Cells(client, start, quantity.column, places.ranks).of(new, _SOME, {"some": new.tolist()})
    return extended(base, quantity, columns, values, peers_of(places))


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
            # The usual case: masks would copy each column once more.
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
    """Return verdicts whose range touches the window, with the ranks of each suspect; without one by their kind."""
    rows = client.query(_MARKS, parameters={**start.values, "first": first, "last": last}).result_rows
    names = ("verdict_id", "kind", "state", "first", "past", "name", "ranks", "probability", "position")
    found = [dict(zip(names, row, strict=True)) for row in rows]
    return [one | {"name": one["name"] or name_kind(one["kind"])} for one in found]


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
    # Where the console bounds the rows of an answer, these need more; they are bounded by `MOST_CELLS`.
    is_bounded = client.get_client_setting("max_result_rows") is not None
    settings = {"max_result_rows": most} if is_bounded else {}
    return client.query_arrow(question, parameters=parameters, settings=settings)


# Memory of the kept matrices together, bytes, at most. One of 8,192 ranks × 1,000 iterations: 16 MiB.
KEPT_BYTES: Final = 256 << 20

MOST_ITERATIONS: Final = 4_096  # iterations of a window at most; of large jobs fewer, see `MOST_CELLS`
_PLACES_KEPT_S: Final = 30.0
_WINDOW_KEPT_S: Final = 2.0


class Version(NamedTuple):
    """Version of a window's cells for one quantity; browsers get it as text."""

    rows: str  # name of the window's rows, as `version_of` gives it
    # Name of the rows that the cells are held against: the window's own, or those of an earlier window that it goes
    # on from
    baseline: str

    def told(self, quantity: str) -> str:
        """Write it as a browser gets it; of other quantities than this one it names the window's own baseline.

        >>> Version("b7", "b7").told("elapsed"), Version("b7", "a3").told("elapsed")
        ('b7', 'b7.elapsed.a3')
        """
        return self.rows if self.rows == self.baseline else f"{self.rows}.{quantity}.{self.baseline}"

    @classmethod
    def of_text(cls, text: str, quantity: str) -> Version:
        """Read what `told` wrote, for a quantity.

        >>> Version.of_text("b7.elapsed.a3", "elapsed").baseline, Version.of_text("b7.elapsed.a3", "gap").baseline
        ('a3', 'b7')
        """
        rows, _, rest = text.partition(".")
        of, _, baseline = rest.partition(".")
        return cls(rows, baseline if of == quantity and baseline else rows)


@dataclass(frozen=True, slots=True)
class Held:
    """A matrix that is kept, and of which window and ranks it is."""

    start: Start
    quantity: str
    version: Version
    window: Window
    places_version: str
    matrix: HeatMatrix


@dataclass(frozen=True, slots=True)
class Overlap:
    """The part of a window that a kept matrix holds: for each iteration its column there, or -1."""

    held: Held
    columns: Ints

    @property
    def unchanged(self) -> int:
        """Iterations from the window's first on that are the first ones there too: a browser may keep them."""
        is_same = self.columns == np.arange(len(self.columns))
        return len(is_same) if is_same.all() else int(is_same.argmin())


class Changed(Exception):
    """A tile was asked for of rows or a baseline that are others by now: the browser asks for the window again."""


class HeatMapStore:
    """Windows, places and matrices of jobs.

    `database`: answers questions.
    """

    def __init__(self, database: ConsoleDatabase) -> None:
        self._database = database
        self._begun: set[asyncio.Task[Any]] = set()
        self._kept: OrderedDict[Hashable, Held] = OrderedDict()

    async def around(self, start: Start, around: int | None, wanted: int) -> tuple[Window, Places]:
        """Return the newest iterations or those around one, and the job's ranks; as many as a window may have."""
        window = await self.times(start, around, wanted)
        places = await self.places(start, window)
        most = max(1, MOST_CELLS // max(1, len(places.ranks)))
        if len(window.iterations) <= most:
            return window, places
        return await self._around(start, around, most), places

    async def from_first(self, start: Start, first: int, wanted: int) -> tuple[Window, Places] | None:
        """Return the iterations from one on and the job's ranks; None: there are more than a window may have."""
        window = await self.behind(start, first - 1, wanted)
        # As many as were asked for: there may be more behind them.
        if not len(window.iterations) or len(window.iterations) == wanted:
            return None
        places = await self.places(start, window)
        return None if len(window.iterations) * len(places.ranks) > MOST_CELLS else (window, places)

    def told(self, start: Start, quantity: Quantity, window: Window, places: Places, known: str) -> tuple[str, int]:
        """Return a window's version for a browser, and how many of its first iterations the browser may keep.

        The version names the baseline, so that all its cells are held against the same one whatever others ask, and
        whatever is dropped from memory meanwhile. `known`: the version that the browser has; empty: none.
        """
        rows, own = version_of(window, places), Version.of_text(known, quantity.name)
        # First the matrix whose columns the browser has, else any one that spares reading.
        overlap = self._overlap(start, quantity, window, places, lambda held: held.version == own)
        unchanged = 0 if overlap is None else overlap.unchanged
        overlap = overlap or self._overlap(start, quantity, window, places, lambda _: True)
        baseline = rows if overlap is None else overlap.held.version.baseline
        return Version(rows, baseline).told(quantity.name), unchanged

    def _overlap(
        self, start: Start, quantity: Quantity, window: Window, places: Places, is_wanted: Callable[[Held], bool]
    ) -> Overlap | None:
        """Return the newest kept matrix that is wanted, of which half of a window or more can be taken."""
        places_version = version_of_places(places)
        for held in reversed(self._kept.values()):
            is_of_it = (held.start, held.quantity, held.places_version) == (start, quantity.name, places_version)
            if is_of_it and is_wanted(held) and held.matrix.baseline.fits(window.iterations):
                columns = window.columns_in(held.window)
                if int((columns >= 0).sum()) * 2 >= len(columns):
                    return Overlap(held, columns)
        return None

    async def times(self, start: Start, around: int | None, wanted: int) -> Window:
        """Return the newest iterations or those around one; raises `InputError` where none is stored."""
        window = await self._around(start, around, wanted)
        if not len(window.iterations):
            raise InputError(
                f"job and attempt must have judged iterations that are stored; got {start.job!r}, {start.attempt}"
            )
        return window

    async def behind(self, start: Start, after: int, most: int) -> Window:
        """Return the iterations behind one, maybe none; of more than `most`, the newest."""
        return await self._window(
            (start, after, most, "behind"), lambda client: read_window(client, start, after + 1, _FAR, most)
        )

    async def places(self, start: Start, window: Window) -> Places:
        """Return the ranks of a job."""
        return await self._database.ask(
            ("heat map places", start), lambda client: read_places(client, start, window), _PLACES_KEPT_S
        )

    async def between(self, start: Start, first: int, last: int) -> Window:
        """Return the iterations from `first` to `last`."""
        return await self._window((start, first, last), lambda client: read_window(client, start, first, last))

    async def matrix(
        self, start: Start, quantity: Quantity, edges: tuple[int, int], version: str
    ) -> tuple[HeatMatrix, Places]:
        """Return one quantity of the iterations between `edges`, in the `version` that `told` gave.

        Raises `Changed` if the rows are others by now, or no matrix with that version's baseline is kept any more.
        """
        window = await self.between(start, *edges)
        places = await self.places(start, window)
        wanted = Version.of_text(version, quantity.name)
        if version_of(window, places) != wanted.rows:
            raise Changed
        if len(window.iterations) * len(places.ranks) > MOST_CELLS:
            raise InputError(f"a window must have at most {MOST_CELLS:,} cells; got {len(window.iterations):,} "
                             f"iterations of {len(places.ranks):,} ranks. Ask for fewer iterations")  # fmt: skip
        key = (start, quantity.name, edges, wanted.baseline)
        kept = self._kept.get(key)
        if kept is None or kept.version != wanted:
            overlap = None
            if wanted.baseline != wanted.rows:
                overlap = self._overlap(
                    start, quantity, window, places, lambda held: held.version.baseline == wanted.baseline
                )
                if overlap is None:
                    raise Changed

            def read(client: Client) -> HeatMatrix:
                if overlap is None:
                    return read_matrix(client, start, quantity, window, places)
                base = overlap.held.matrix
                return extend_matrix(client, start, quantity, window, places, base, overlap.columns)

            # Not kept there (0.0): `_kept` holds matrices, within its bound of bytes.
            matrix = await self._database.ask(("heat map", *key, wanted), read, 0.0)
            kept = Held(start, quantity.name, wanted, window, version_of_places(places), matrix)
        self._kept[key] = kept
        self._kept.move_to_end(key)
        # The newest stays even if it is too large alone: its tiles are about to be asked for.
        while len(self._kept) > 1 and sum(one.matrix.levels.nbytes for one in self._kept.values()) > KEPT_BYTES:
            self._kept.popitem(last=False)
        return kept.matrix, places

    def begin(self, start: Start, quantity: Quantity, edges: tuple[int, int], version: str) -> None:
        """Begin to read a matrix that will be asked for soon; an error is raised to the request that asks for it."""
        reading = asyncio.create_task(self.matrix(start, quantity, edges, version))
        # asyncio itself refers to tasks only weakly: without this one the reading might vanish.
        self._begun.add(reading)
        reading.add_done_callback(self._begun.discard)
        reading.add_done_callback(mark_seen)

    async def marks(self, start: Start, first: int, last: int) -> list[dict[str, Any]]:
        """Return verdicts whose range touches the iterations from `first` to `last`."""
        return await self._database.ask(
            ("heat map marks", start, first, last), lambda client: read_marks(client, start, first, last)
        )

    async def ask(self, key: Hashable, read: Callable[[Client], T]) -> T:
        """Return the answer to a small question."""
        return await self._database.ask(("heat map", key), read)

    async def span(self, start: Start) -> tuple[int, int]:
        """Return the first and the last iteration that is stored."""

        def read(client: Client) -> tuple[int, int]:
            [(first, last)] = client.query(_SPAN, parameters=start.values).result_rows
            return int(first), int(last)

        return await self._database.ask(("heat map span", start), read)

    async def _around(self, start: Start, around: int | None, limit: int) -> Window:
        return await self._window((start, around, limit, "around"), lambda c: read_around(c, start, around, limit))

    async def _window(self, key: Hashable, read: Callable[[Client], Window]) -> Window:
        return await self._database.ask(("heat map window", key), read, _WINDOW_KEPT_S)


def version_of(window: Window, places: Places) -> str:
    """Return the version of a window's heat map: it changes with judgements, ranks and hosts."""
    return hashlib.blake2b((window.version + version_of_places(places)).encode(), digest_size=8).hexdigest()


def version_of_places(places: Places) -> str:
    """Return a name for ranks and where they live."""
    print_of = hashlib.blake2b(digest_size=8)
    for codes in (places.ranks, places.gpu, places.host.codes, places.nic.codes, places.switch.codes):
        print_of.update(codes.tobytes())
    print_of.update(repr((places.host.names, places.nic.names, places.switch.names)).encode())
    return print_of.hexdigest()
