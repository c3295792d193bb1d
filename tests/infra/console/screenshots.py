"""Pictures of the console's pages with recorded jobs: ``python -m tests.infra.console.screenshots [FOLDER]``.

Each page light and dark, and the first and an incident on a phone; in few colours, so that they stay small.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Final

from irregulars.infra.services.demo_database import DemoDatabase
from irregulars.sinks.connection import DatabaseSettings
from tests.infra.console.browser import chromium
from tests.infra.console.filled import fill
from tests.infra.console.running import RunningConsole, running_console

FOLDER: Final = Path(__file__).resolve().parents[3] / "infra" / "docs" / "console"
PAGES: Final = {
    "now": "/",
    "job": "/jobs/gloo-slow-nic",
    "incident": "/incidents/gloo-slow-nic:0:60:0",
    "devices": "/devices",
    "pipeline": "/pipeline",
    "questions": "/questions",
}
PHONE: Final = ("now", "incident")
MOST_BYTES: Final = 150_000
_WIDE: Final = {"width": 1280, "height": 860}
_NARROW: Final = {"width": 360, "height": 760}
_COLOURS: Final = 64


def main(folder: Path = FOLDER) -> None:
    """Make them."""
    folder.mkdir(parents=True, exist_ok=True)
    with DemoDatabase() as database:
        own = DatabaseSettings(database.url, database.user, database.password, database.database)
        fill(own)
        reader = DatabaseSettings(database.url, database.reader, database.reader_password, database.database)
        with running_console(reader) as console:
            take(console, folder)


def take(console: RunningConsole, folder: Path) -> None:
    """Take the pictures of a console that runs."""
    with chromium() as browser:
        for theme in ("light", "dark"):
            for size, names in ((_WIDE, tuple(PAGES)), (_NARROW, PHONE)):
                context = browser.new_context(viewport=size, color_scheme=theme, device_scale_factor=1)
                page = context.new_page()
                page.goto(console.link)
                page.wait_for_url(f"{console.url}/")
                for name in names:
                    page.goto(console.url + PAGES[name])
                    page.wait_for_timeout(1200)
                    suffix = f"{theme}-phone" if size is _NARROW else theme
                    write(page.screenshot(full_page=name in ("incident",) and size is _WIDE),
                          folder / f"{name}-{suffix}.png")  # fmt: skip
                context.close()


def write(png: bytes, path: Path) -> None:
    """Write a picture in few colours, so small that a repository can hold it."""
    from PIL import Image

    reduced = Image.open(io.BytesIO(png)).convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    out = io.BytesIO()
    reduced.save(out, "PNG", optimize=True)
    assert len(out.getvalue()) <= MOST_BYTES, f"{path.name} has {len(out.getvalue())} bytes"
    path.write_bytes(out.getvalue())
    print(f"{path.name} {len(out.getvalue()) / 1000:.0f} kB")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
