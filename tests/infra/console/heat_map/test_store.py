"""Cells of a window are held against one baseline, whoever else looks at the job, and whatever memory drops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from irregulars.infra.console import heat_reading as reading
from irregulars.infra.console.database import ConsoleDatabase
from irregulars.infra.console.heat_matrix import QUANTITIES
from irregulars.infra.console.heat_reading import Changed, HeatMapStore, Start
from irregulars.sinks.connection import DatabaseSettings
from tests.conftest import ClickHouseAddress
from tests.infra.console.heat_map.test_routes import JOB
from tests.integration.pipelines import own_database, store
from tests.sinks.recorded_jobs import between, rows_of_recording

pytestmark = pytest.mark.integration

START = Start(JOB, 0)
QUANTITY = next(iter(QUANTITIES.values()))


@pytest.fixture
def settings(clickhouse: ClickHouseAddress, monkeypatch: pytest.MonkeyPatch) -> Iterator[DatabaseSettings]:
    """A job of which 36 iterations are stored; what is stored counts as settled at once."""
    monkeypatch.setattr(reading, "_SETTLED_S", -1)
    with own_database(clickhouse, between(rows_of_recording(JOB), 0, 36)) as settings:
        yield settings


class Browser:
    """Asks for a window, and for its cells, as a browser does."""

    def __init__(self, heat_maps: HeatMapStore) -> None:
        self._heat_maps = heat_maps
        self.version, self.edges, self.unchanged = "", (0, 0), 0

    async def look(self, first: int, last: int) -> None:
        window = await self._heat_maps.between(START, first, last)
        places = await self._heat_maps.places(START, window)
        self.version, self.unchanged = self._heat_maps.told(START, QUANTITY, window, places, self.version)
        self.edges = (first, last)

    async def levels(self) -> np.ndarray:
        matrix, _ = await self._heat_maps.matrix(START, QUANTITY, self.edges, self.version)
        return matrix.levels


async def grown(settings: DatabaseSettings, database: ConsoleDatabase) -> tuple[HeatMapStore, Browser, np.ndarray]:
    """One browser saw 36 iterations and is told of 70; meanwhile another one has opened the newer ones."""
    heat_maps = HeatMapStore(database)
    one, other = Browser(heat_maps), Browser(heat_maps)
    await one.look(0, 35)
    before = await one.levels()
    store(settings, between(rows_of_recording(JOB), 36, 70))
    await other.look(30, 69)
    newer = await other.levels()
    assert not np.array_equal(newer[:6], before[30:])  # it has another baseline
    await one.look(0, 69)
    assert one.unchanged == 36
    return heat_maps, one, before


def test_a_window_goes_on_from_the_matrix_that_its_browser_knows(settings: DatabaseSettings) -> None:
    async def run() -> None:
        with closing(ConsoleDatabase(settings)) as database:
            _, browser, before = await grown(settings, database)
            np.testing.assert_array_equal((await browser.levels())[:36], before)

    asyncio.run(run())


def test_where_that_matrix_was_dropped_meanwhile_the_window_is_asked_for_again(settings: DatabaseSettings) -> None:
    async def run() -> None:
        with closing(ConsoleDatabase(settings)) as database:
            heat_maps, browser, _ = await grown(settings, database)
            heat_maps._kept.popitem(last=False)
            with pytest.raises(Changed):
                await browser.levels()
            told = browser.version
            await browser.look(0, 69)
            assert browser.unchanged == 0
            assert browser.version != told
            assert (await browser.levels()).shape == (70, 4)

    asyncio.run(run())
