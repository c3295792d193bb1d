"""The console as a browser has it: no errors, usable without a mouse, live, and honest when its server is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.conftest import ClickHouseAddress
from tests.infra.console.browser import PATIENCE_MS, needs_browser
from tests.infra.console.filled import fill, moved_to, while_it_lasts
from tests.infra.console.visits import Visit, visit
from tests.integration.pipelines import own_database, store
from tests.sinks.recorded_jobs import rows_of_recording

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = needs_browser
PAGES = (
    "/", "/jobs/gloo-slow-nic", "/incidents/gloo-slow-nic:0:60:0", "/devices", "/hosts/node-1", "/pipeline",
    "/questions", "/questions/jobs_now", "/search?q=node", "/transfers/tp2pp2dp2-nic-send",
)  # fmt: skip
PAINTED = "[data-chart=heat_map][data-state=painted]"
CUT_OFF = "net::ERR_ABORTED"  # what the browser still asked for, as the icon, when the test went on to the next page
NOTED = "document.addEventListener('securitypolicyviolation', (e) => console.error(`policy: ${e.violatedDirective}`))"

OpenPage = Callable[..., "Page"]


@pytest.fixture(scope="module")
def console(clickhouse: ClickHouseAddress) -> Iterator[Visit]:
    # Filled anew: of what was stored for an earlier module's tests no job may be heard any more
    with own_database(clickhouse) as own:
        fill(own)
        with visit(own) as running:
            yield running


@pytest.fixture
def open_page(browser: Browser, console: Visit) -> Iterator[OpenPage]:
    """Open a page that is logged in, of the module's console or another one."""
    with ExitStack() as contexts:

        def open_one(path: str = "/", scheme: str = "light", at: Visit = console) -> Page:
            context = browser.new_context(color_scheme=scheme)  # type: ignore[arg-type]
            contexts.callback(context.close)
            context.set_default_timeout(PATIENCE_MS)
            context.add_init_script(NOTED)
            page = context.new_page()
            page.goto(at.link)
            page.wait_for_url(f"{at.url}/")
            if path != "/":
                page.goto(at.url + path)
            return page

        yield open_one


def faults_of(page: Page) -> list[str]:
    """Return a list that gets every error, warning and refusal of the pages that are loaded from now on."""
    found: list[str] = []
    page.on("console", lambda one: found.append(one.text) if one.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on(
        "requestfailed", lambda one: None if one.failure == CUT_OFF else found.append(f"{one.url}: {one.failure}")
    )
    page.on("response", lambda one: found.append(f"{one.url}: {one.status}") if one.status >= 400 else None)
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_load_without_errors_and_nothing_on_them_breaks_the_policy(scheme: str, open_page: OpenPage) -> None:
    page = open_page(scheme=scheme)
    faults = faults_of(page)
    root = page.url.rstrip("/")
    for path in PAGES:
        answer = page.goto(root + path)
        assert answer is not None
        assert answer.status == 200
        if page.locator("[data-chart=heat_map]").count():
            page.wait_for_selector(PAINTED)
        assert page.locator("h1").count() == 1
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth"), path
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background.strip("rgb()").split(","))) < 3 * 128) is (scheme == "dark")
    assert faults == []


