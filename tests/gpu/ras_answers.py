"""Keep what NCCL's RAS service answers, every few seconds: ``ras_answers.py DIRECTORY SECONDS``."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

from irregulars.producers.importers.ras_answers import RasAway, RasClient

EVERY_S = 3.0


def main() -> None:
    directory, until_s = Path(sys.argv[1]), time.monotonic() + float(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    while time.monotonic() < until_s:
        with contextlib.suppress(RasAway):
            answer = RasClient().ask()
            (directory / f"{len(list(directory.iterdir()))}.json").write_bytes(answer)
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main()
