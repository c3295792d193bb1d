"""How quick the console's heat map is: its server's answers, the page until it is painted, and each interaction.

    python -m tests.benchmarks.bench_heat_map --ranks 8192 --iterations 1000

starts a database of its own, fills it with a made-up job (`stored_heat_map`), a console, and a headless Chromium. An
interaction counts from the event's own time stamp (the browser's input, before any script) to the end of the frame
that shows its effect. Cold: console and database have just started; warm: somebody looked before.
The page must be painted within 1 s and an interaction within 100 ms; the last lines say whether they are.

``--data DIR`` keeps the database there, for a second run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import httpx
import numpy as np

from irregulars.infra.services.demo_database import DemoDatabase
from irregulars.sinks.connection import DatabaseSettings, connect
from tests.benchmarks.stored_heat_map import ATTEMPT, JOB, StoredHeatMap
from tests.infra.console.browser import chromium, chromium_path
from tests.infra.console.heat_map.served import served
from tests.infra.console.running import running_console

if TYPE_CHECKING:
    from playwright.sync_api import Page

PAGE_MS: Final = 1_000.0
INTERACTION_MS: Final = 100.0
_ADDRESS: Final = f"/api/jobs/{JOB}/{ATTEMPT}"
_MAP: Final = "[data-chart=heat_map]"
_EVENTS: Final = ("wheel", "pointermove", "keydown", "click")

_WATCH: Final = """() => {
    window.frames_ms = [];
    const channel = new MessageChannel();
    const waiting = [];
    channel.port1.onmessage = () => {  // after the frame: styles, layout and paint of it are done
        const now = performance.now();
        for (const [name, began] of waiting.splice(0)) window.frames_ms.push([name, now - began]);
    };
    for (const name of %s) addEventListener(name, (event) => {
        const began = event.timeStamp;
        requestAnimationFrame(() => { waiting.push([name, began]); channel.port2.postMessage(null); });
    }, { passive: true });
}"""


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer of the server."""

    name: str
    ms: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Frames:
    """Times from an event to its frame, ms."""

    name: str
    frames: int
    p50_ms: float
    p99_ms: float
    most_ms: float


def answers(client: httpx.Client) -> Iterator[Answered]:
    """What a browser asks for when it opens the heat map, one after the other."""

    def ask(name: str, path: str, **values: Any) -> Answered:
        began = time.perf_counter()
        with client.stream("GET", f"{_ADDRESS}/{path}?{urlencode(values)}") as answer:
            raw = b"".join(answer.iter_raw())
            if answer.status_code != 200:
                raise SystemExit(f"{path} must be answered; got {answer.status_code} {raw!r}")
        return Answered(name, (time.perf_counter() - began) * 1e3, len(raw))

    yield ask("window", "heat-map")
    window = client.get(f"{_ADDRESS}/heat-map").json()
    asked = {name: window[name] for name in ("first", "last", "version")}
    whole = _powers(window)
    yield ask("rows", "heat-map/rows", **asked)
    yield ask("outermost tile (first reads all cells)", "heat-map/tile", **asked, **whole)
    yield ask("outermost tile again", "heat-map/tile", **asked, **whole)
    yield ask("tile of single cells", "heat-map/tile", **asked)
    yield ask("rows by strangeness, outermost tile", "heat-map/tile", **asked, **whole, order="strange")
    yield ask("strangest", "heat-map/strangest", **asked)
    yield ask("one cell", "heat-map/cell", **asked, iteration=window["last"], rank=1)
    yield ask("iteration times", "iteration-times")


