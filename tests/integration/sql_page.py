"""Examples in infra/docs/sql.md: each ``$ irregulars sql …`` with what it prints on 80 columns, of recorded jobs.

``python -m tests.integration.sql_page`` writes them into the page anew; a test compares them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from irregulars.infra.commands.sql import lay_out
from irregulars.infra.runs.demo_database import DemoDatabase
from irregulars.sinks.connection import DatabaseSettings, connected
from irregulars.sinks.investigations import run
from tests.integration.pipelines import store
from tests.integration.worker_runs import ROOT
from tests.sinks.recorded_jobs import rows_of_recording

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

PAGE: Final = ROOT / "infra" / "docs" / "sql.md"
RECORDED: Final = (
    "gloo-slow-nic", "gloo-slow-compute", "bench/pp4dp2-hang-inside", "bench/ddp8-hang-before",
    "bench/ddp16-nic-both",
)  # fmt: skip
"""Recordings that the database of the examples holds."""

_WIDTH: Final = 80
_EXAMPLE: Final = re.compile(r"^    \$ irregulars sql (\w+)([^\n]*)\n(?:    [^\n]*\n)+", re.MULTILINE)


def renewed(client: Client) -> str:
    """Return the page with each example as the database answers it now."""
    return _EXAMPLE.sub(lambda found: _example(client, found[1], found[2]), PAGE.read_text("utf-8"))


def _example(client: Client, name: str, arguments: str) -> str:
    answer = run(client, name, dict(one.split("=", 1) for one in arguments.split()))
    lines = [line for line, _ in lay_out(answer, _WIDTH)] if answer.rows else [f"no rows. {answer.empty}"]
    return "".join(f"    {line}\n" for line in (f"$ irregulars sql {name}{arguments}", *lines))


def main() -> None:
    with DemoDatabase() as database:
        settings = DatabaseSettings(database.url, database.user, database.password, database.database)
        store(settings, *map(rows_of_recording, RECORDED))
        with connected(settings) as client:
            PAGE.write_text(renewed(client), "utf-8")


if __name__ == "__main__":
    main()
