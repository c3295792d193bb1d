"""``python -m irregulars``: the command line, for processes that we start ourselves."""

from irregulars.infra.cli import main

if __name__ == "__main__":
    main()