def _powers(window: dict[str, Any]) -> dict[str, int]:
    columns = len(window["elapsed_ns"])
    ranks = 1 << max(0, (window["ranks"] // 300 - 1).bit_length())
    return {"ranks_per_bin": ranks, "iterations_per_bin": 1 << max(0, (-(-columns // 570) - 1).bit_length())}


def load(page: Page, url: str) -> dict[str, float]:
    """Open the job's page; times from the start of the navigation, ms."""
    page.goto(f"{url}/jobs/{JOB}?attempt={ATTEMPT}", wait_until="commit")
    page.wait_for_selector(f"{_MAP}[data-state=painted]", timeout=60_000)
    page.wait_for_selector("[data-chart=iteration_times][data-state=painted]", timeout=60_000)
    found: dict[str, float] = page.evaluate(
        """() => Object.fromEntries([
            ...performance.getEntriesByType("paint").map((entry) => [entry.name, entry.startTime]),
            ...performance.getEntriesByType("mark").map((entry) => [entry.name, entry.startTime]),
            ["bytes", performance.getEntriesByType("resource").reduce((sum, entry) => sum + entry.transferSize, 0)],
        ])"""
    )
    return found


def interact(page: Page) -> list[Frames]:
    """Zoom, pan, point and walk by keys, as a person does; return how long frames took."""
    page.evaluate(_WATCH % json.dumps(_EVENTS))
    over = page.locator(".hm-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    found = []
    for name, act in (
        ("point", lambda: _points(page, box)),
        ("zoom in and out by wheel", lambda: _wheels(page, middle)),
        ("drag", lambda: _drags(page, middle)),
        ("keys", lambda: _keys(page)),
    ):
        page.evaluate("() => { window.frames_ms = [] }")
        act()
        page.wait_for_timeout(200)
        ms = [one[1] for one in page.evaluate("() => window.frames_ms")]
        found.append(Frames(name, len(ms), *(float(np.percentile(ms, at)) for at in (50, 99, 100))))
    return found


def _points(page: Page, box: Any) -> None:
    for at in range(100):
        page.mouse.move(box["x"] + 90 + at * 9, box["y"] + 40 + at * 37 % (box["height"] - 80))


def _wheels(page: Page, middle: tuple[float, float]) -> None:
    page.mouse.move(*middle)
    for delta in (*[-120] * 40, *[120] * 40):
        page.mouse.wheel(0, delta)


def _drags(page: Page, middle: tuple[float, float]) -> None:
    page.mouse.move(*middle)
    for _ in range(12):
        page.mouse.wheel(0, -120)
    page.mouse.down()
    for at in range(100):
        page.mouse.move(middle[0] + at * 3 % 300, middle[1] + at * 2 % 200)
    page.mouse.up()


def _keys(page: Page) -> None:
    page.locator(".hm-over").focus()
    for key in [*["ArrowRight", "ArrowDown", "+"] * 12, *["-"] * 12, "n", "n", "0"]:
        page.keyboard.press(key)


@contextmanager
def stored(arguments: argparse.Namespace) -> Iterator[DatabaseSettings]:
    """A database with the job."""
    with tempfile.TemporaryDirectory() as scratch:
        files = Path(arguments.data or scratch)
        is_new = not (files / "data").exists()
        with DemoDatabase(files) as database:
            if is_new:
                client = connect(DatabaseSettings(database.url, database.user, database.password, database.database),
                                 is_creating=True)  # fmt: skip
                StoredHeatMap(arguments.ranks, arguments.iterations).fill(client)
                client.close_connections()
            yield DatabaseSettings(database.url, database.reader, database.reader_password, database.database)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8_192)
    parser.add_argument("--iterations", type=int, default=1_000)
    parser.add_argument("--loads", type=int, default=5, help="how often the page is opened once it is warm")
    parser.add_argument("--data", help="directory that keeps the database; default: a temporary one")
    given = parser.parse_args(arguments)
    with stored(given) as settings:
        print(
            f"{given.ranks:,} ranks × {given.iterations:,} iterations; {platform.machine()}, {os.cpu_count()} cores, "
            f"load {os.getloadavg()[0]:.1f}\n"
        )
        print("| answer | ms cold | ms warm | bytes |\n|---|---|---|---|")
        with served(settings) as client:
            for cold, warm in zip(list(answers(client)), list(answers(client)), strict=True):
                print(f"| {cold.name} | {cold.ms:.0f} | {warm.ms:.0f} | {warm.bytes:,} |")
        if chromium_path() is None:
            print("\nno chromium on this machine: neither page nor interactions were measured")
            return
        browse(settings, given.loads)


def browse(settings: DatabaseSettings, loads: int) -> None:
    """Measure the page in a browser."""
    with running_console(settings) as console, chromium() as browser:
        page = browser.new_page(viewport={"width": 1_280, "height": 1_000})
        page.goto(console.link)
        page.wait_for_url(console.url + "/")
        cold = load(page, console.url)
        warm = [load(page, console.url) for _ in range(loads)]
        print("\n| page, ms from navigation | cold | warm, median |\n|---|---|---|")
        for name in ("first-contentful-paint", "iteration-times-painted", "heat-map-painted"):
            print(f"| {name} | {cold[name]:.0f} | {statistics.median(one[name] for one in warm):.0f} |")
        print(f"\ncold, {cold['bytes']:,.0f} bytes were fetched\n")
        frames = interact(page)
    print("| event to painted frame | frames | p50 ms | p99 ms | longest ms |\n|---|---|---|---|---|")
    for one in frames:
        print(f"| {one.name} | {one.frames} | {one.p50_ms:.0f} | {one.p99_ms:.0f} | {one.most_ms:.0f} |")
    painted = statistics.median(one["heat-map-painted"] for one in warm)
    slowest = max(one.p99_ms for one in frames)
    print()
    for what, found, wanted in (
        ("page with its heat map, cold", cold["heat-map-painted"], PAGE_MS),
        ("page with its heat map, warm", painted, PAGE_MS),
        ("interaction, 99th percentile of the slowest kind", slowest, INTERACTION_MS),
    ):
        print(
            f"{what}: {found:.0f} ms, must be at most {wanted:.0f}: {'holds' if found <= wanted else 'FALLS SHORT'}"
        )


if __name__ == "__main__":
    main()
