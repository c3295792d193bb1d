"""The page of a job that runs: what is new comes by small fetches, and what somebody looks at stays where it is."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from irregulars.infra.console import heat_reading as reading
from irregulars.sinks.connection import DatabaseSettings
from irregulars.sinks.protocol import Rows
from tests.conftest import ClickHouseAddress
from tests.infra.console.browser import PATIENCE_MS, needs_browser
from tests.infra.console.filled import moved_to
from tests.infra.console.visits import Visit, visit
from tests.integration.pipelines import own_database, store
from tests.sinks.recorded_jobs import between, rows_of_recording

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser
JOB = "gloo-slow-nic"
BEGUN = 60  # iterations that are stored when the page is opened; the fault has not begun by then
FAULT = 100  # iterations after which its verdicts are stored
VERDICTS = ("verdicts", "suspects")
TIMES, MAP = "[data-chart=iteration_times]", "[data-chart=heat_map]"
HIDE = "(is) => Object.defineProperty(document, 'hidden', {value: is, configurable: true})"
TOP = "(id) => document.getElementById(id).getBoundingClientRect().top"


@dataclass
class Running:
    """A job whose iterations are stored one after the other, and its console."""

    database: DatabaseSettings
    rows: Rows
    console: Visit
    stored: int = 0

    def store(self, past: int) -> None:
        """Store all iterations below `past` that are not stored yet, and verdicts with the iterations they end in."""
        self.store_iterations(past)
        if past > FAULT:
            self.store_verdicts()

    def store_iterations(self, past: int) -> None:
        own = {name: table for name, table in self.rows.items() if name not in VERDICTS}
        store(self.database, between(own, self.stored, past))
        self.stored = past

    def store_verdicts(self) -> None:
        store(self.database, {name: self.rows[name] for name in VERDICTS})


@pytest.fixture
def running(clickhouse: ClickHouseAddress) -> Iterator[Running]:
    with own_database(clickhouse) as own, visit(own) as console:
        job = Running(own, moved_to(rows_of_recording(JOB), time.time() - 1), console)
        job.store(BEGUN)
        yield job


@pytest.fixture(scope="module")
def page(browser: Browser) -> Page:
    page = browser.new_context(viewport={"width": 1000, "height": 700}).new_page()
    page.context.set_default_timeout(PATIENCE_MS)
    return page


def follow(page: Page, running: Running) -> list[str]:
    """Open the job's page; return a list that gets the address of all that it asks for from now on."""
    page.goto(running.console.link)
    page.wait_for_url(f"{running.console.url}/")
    page.goto(f"{running.console.url}/jobs/{JOB}")
    for chart in (TIMES, MAP):
        page.wait_for_selector(f"{chart}[data-state=painted]")
    page.locator("#hm-status", has_text="iterations 0 to").wait_for()
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url))
    return asked


def test_what_is_new_is_appended_and_nothing_moves_under_the_reader(page: Page, running: Running) -> None:
    asked = follow(page, running)
    page.set_viewport_size({"width": 1000, "height": 160})
    page.evaluate("document.getElementById('irregular').scrollIntoView()")
    page.evaluate("scrollBy(0, 60)")  # what the page keeps free above it, for its head
    before = page.evaluate(TOP, "irregular")
    assert abs(before) < 40  # all that will grow above it is out of sight
    running.store(120)
    page.wait_for_selector(f"{TIMES}[data-newest='119']")
    page.locator(".facts", has_text="120, ").wait_for()
    assert page.evaluate(TOP, "irregular") == pytest.approx(before, abs=1.5)
    page.wait_for_selector("[data-part=verdicts] table")  # it came above, and pushed nothing down
    assert page.evaluate(TOP, "irregular") == pytest.approx(before, abs=1.5)
    (small,) = [url for url in asked if "iteration-times" in url]
    assert re.search(rf"after={BEGUN - 21}&", small)
    page.set_viewport_size({"width": 1000, "height": 700})
    assert page.locator("#status").get_attribute("role") == "status"
    assert "irregular iterations" in page.locator("#status").inner_text()
    assert "120 iterations" in page.locator(".it-status").inner_text()
    assert page.locator(".it-status").get_attribute("aria-live") == "off"


def test_a_tab_that_nobody_sees_asks_for_nothing_and_catches_up(page: Page, running: Running) -> None:
    asked = follow(page, running)
    page.evaluate(HIDE, True)
    page.wait_for_timeout(500)  # what was on its way
    asked.clear()
    running.store(80)
    page.wait_for_timeout(5_000)
    assert asked == []
    page.evaluate(HIDE, False)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_selector(f"{TIMES}[data-newest='79']")


