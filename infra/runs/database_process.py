"""The demo database's own process: ``database_process.py DATABASE FIFO HOW``, in the directory with ``config.xml``.

Runs until a line is written to the FIFO. A process of its own, because it can hold one such server, and because it
opens no files but its own if HOW is ``confined``: the engine counts as clickhouse-local, in which every user may open
any file by ``file('…')`` or the setting ``output_format_schema``. It goes through a private entry point of chdb-core
(``infra/docs/dependencies.md``): errors are text on standard error, the call then just returns, and the parent takes
that for a failure.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from irregulars.infra.runs.confinement import confine


def main(database: str, fifo: str, how: str) -> int:
    """Serve HTTP and the native protocol; return when told to end."""
    engine = importlib.import_module("chdb._chdb")  # reads its libraries, and starts no thread yet
    if how == "confined":
        read = ("config.xml", "users.xml", fifo, "/proc/self/statm")
        confine([Path("data")], [Path(name) for name in read])
    # No more statements than the quota of `default` in infra/runs/demo_database.py allows.
    statements = (
        f"CREATE DATABASE IF NOT EXISTS {database}",
        "SYSTEM START LISTEN HTTP",
        "SYSTEM START LISTEN TCP",
        f"SELECT * FROM file('{fifo}', 'LineAsString') SETTINGS max_execution_time = 0 FORMAT Null",
    )
    # No other format than TSV serves here.
    engine.query("; ".join(statements), "TSV", path="data")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
