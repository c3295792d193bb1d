"""Names are input: whatever a job, a host or a verdict is called, and whatever is asked for, stays text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from urllib.parse import quote

import pyarrow as pa
import pytest

from irregulars.infra.console.rendering import host_path, incident_path, job_path
from irregulars.sinks.protocol import Rows
from tests.conftest import ClickHouseAddress
from tests.infra.console.visits import Visit, text_of, visit
from tests.integration.pipelines import own_database, store
from tests.sinks.recorded_jobs import rows_of_recording

pytestmark = pytest.mark.integration

HOSTILE = "\"><script>alert(1)</script>'&../..%2f{{7*7}}\\\n ü?#/\n"
DOTS = (".", "..")  # a browser takes such a piece of an address for a step up, encoded or not
LONG = "x" * 30_000
ASKED = (
    "<script>alert(1)</script>", "\"'><img src=x onerror=alert(1)>", "../../../etc/passwd", "a\x00b", "\\",
    "\t\r\n", "\u202e\u2028", "{{7*7}}{% raw %}", "'); DROP TABLE jobs; --", "😀", LONG,
)  # fmt: skip


@pytest.fixture(scope="module")
def attacked(clickhouse: ClickHouseAddress) -> Iterator[Visit]:
    """Somebody who looks at a database whose job, hosts and verdict have hostile names."""
    rows = rows_of_recording("gloo-slow-nic")
    with own_database(clickhouse) as own:
        store(own, renamed(rows, lambda old: old + HOSTILE))
        for dots in DOTS:
            store(own, renamed(rows, lambda _, dots=dots: dots))  # type: ignore[misc]
        with visit(own) as found:
            found.log_in("<b>ann</b>")
            yield found


def renamed(rows: Rows, rename: Callable[[str], str]) -> Rows:
    """Return rows in which every text that a job can choose is another one."""
    return {name: _renamed(table, rename) for name, table in rows.items()}


def _renamed(table: pa.Table, rename: Callable[[str], str]) -> pa.Table:
    for name in ("job", "host", "nic", "verdict_id", "evidence", "communicator"):
        if name in table.column_names and table.num_rows:
            kind = table.schema.field(name).type
            old = table.column(name).cast(pa.string()).to_pylist()
            new = [None if one is None else rename(one) for one in old]
            table = table.set_column(table.schema.get_field_index(name), name, pa.array(new).cast(kind))
    return table


class Tags(HTMLParser):
    """What a browser would make of a page: elements with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def require_harmless(page: str) -> None:
    """Require that nothing but our own scripts and pages stands in a page."""
    for tag, attributes in Tags(page).found:
        assert tag != "script" or str(attributes.get("src")).startswith("/static/"), attributes
        assert tag not in ("img", "b", "iframe", "object"), attributes
        assert not any(name.startswith("on") or name == "style" for name in attributes), attributes
        for name in ("href", "src", "action"):
            assert attributes.get(name) is None or str(attributes[name])[:1] in "/#", attributes
    assert "{{" not in page.replace("{{7*7}}", "")


def test_pages_of_hostile_names_are_whole_and_harmless(attacked: Visit) -> None:
    job, host, verdict = ("gloo-slow-nic" + HOSTILE, "node-1" + HOSTILE, "gloo-slow-nic:0:60:0" + HOSTILE)
    paths = ["/", job_path(job), incident_path(verdict), host_path(host), "/devices", "/pipeline",
             f"/devices/history?host={quote(host, safe='')}&nic={quote('eth0' + HOSTILE, safe='')}",
             f"/questions/blamed?job={quote(job, safe='')}", "/search?q=script"]  # fmt: skip
    for path in paths:
        answer = attacked.get(path)
        assert answer.status_code == 200, (path, text_of(answer)[:600])
        assert "alert(1)" in answer.text, path
        require_harmless(answer.text)
    found = attacked.client.get("/search", params={"q": job})
    assert found.headers["location"] == job_path(job)
    api = attacked.get(f"/api/jobs/{quote(job, safe='')}/0/heat-map")
    assert (api.status_code, api.headers["content-type"]) == (200, "application/json")
    assert api.json()["job"] == job
    assert "<b>" not in attacked.get(incident_path(verdict)).text.replace("&lt;b&gt;", "")


def test_names_of_dots_have_their_pages(attacked: Visit) -> None:
    for name in DOTS:
        for path in (job_path(name), incident_path(name), host_path(name), f"/api{job_path(name)}/0/heat-map"):
            answer = attacked.get(path)  # httpx leads addresses to where a browser does
            assert answer.status_code == 200, (path, text_of(answer)[:600])


def test_a_slash_too_many_leads_to_no_other_scheme(attacked: Visit) -> None:
    answer = attacked.get("/devices/")
    assert answer.status_code == 404
    assert "location" not in answer.headers


def test_links_of_hostile_names_lead_to_their_pages(attacked: Visit) -> None:
    links = {str(one["href"]) for tag, one in Tags(attacked.get("/devices").text).found if tag == "a"}
    followed = [one for one in links if one.startswith(("/hosts/", "/devices/history"))]
    assert len(followed) > 1
    for one in followed:
        answer = attacked.get(one)
        assert answer.status_code == 200, one
        assert "No verdict accuses" not in answer.text, one


@pytest.mark.parametrize("text", ASKED, ids=lambda text: ascii(text)[:20])
def test_whatever_is_asked_for_gets_an_answer_that_is_harmless_and_short(attacked: Visit, text: str) -> None:
    told = quote(text, safe="")
    paths = {
        f"/jobs/{told}": (404,), f"/incidents/{told}": (404,), f"/hosts/{told}": (404,),
        f"/search?q={told}": (200, 303),
        f"/questions/blamed?job={told}": (200,), f"/questions/open_now?limit={told}": (400, 200),
        f"/questions/open_now?{told}=1": (400,), f"/devices/history?host={told}": (200,),
        f"/devices/history?host=a&gpu={told}": (400,), f"/{told}": (404, 303), f"/login?next={told}": (200,),
        f"/api/jobs/{told}/0/heat-map": (400, 404), f"/api/jobs/x/0/iteration-times?around={told}": (400,),
    }  # fmt: skip
    for path, wanted in paths.items():
        answer = attacked.get(path)
        assert answer.status_code in wanted, (path[:60], text_of(answer)[:600])
        assert "Traceback" not in answer.text
        assert "DB::Exception" not in answer.text, path[:60]
        if answer.headers.get("content-type", "").startswith("text/html"):
            require_harmless(answer.text)
            assert len(answer.text) < 100_000 + 2 * len(text), path[:60]


def test_bytes_that_are_no_text_are_none(attacked: Visit) -> None:
    for path in ("/jobs/%ED%A0%80", "/jobs/%FF", "/search?q=%ED%A0%80%FF", "/incidents/%80", "/hosts/%C0%AF"):
        answer = attacked.get(path)
        assert answer.status_code in (200, 404), path
        require_harmless(answer.text)
