"""A database with recorded jobs, for all tests of the console's pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from irregulars.sinks.connection import DatabaseSettings
from tests.conftest import ClickHouseAddress
from tests.infra.console.browser import chromium
from tests.infra.console.filled import fill
from tests.infra.console.visits import Visit, visit
from tests.integration.pipelines import own_database

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def recorded(clickhouse: ClickHouseAddress) -> Iterator[DatabaseSettings]:
    """The database that `filled.fill` makes; tests only read it."""
    with own_database(clickhouse) as own:
        fill(own)
        yield own


@pytest.fixture(scope="module")
def somebody(recorded: DatabaseSettings) -> Iterator[Visit]:
    """Somebody who is logged in to a console of that database, without Kafka."""
    with visit(recorded) as found:
        assert found.log_in().status_code == 303
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser, where the machine has one: tests of it are marked so that they are skipped elsewhere."""
    with chromium() as running:
        yield running