# What is hard to read on a page: text out at the side, smaller than 12 px, or too pale for what lies behind. An SVG's
# text has the size to which the drawing is stretched. Controls that are off are meant to be pale.
HARD_TO_READ = """() => {
  const rgba = (text) => (text.match(/[\\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const found = rgba(getComputedStyle(at).backgroundColor);
      if ((found[3] ?? 1) > 0.9) return found;
    }
    return [255, 255, 255];
  };
  const found = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim().slice(0, 40);
    const box = one.getBoundingClientRect(), style = getComputedStyle(one);
    if (!text || !box.width || !one.checkVisibility()) continue;
    if (one.closest("title, script, .unseen, .skip, :disabled")) continue;
    const svg = one.closest("svg"), view = svg?.viewBox.baseVal;
    const scale = view?.width ? svg.getBoundingClientRect().width / view.width : 1;
    const size = parseFloat(style.fontSize) * scale;
    if (size < 11.95) found.add(`${size.toFixed(1)} px: ${text}`);
    if (box.right > innerWidth + 1 && !one.closest(".scroll, pre, table, .top nav")) found.add(`outside: ${text}`);
    const own = rgba(svg ? style.fill : style.color), ground = behind(svg ?? one);
    const [a, b] = [light(own), light(ground)].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) found.add(`contrast ${contrast.toFixed(1)}: ${text}`);
  }
  for (const name of innerWidth === 1440 ? [".answer dl", ".chain li.cause"] : []) {
    if (document.querySelector(name)?.getBoundingClientRect().bottom > innerHeight) found.add(`below: ${name}`);
  }
  const text = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (innerWidth > 720 && text.nextNode()) {
    const range = new Range(), one = text.currentNode;
    for (const word of one.parentElement.closest("td") ? one.data.matchAll(/\\S*-\\S*/g) : []) {
      if (word[0].length > 30) continue; // its column would be as wide
      range.setStart(one, word.index);
      range.setEnd(one, word.index + word[0].length);
      if (range.getClientRects().length > 1) found.add(`torn: ${word[0]}`);
    }
  }
  if (document.documentElement.scrollWidth > innerWidth) found.add("the page scrolls sideways");
  for (const one of document.querySelectorAll(".it-plot, main section > div, main section > p")) {
    if (one.scrollHeight > one.clientHeight + 2) found.add(`spills over: ${one.textContent.slice(0, 40)}`);
  }
  return [...found, ...[...(window.smallInk ?? [])].map((text) => `small in a drawing: ${text}`)];
}"""
# What scripts draw is no text of the page: its size is noted while it is drawn.
SMALL_INK = r"""window.smallInk = new Set();
const write = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
  if (parseFloat(this.font.match(/([\d.]+)px/)[1]) < 12 * devicePixelRatio) window.smallInk.add(text);
  return write.call(this, text, ...at);
}"""
FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
BESIDE = """[...document.querySelectorAll('.scroll:has(.stacked), .hm-scroll')]
  .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => `scrolls: ${one.textContent.slice(0, 40)}`)"""
OTHER_KINDS = {
    "bench/tp2pp2dp2-spine": "tp2pp2dp2-spine:0:24:0", "bench/tp2pp2dp2-stage": "tp2pp2dp2-stage:0:46:0",
    "bench/ddp8-imbalance": "ddp8-imbalance:0:25:0", "gloo-slow-link": "gloo-slow-link:0:60:0",
    "causes/checkpoint-write": "checkpoint-write-11-2:0:42:0",
    "numerics/batch-of-all-fp32": "numerics-2-trial-014:0:109:loss_spike.0",
}  # fmt: skip
MORE_PAGES = (
    "/incidents/pp4dp2-hang-inside:0:40:0", *(f"/incidents/{one}" for one in OTHER_KINDS.values()),
    "/transfers/ddp16-nic-both", "/jobs/tp2pp2dp2-stage",
    "/jobs/numerics-2-trial-014", "/devices/history?host=node-1&nic=eth0", "/jobs/none",
    "/docs/runbook", "/docs/verdict-json", "/docs",
)  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_can_be_read_on_any_screen(scheme: str, clickhouse: ClickHouseAddress, open_page: OpenPage) -> None:
    with own_database(clickhouse) as own, visit(own) as console:
        fill(own)
        store(own, *map(rows_of_recording, OTHER_KINDS))
        page = open_page(scheme=scheme, at=console)
        page.add_init_script(SMALL_INK)
        hard: dict[tuple[str, int], list[str]] = {}
        for path in (*PAGES, *MORE_PAGES):
            page.goto(console.url + path)
            if page.locator("[data-chart=heat_map]").count():
                page.wait_for_selector(PAINTED)
            for width in (1440, 1024, 390):
                page.set_viewport_size({"width": width, "height": 900})
                page.evaluate(FRAMES)  # charts follow the width
                found = page.evaluate(HARD_TO_READ)
                # Nothing lies out of sight beside a table, but that of a question's answer where it is no card
                found += page.evaluate(BESIDE) if width == 390 or not path.startswith("/questions") else []
                hard |= {(path, width): found} if found else {}
        assert hard == {}


def test_a_script_that_got_into_a_page_is_refused_and_told(open_page: OpenPage) -> None:
    page = open_page()
    faults = faults_of(page)
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'window.got = 1'}))")
    page.wait_for_timeout(100)
    assert page.evaluate("window.got") is None
    assert any("policy: script-src" in one for one in faults)


def test_the_first_key_offers_to_skip_to_the_content(open_page: OpenPage) -> None:
    page = open_page("/devices")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_the_first_screen_of_an_incident_answers_what_somebody_woken_asks(open_page: OpenPage) -> None:
    page = open_page("/incidents/gloo-slow-nic:0:60:0")
    page.set_viewport_size({"width": 1440, "height": 900})
    for text in ("NIC eth0 on node-1", "Since", "GPU-hours an hour", "Do", "Who waited for whom", "Iteration times"):
        box = page.get_by_text(text).first.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < 900, text
    chain = page.locator(".chain li.cause").bounding_box()
    assert chain is not None
    assert chain["y"] + chain["height"] < 900