def test_who_has_zoomed_keeps_what_is_seen(page: Page, running: Running) -> None:
    follow(page, running)
    page.locator(".it-plot").focus()
    page.keyboard.press("Home")
    page.keyboard.press("+")
    page.keyboard.press("+")
    picture = "document.querySelector('.it-plot canvas').toDataURL()"
    page.wait_for_timeout(300)
    before = page.evaluate(picture)
    running.store(64)  # as usual: the height of the chart stays
    page.wait_for_selector(f"{TIMES}[data-newest='63']")
    page.wait_for_timeout(300)
    assert page.evaluate(picture) == before


def test_the_heat_map_asks_only_for_iterations_behind_its_own(
    page: Page, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_SETTLED_S", -1)  # else rows that were stored a moment ago are read again
    asked = follow(page, running)
    for past in (90, 120):
        running.store(past)
        page.wait_for_selector(f"{MAP}[data-newest='{past - 1}']")
        page.wait_for_selector(f"{MAP}[data-state=painted]")
        page.wait_for_function(
            "performance.getEntriesByType('resource').some((one) => one.name.includes('skipped='))"
        )
    tiles = [url for url in asked if "/heat-map/tile" in url]
    assert len(tiles) <= 6, tiles
    kept = [int(found[1]) for url in tiles if (found := re.search(r"skipped=(\d+)", url))]
    assert kept, tiles
    assert not [url for url in asked if "/heat-map/rows" in url]
    wait_until_drawn_as_at_once(page)


def test_a_verdict_that_comes_after_its_iterations_is_marked_in_both_charts(
    page: Page, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_SETTLED_S", -1)
    running.store_iterations(120)
    asked = follow(page, running)
    page.wait_for_timeout(5_000)  # all has come, and what was asked is shared no longer
    asked.clear()
    running.store_verdicts()
    wait_until_drawn_as_at_once(page)
    assert not [url for url in asked if "/heat-map/rows" in url or "/heat-map/tile" in url]  # no cell has changed


FRAME = """() => {
  const map = document.querySelector('.hm-plot canvas');
  const rows = map.getContext('2d').getImageData(0, Math.round(map.height / 2) - 3, map.width, 1).data;
  const pixels = Array.from({length: map.width}, (_, at) => rows.slice(4 * at, 4 * at + 4).join());
  const first = pixels.findIndex((one) => !one.endsWith(',0'));
  return pixels.slice(first).indexOf(pixels[first + 10]);
}"""  # how many pixels lie left of the cells


def test_a_map_that_was_painted_again_has_the_frame_of_the_first_painting(page: Page, running: Running) -> None:
    """It grew as thick as the last mark of the painting before."""
    follow(page, running)
    running.store(120)  # with a verdict, and so with marks
    page.wait_for_selector(f"{MAP}[data-state=painted]")
    page.wait_for_selector("[data-part=verdicts] table")
    for colour in ("work", "beyond"):
        page.locator(".hm-controls select").first.select_option(colour)
        page.wait_for_timeout(500)
    assert page.evaluate(FRAME) == 1


def wait_until_drawn_as_at_once(page: Page) -> None:
    """Wait until both charts look as in a page that was opened after all had come."""
    other = page.context.new_page()
    try:
        other.set_viewport_size(page.viewport_size)  # type: ignore[arg-type]
        deadline_s = time.monotonic() + 60
        while (wanted := pictures_of_new(other, page.url)) != (seen := pictures(page)):
            assert time.monotonic() < deadline_s, [a == b for a, b in zip(seen, wanted, strict=True)]
            page.bring_to_front()
            page.wait_for_timeout(500)
    finally:
        other.close()


def pictures_of_new(page: Page, url: str) -> list[str]:
    page.bring_to_front()
    page.goto(url)
    for chart in (TIMES, MAP):
        page.wait_for_selector(f"{chart}[data-state=painted]")
    page.locator("#hm-status", has_text="iterations 0 to 119").wait_for()
    page.wait_for_timeout(500)
    return pictures(page)


def pictures(page: Page) -> list[str]:
    script = "['.it-plot', '.hm-plot'].map((plot) => document.querySelector(`${plot} canvas`).toDataURL())"
    return page.evaluate(script)  # type: ignore[no-any-return]
