"""How long the console's pages take to load, and the heat map of a large job to answer a hand or a key.

    python -m tests.benchmarks.bench_console --ranks 8192 --iterations 1000

starts a database of its own, fills it with recorded jobs and one large job that is made up (`stored_heat_map`), and
drives Chromium, which must be installed. Cold: a console that has just started and an empty browser. Warm: the same
page again, at least 3 s later, when the console asks the database anew for all but slow answers. A page's time runs
from the start of its navigation to its load event; a heat map's until the last tile is painted. An interaction's runs
from the key or wheel until the next frame was painted, and until all its tiles are. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from irregulars.infra.services.demo_database import DemoDatabase
from irregulars.sinks.connection import DatabaseSettings, connect
from tests.benchmarks.stored_heat_map import ATTEMPT, JOB, StoredHeatMap
from tests.infra.console.browser import chromium
from tests.infra.console.filled import fill
from tests.infra.console.running import RunningConsole, running_console

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MOST_PAGE_MS: Final = 1_000
MOST_ACT_MS: Final = 100
HEAT_MAP: Final = f"/jobs/{JOB}?attempt={ATTEMPT}"
PAGES: Final = {
    "jobs now": "/",
    "incident": "/incidents/gloo-slow-nic:0:60:0",
    "devices": "/devices",
    "pipeline": "/pipeline",
    "questions": "/questions",
    "job": "/jobs/gloo-slow-nic",
    "job, large": HEAT_MAP,
}
KEYS: Final = {
    "arrow": ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"),
    "zoom in": ("+",),
    "zoom out": ("-",),
    "show all": ("0",),
}
_WAITS_S: Final = 3.0  # longer than an answer of the console is shared
_PAINTED: Final = "[data-chart=heat_map][data-state=painted]"

# The frame after the next has begun: the next one, with what the key changed, is painted by then.
_ACT: Final = """
async ([kind, value]) => {
  const canvas = document.querySelector(".hm-over");
  const map = document.querySelector("[data-chart=heat_map]");
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const box = canvas.getBoundingClientRect();
  await frame();
  const began = performance.now();
  const all = { bubbles: true, cancelable: true };
  const at = { ...all, clientX: box.left + box.width / 3, clientY: box.top + box.height / 3 };
  if (kind === "key") canvas.dispatchEvent(new KeyboardEvent("keydown", { ...all, key: value }));
  else if (kind === "wheel") canvas.dispatchEvent(new WheelEvent("wheel", { ...at, deltaY: value }));
  else canvas.dispatchEvent(new PointerEvent("pointermove", { ...at, clientX: at.clientX + value, pointerId: 1 }));
  await frame();
  await frame();
  const framed = performance.now() - began;
  while (map.dataset.state !== "painted" && performance.now() - began < 10000) await frame();
  return [framed, performance.now() - began];
}
"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """How long one page took, ms; `painted_ms` is of its heat map, None where it has none."""

    page: str
    is_cold: bool
    load_ms: float
    painted_ms: float | None


@dataclass(frozen=True, slots=True)
class Acted:
    """How long one kind of interaction took, ms: to the next frame, and to all its tiles."""

    name: str
    frames_ms: Sequence[float]
    tiles_ms: Sequence[float]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8_192)
    parser.add_argument("--iterations", type=int, default=1_000)
    parser.add_argument("--times", type=int, default=20, help="interactions of each kind")
    options = parser.parse_args(arguments)
    large, commit = StoredHeatMap(options.ranks, options.iterations), commit_now()
    with DemoDatabase() as database:
        own = DatabaseSettings(database.url, database.user, database.password, database.database)
        fill(own)
        large.fill(connect(own))
        reader = DatabaseSettings(database.url, database.reader, database.reader_password, database.database)
        with chromium() as browser:
            loads = [one for name in PAGES for one in load(browser, reader, name)]
            with running_console(reader) as console:
                acts = list(act(browser, console, options.times))
        print_all(
            large, f"Chromium {browser.version}, Python {platform.python_version()}, commit {commit}", loads, acts
        )


def commit_now() -> str:
    """Return the commit that is checked out; empty: none is known."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


