"""The command line, run by ``irregulars`` and ``python -m irregulars``."""

from __future__ import annotations

from irregulars import stopping


def main() -> None:
    """Run the command line; a signal is handled from here on, the imports of the commands included."""
    stopping.listen()
    from irregulars.infra.cli import main as run

    try:
        run()
    finally:
        stopping.ignore()


if __name__ == "__main__":
    main()
