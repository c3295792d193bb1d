"""The command line: what ``irregulars`` and ``python -m irregulars`` run."""

from __future__ import annotations

import sys

from irregulars.errors import INTERRUPTED


def main() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends it without a traceback, as later."""
    try:
        from irregulars.infra.cli import main as run
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
