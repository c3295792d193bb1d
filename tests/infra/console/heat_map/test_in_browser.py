"""The heat map in a real browser: one slow cell among 8,192 × 1,000 is seen, told, and reached by keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from irregulars.infra.console import heat_reading as reading
from irregulars.sinks.connection import connect
from tests.benchmarks.stored_heat_map import ATTEMPT, JOB, StoredHeatMap
from tests.conftest import ClickHouseAddress
from tests.infra.console import visits
from tests.infra.console.browser import needs_browser
from tests.integration.pipelines import own_database

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.integration, needs_browser]

STORED = StoredHeatMap(8_192, 1_000)
RANK, ITERATION = STORED.transient
MAP, TIMES = "[data-chart=heat_map]", "[data-chart=iteration_times]"
HOSTILE = "<img src=x onerror=\"document.title='stolen'\">'}"

NEAREST = """([column, row, name]) => {
    const canvas = document.querySelector(".hm-plot canvas"), ratio = devicePixelRatio;
    const element = document.querySelector("[data-chart=heat_map]");
    const hex = getComputedStyle(element).getPropertyValue(name).trim().slice(1);
    const wanted = [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
    const x = (76 + (column + 0.5) / 1000 * (canvas.clientWidth - 86)) * ratio;
    const y = (24 + (row + 0.5) / 8192 * (canvas.clientHeight - 46)) * ratio;
    const { data } = canvas.getContext("2d").getImageData(Math.round(x) - 3, Math.round(y) - 3, 7, 7);
    let least = Infinity;
    for (let at = 0; at < data.length; at += 4)
        least = Math.min(least, Math.hypot(...wanted.map((value, channel) => value - data[at + channel])));
    return least;
}"""
"""How far the nearest colour around a cell, at the outermost zoom, is from the page's colour of a name."""

PICTURE = "document.querySelector('.hm-plot canvas').toDataURL()"


@dataclass
class Visit:
    """A page, and what went wrong on it."""

    page: Page
    console: visits.Visit
    wrong: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        self.page.goto(self.console.url + path)
        self.page.wait_for_selector(f"{MAP}[data-state=painted]", timeout=60_000)
        self.page.wait_for_selector(f"{TIMES}[data-state=painted]", timeout=60_000)
        self.page.wait_for_selector(".hm table", timeout=60_000)
        return self.page


@pytest.fixture(scope="module")
def console(clickhouse: ClickHouseAddress) -> Iterator[visits.Visit]:
    # Else the version changes 15 s after the rows were stored, in the middle of some test: tiles of the
    # old one are answered with 410, which the page mends by itself, but Chromium notes it as an error.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_SETTLED_S", -1)
        with own_database(clickhouse) as settings:
            client = connect(settings, is_creating=True)
            STORED.fill(client)
            StoredHeatMap(16, 40).fill(client, job=HOSTILE, host=HOSTILE)
            client.close()
            with visits.visit(settings) as running:
                yield running


@pytest.fixture
def visit(browser: Browser, console: visits.Visit) -> Iterator[Visit]:
    page = browser.new_page(viewport={"width": 1280, "height": 1400}, color_scheme="light", reduced_motion="reduce")
    visit = Visit(page, console)
    page.goto(console.link)
    page.wait_for_url(console.url + "/")
    page.on("pageerror", lambda error: visit.wrong.append(str(error)))
    page.on("console", lambda said: visit.wrong.append(said.text) if said.type == "error" else None)
    yield visit
    page.close()
    assert visit.wrong == []


def job_path(job: str = JOB, attempt: int = ATTEMPT) -> str:
    return f"/jobs/{quote(job, safe='')}?attempt={attempt}"


def colour_distance(page: Page, column: int, row: int, name: str) -> float:
    distance: Any = page.evaluate(NEAREST, [column, row, name])
    return float(distance)


def wait_for_colour(page: Page, column: int, row: int, name: str) -> None:
    page.wait_for_function(f"(cell) => ({NEAREST})(cell) < 12", arg=[column, row, name])


def picture(page: Page) -> str:
    return str(page.evaluate(PICTURE))


def wait_for_another_picture(page: Page, before: str) -> None:
    page.wait_for_function(f"(before) => {PICTURE} !== before", arg=before)


def status(page: Page) -> str:
    return page.locator(".hm-status").inner_text()


def test_one_slow_cell_is_seen_at_the_outermost_zoom_in_light_and_dark(visit: Visit) -> None:
    page = visit.open(job_path())
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        wait_for_colour(page, ITERATION, RANK, "--hm-5")
        assert colour_distance(page, ITERATION + 40, RANK, "--hm-5") > 60
        assert colour_distance(page, ITERATION + 40, RANK, "--hm-0") < 12
        assert colour_distance(page, 100, STORED.fixed, "--hm-0") < 12  # beside the row
        first, begun = STORED.rotating
        assert colour_distance(page, begun + 32, first + 32, "--hm-5") < 200


def test_pointing_tells_whose_cell_it_is_and_moves_the_chart_s_cursor(visit: Visit) -> None:
    page = visit.open(job_path())
    over = page.locator(".hm-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    x = box["x"] + 76 + (ITERATION + 0.5) / 1_000 * (box["width"] - 86)
    y = box["y"] + 24 + (RANK + 0.5) / 8_192 * (box["height"] - 46)
    page.mouse.move(x, y)
    page.locator(".hm-tip", has_text="its usual").wait_for()
    tip = page.locator(".hm-tip").inner_text()
    assert f"rank {RANK} on node-{RANK // 8}, GPU {RANK % 8}, iteration {ITERATION}" in tip
    assert str(ITERATION) in page.locator(".u-legend").inner_text()
    page.mouse.click(x, y)
    page.wait_for_selector(".hm-details a")
    assert page.locator(".hm-details a").get_attribute("href") == f"/incidents/{JOB}%3A1%3Aslow"


def test_all_is_reached_by_keys_and_read_as_text(visit: Visit) -> None:
    page = visit.open(job_path())
    assert f"rank {RANK} in iteration {ITERATION}" in status(page)
    rows = page.locator(".hm table tbody tr th").all_inner_texts()
    assert rows[0].startswith(f"1: rank {RANK} ")
    assert any(f": rank {STORED.fixed} " in row for row in rows)
    page.locator(".hm-over").focus()
    page.keyboard.press("n")
    page.wait_for_selector(".hm-details")
    page.wait_for_selector(f"{MAP}[data-state=painted]")
    page.keyboard.press("ArrowRight")
    assert f"iteration {ITERATION + 1}" in status(page)
    page.keyboard.press("ArrowDown")
    assert f"rank {RANK + 1} " in status(page)
    assert f"node-{(RANK + 1) // 8}" in status(page)
    page.keyboard.press("Enter")
    page.locator(".hm-details", has_text=f"Rank {RANK + 1} in iteration").wait_for()
    page.keyboard.press("0")
    page.locator(".hm-over.is-whole").wait_for()
    page.keyboard.press("+")
    page.locator(".hm-over:not(.is-whole)").wait_for()


def test_what_is_seen_follows_wheel_drag_and_order(visit: Visit) -> None:
    page = visit.open(job_path())
    over = page.locator(".hm-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 500, box["y"] + 300)
    top, before = page.evaluate("scrollY"), picture(page)
    page.mouse.wheel(0, -900)
    wait_for_another_picture(page, before)
    assert page.evaluate("scrollY") == top  # it zoomed instead
    before = picture(page)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 200, steps=4)
    page.mouse.up()
    wait_for_another_picture(page, before)
    page.locator(".hm-over").focus()
    page.keyboard.press("0")
    page.get_by_label("Rows by").select_option("strange")
    wait_for_colour(page, ITERATION, 0, "--hm-5")  # the strangest rank is the first row now


def test_hostile_names_are_shown_as_they_are(visit: Visit) -> None:
    page = visit.open(job_path(HOSTILE))
    assert HOSTILE in page.locator(".hm table").inner_text()
    assert page.locator("img").count() == 0
    assert "stolen" not in page.title() or "<img" in page.title()
