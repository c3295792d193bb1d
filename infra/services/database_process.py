"""The demo database's own process: ``database_process.py DATABASE FIFO``, in the directory with ``config.xml``.

Runs until a line is written to the FIFO. It stands alone, because one process can hold one such server, and it goes
through a private entry point of chdb-core (``infra/docs/dependencies.md``): errors are text on standard error, the
call then just returns, and the parent takes that for a failure.
"""

from __future__ import annotations

import importlib
import sys


def main(database: str, fifo: str) -> int:
    """Serve HTTP and the native protocol; return when told to end."""
    engine = importlib.import_module("chdb._chdb")
    # No more statements than the quota of `default` in infra/services/demo_database.py allows.
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