def test_the_tabs_title_counts_what_is_open(open_page: OpenPage) -> None:
    page = open_page()
    assert page.title().startswith("2 open incidents, 1 page, 2 jobs heard")
    page = open_page("/incidents/gloo-slow-nic:0:60:0")
    assert page.title() == "Open: slow NIC in gloo-slow-nic: NIC eth0 on node-1 (rank 1) · Irregulars"


def test_an_iteration_that_never_ended_has_no_time_and_its_job_stands_still(open_page: OpenPage) -> None:
    page = open_page("/jobs/pp4dp2-hang-inside")
    page.wait_for_selector("[data-chart=iteration_times][data-state=painted]")
    assert page.locator(".u-legend").inner_text().startswith("iteration40took–")
    assert "stands still" in page.locator(".facts").inner_text()


def test_the_link_that_was_printed_logs_in_also_in_a_tab_that_shows_the_login(
    browser: Browser, console: Visit
) -> None:
    page = browser.new_page()
    page.goto(f"{console.url}/login")
    page.goto(console.link)  # the hash alone changes: nothing is loaded anew
    page.wait_for_url(f"{console.url}/")
    page.context.clear_cookies()
    page.goto(f"{console.url}/docs/runbook#slow_nic")  # a link to a part of a page is no token
    page.get_by_label("Token").fill(console.token)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{console.url}/docs/runbook#slow_nic")
    page.close()


def test_all_that_can_be_used_is_reached_by_tab_and_shows_that_it_has_the_focus(open_page: OpenPage) -> None:
    page = open_page("/questions/irregular_iterations")
    wanted = page.locator("a[href], button:visible, input:visible").count()
    seen: set[int] = set()
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        number, outline = page.evaluate(
            "[[...document.querySelectorAll('a[href], button, input')].indexOf(document.activeElement),"
            " getComputedStyle(document.activeElement).outlineStyle]"
        )
        if number >= 0:
            seen.add(number)
            assert outline != "none", number
    visible = page.evaluate(
        "[...document.querySelectorAll('a[href], button, input')].flatMap((one, at) =>"
        " one.checkVisibility() && one.type !== 'hidden' ? [at] : [])"
    )
    assert seen >= set(visible)


def test_one_logs_in_and_searches_by_keys_alone(browser: Browser, console: Visit) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{console.url}/devices")
    page.wait_for_url("**/login?next=%2Fdevices")
    page.keyboard.type(console.token)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{console.url}/devices")
    page.keyboard.press("/")
    page.keyboard.type("gloo-slow-nic")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{console.url}/jobs/gloo-slow-nic")
    page.keyboard.press("g")
    page.keyboard.press("n")
    page.wait_for_url(f"{console.url}/")
    context.close()


def test_an_incident_appears_while_somebody_looks_and_the_page_is_old_when_its_server_is_away(
    clickhouse: ClickHouseAddress, open_page: OpenPage
) -> None:
    with own_database(clickhouse) as own, visit(own) as short_lived:
        page = open_page(at=short_lived)
        store(own, moved_to(while_it_lasts(rows_of_recording("gloo-slow-link")), time.time() - 1))
        page.locator(".incident", has_text="gloo-slow-link").wait_for()
        assert "1 open incident" in page.locator("#status").inner_text()
        assert page.locator("#trouble").is_hidden()
    page.locator("#trouble", has_text="can't be reached").wait_for()
    assert page.locator("#trouble").get_attribute("role") == "alert"
    assert page.locator("#live.stale").count() == 1


def test_the_heat_map_moves_zooms_and_tells_by_keys(open_page: OpenPage) -> None:
    page = open_page("/jobs/gloo-slow-nic")
    page.wait_for_selector(PAINTED)
    status, whole = page.locator("#hm-status"), page.locator(".hm-over.is-whole")
    page.locator("#hm-status", has_text="Furthest").wait_for()
    page.locator(".hm-over").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.locator("#hm-status", has_text="iteration 1:").wait_for()
    page.keyboard.press("ArrowDown")
    page.locator("#hm-status", has_text="rank 1 ").wait_for()
    assert "node-1" in status.inner_text()
    assert whole.count() == 1
    page.keyboard.press("+")
    page.locator(".hm-over:not(.is-whole)").wait_for()
    page.keyboard.press("0")
    whole.wait_for()
    page.keyboard.press("Enter")
    details = page.locator(".hm-details")
    details.wait_for()
    assert "Rank 1 in iteration 1" in details.inner_text()
