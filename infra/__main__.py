"""``python -m infra``: the command line, for processes that we start ourselves."""

from infra.cli import main

if __name__ == "__main__":
    main()
