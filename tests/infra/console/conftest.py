"""A database with recorded jobs, for all tests of the console's pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from irregulars.sinks.connection import DatabaseSettings
from tests.conftest import ClickHouseAddress
from tests.infra.console.filled import fill
from tests.infra.console.visits import Visit, visit
from tests.integration.pipelines import own_database


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
