"""Matrices, kept while they are asked for: bounded in memory, read once for all who ask at the same time."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np

from irregulars.dtypes import Ints
from irregulars.errors import InputError
from irregulars.infra.console.heat_levels import Places
from irregulars.infra.console.heat_matrix import MOST_CELLS, HeatMatrix, Quantity
from irregulars.infra.console.heat_reading import (
    FAR,
    Start,
    Window,
    extend_matrix,
    read_around,
    read_marks,
    read_matrix,
    read_places,
    read_span,
    read_window,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from clickhouse_connect.driver.client import Client

    from irregulars.infra.console.database import ConsoleDatabase


T = TypeVar("T")

# Memory of the kept matrices together, bytes, at most. One of 8,192 ranks × 1,000 iterations: 16 MiB.
KEPT_BYTES: Final = 256 << 20

MOST_ITERATIONS: Final = 4_096  # iterations of a window at most; of large jobs fewer, see `matrix.MOST_CELLS`
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
    """What of a window stands in a matrix that is kept: for each iteration its column there, or -1."""

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

    `database`: Answers questions; `kept_bytes`: Bound of the matrices that are kept.
    """

    def __init__(self, database: ConsoleDatabase, kept_bytes: int = KEPT_BYTES) -> None:
        self._database = database
        self._kept_bytes = kept_bytes
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
        window = await self._window(
            (start, first, wanted, "from"), lambda c: read_window(c, start, first, FAR, wanted)
        )
        if not len(window.iterations) or len(window.iterations) == wanted:
            return None
        places = await self.places(start, window)
        return None if len(window.iterations) * len(places.ranks) > MOST_CELLS else (window, places)

    def told(self, start: Start, quantity: Quantity, window: Window, places: Places, known: str) -> tuple[str, int]:
        """Return the version that a browser is told of a window, and how many of its first iterations it may keep.

        The version names the baseline, so that all its cells are held against the same one whatever others ask, and
        whatever is dropped from memory meanwhile. `known`: the version that the browser has; empty: none.
        """
        rows, own = version_of(window, places), Version.of_text(known, quantity.name)
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
            (start, after, most, "behind"), lambda client: read_window(client, start, after + 1, FAR, most)
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

            matrix = await self._database.ask(("heat map", *key, wanted), read, 0.0)
            kept = Held(start, quantity.name, wanted, window, version_of_places(places), matrix)
        self._kept[key] = kept
        self._kept.move_to_end(key)
        while len(self._kept) > 1 and sum(one.matrix.levels.nbytes for one in self._kept.values()) > self._kept_bytes:
            self._kept.popitem(last=False)
        return kept.matrix, places

    def begin(self, start: Start, quantity: Quantity, edges: tuple[int, int], version: str) -> None:
        """Begin to read a matrix that will be asked for soon; an error is raised to the request that asks for it."""
        reading = asyncio.create_task(self.matrix(start, quantity, edges, version))
        self._begun.add(reading)
        reading.add_done_callback(self._end)

    def _end(self, reading: asyncio.Task[Any]) -> None:
        self._begun.discard(reading)
        if not reading.cancelled():
            reading.exception()  # else asyncio logs that the exception was never retrieved

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
        return await self._database.ask(("heat map span", start), lambda client: read_span(client, start))

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
