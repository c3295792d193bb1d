"""Pictures of the console's pages with recorded jobs: ``python -m tests.infra.console.screenshots [FOLDER]``.

Each page light and dark, and the first and an incident on a phone; in few colours, so that they stay small. The last
is the heat map of a job that is made up, with a fixed, a rotating and a transient culprit to compare.
"""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from irregulars.infra.runs.demo_database import DemoDatabase
from irregulars.sinks.connection import DatabaseSettings, connect
from tests.benchmarks.stored_heat_map import ATTEMPT, JOB, StoredHeatMap
from tests.infra.console.browser import chromium
from tests.infra.console.filled import fill, moved_to
from tests.infra.console.visits import Visit, visit
from tests.integration.pipelines import store
from tests.sinks.recorded_jobs import rows_of_recording

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FOLDER: Final = Path(__file__).resolve().parents[3] / "infra" / "docs" / "console"
SLOW_GPU: Final = "tp2pp4dp2-compute"  # a recorded job whose culprit works longer, which is what the heat map shows

PAGES: Final = {
    "now": "/",
    "job": f"/jobs/{SLOW_GPU}",
    "incident": "/incidents/gloo-slow-nic:0:60:0",
    "devices": "/devices",
    "pipeline": "/pipeline",
    "questions": "/questions",
}
TALL: Final = {"job": 1_640, "incident": 2_300}
"""Pages of which more than a screen is shown, and up to where, pixels: of a job's down to its heat map."""

PHONE: Final = ("now", "incident")
THEMES: Final = ("light", "dark")
MOST_BYTES: Final = 150_000
_WIDE: Final = {"width": 1280, "height": 860}
_NARROW: Final = {"width": 360, "height": 760}
_COLOURS: Final = (255, 128, 64)  # as many as fit: with few of them small signs get the colour of larger ones
_CULPRITS: Final = StoredHeatMap(512, 400)


def main(folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with DemoDatabase() as database, chromium() as browser:
        own = DatabaseSettings(database.url, database.user, database.password, database.database)
        fill(own)
        store(own, moved_to(rows_of_recording(f"bench/{SLOW_GPU}"), time.time() - 1800))
        reader = DatabaseSettings(database.url, database.reader, database.reader_password, database.database)
        with visit(reader) as console:
            take(console, browser, folder)
            _CULPRITS.fill(connect(own))
            # Take the heat map with three kinds of culprits.
            for theme in THEMES:
                page = entered(console, browser, theme, _WIDE)
                page.goto(f"{console.url}/jobs/{JOB}?attempt={ATTEMPT}")
                heat_map = page.locator("[data-chart=heat_map]")
                page.wait_for_selector("[data-chart=heat_map][data-state=painted]")
                page.wait_for_timeout(800)
                write(heat_map.screenshot(), folder / f"heat-map-{theme}.png")
                page.context.close()


def take(console: Visit, browser: Browser, folder: Path) -> None:
    for theme in THEMES:
        for size, names in ((_WIDE, tuple(PAGES)), (_NARROW, PHONE)):
            page = entered(console, browser, theme, size)
            for name in names:
                page.goto(console.url + PAGES[name])
                if page.locator("[data-chart=heat_map]").count():
                    page.wait_for_selector("[data-chart=heat_map][data-state=painted]")
                page.wait_for_timeout(1200)
                suffix = f"{theme}-phone" if size is _NARROW else theme
                tall = TALL.get(name, 0) if size is _WIDE else 0
                write(page.screenshot(full_page=bool(tall)), folder / f"{name}-{suffix}.png", tall)
            page.context.close()


def entered(console: Visit, browser: Browser, theme: str, size: dict[str, int]) -> Page:
    """Return a page of a browser that is logged in."""
    context = browser.new_context(viewport=size, color_scheme=theme, device_scale_factor=1)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(console.link)
    page.wait_for_url(f"{console.url}/")
    return page


def write(png: bytes, path: Path, most_tall: int = 0) -> None:
    """Write a picture in few colours, so small that a repository can hold it; 0: as tall as it is."""
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    image = image.crop((0, 0, image.width, min(image.height, most_tall or image.height)))
    for colours in _COLOURS:
        out = io.BytesIO()
        image.quantize(colours, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
        if len(out.getvalue()) <= MOST_BYTES:
            break
    assert len(out.getvalue()) <= MOST_BYTES, f"{path.name} has {len(out.getvalue())} bytes"
    path.write_bytes(out.getvalue())
    print(f"{path.name} {len(out.getvalue()) / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