def load(browser: Browser, reader: DatabaseSettings, name: str) -> Iterator[Loaded]:
    """Load one page with a console and a browser that have seen nothing, and thrice again; the median of these."""
    with running_console(reader) as console:
        page = entered(browser, console)
        yield loaded(page, console, name, is_cold=True)
        warm = []
        for _ in range(3):
            page.wait_for_timeout(1000 * _WAITS_S)
            warm.append(loaded(page, console, name, is_cold=False))
        yield sorted(warm, key=lambda one: one.load_ms)[1]
        page.context.close()


def loaded(page: Page, console: RunningConsole, name: str, *, is_cold: bool) -> Loaded:
    """Go to a page, and return how long it took."""
    page.goto(console.url + PAGES[name], wait_until="load")
    load_ms = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    painted = None
    if page.locator("[data-chart=heat_map]").count():
        page.wait_for_selector(_PAINTED, timeout=60_000)
        painted = page.evaluate("performance.getEntriesByName('heat-map-painted')[0].startTime")
    return Loaded(name, is_cold, load_ms, painted)


def act(browser: Browser, console: RunningConsole, times: int) -> Iterator[Acted]:
    """Use the heat map of the large job as a person would."""
    page = entered(browser, console)
    page.goto(console.url + HEAT_MAP)
    page.wait_for_selector(_PAINTED, timeout=60_000)
    page.locator(".hm-over").focus()
    for name, keys in KEYS.items():
        yield acted(page, name, [("key", keys[at % len(keys)]) for at in range(times)])
    yield acted(page, "wheel", [("wheel", -240 if at % 10 < 5 else 240) for at in range(times)])
    yield acted(page, "pointing", [("move", 7 * at) for at in range(times)])
    page.context.close()


def acted(page: Page, name: str, what: Sequence[tuple[str, str | int]]) -> Acted:
    """Do some interactions, one after the other has ended."""
    found = [page.evaluate(_ACT, list(one)) for one in what]
    return Acted(name, [frame for frame, _ in found], [tiles for _, tiles in found])


def entered(browser: Browser, console: RunningConsole) -> Page:
    """Return a page of a browser that has logged in, and keeps nothing yet but the cookie and the first page."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    page = context.new_page()
    page.goto(console.link)
    page.wait_for_url(f"{console.url}/")
    cookies = context.cookies()
    context.close()
    fresh = browser.new_context(viewport={"width": 1280, "height": 860})
    fresh.add_cookies(cookies)  # type: ignore[arg-type]
    return fresh.new_page()


def print_all(large: StoredHeatMap, versions: str, loads: Sequence[Loaded], acts: Sequence[Acted]) -> None:
    """Print it."""
    print(
        f"Large job: {large.ranks:,} ranks x {large.iterations:,} iterations. {os.cpu_count()} cores, "
        f"{platform.machine()}, {versions}.\n"
    )
    print("| page | cold, ms | warm, ms | heat map painted, cold, ms | warm, ms |\n|---|---|---|---|---|")
    for cold, warm in zip(loads[::2], loads[1::2], strict=True):
        painted = " | ".join("" if one.painted_ms is None else f"{one.painted_ms:,.0f}" for one in (cold, warm))
        print(f"| {cold.page} | {cold.load_ms:,.0f} | {warm.load_ms:,.0f} | {painted} |")
    print("\n| interaction | next frame, median, ms | longest, ms | all tiles, median, ms | longest, ms |")
    print("|---|---|---|---|---|")
    for one in acts:
        middles = (statistics.median(one.frames_ms), max(one.frames_ms), statistics.median(one.tiles_ms),
                   max(one.tiles_ms))  # fmt: skip
        print(f"| {one.name} | " + " | ".join(f"{value:,.0f}" for value in middles) + " |")
    slow = [one.page for one in loads if one.load_ms > MOST_PAGE_MS]
    slow += [one.name for one in acts if max(one.frames_ms) > MOST_ACT_MS]
    print(f"\nAbove {MOST_PAGE_MS:,} ms a page or {MOST_ACT_MS} ms an interaction: {', '.join(slow) or 'none'}.",
          file=sys.stderr)  # fmt: skip


if __name__ == "__main__":
    main()
