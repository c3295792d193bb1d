"""Pages over HTTP: whoever asks gets an answer or is turned away, and nobody else has to wait for long."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from urllib.error import HTTPError

import pytest
from prometheus_client import CollectorRegistry

from irregulars import pages
from irregulars.errors import InputError
from irregulars.pages import Page, PageServer, metrics_page, parse_listen, text_page


def break_down() -> Page:
    raise RuntimeError("no such thing")


@pytest.fixture
def server() -> Iterator[PageServer]:
    server = PageServer("127.0.0.1", 0, {"/ok": lambda: text_page("ok"), "/broken": break_down})
    yield server
    server.close()


def ask(url: str, method: str = "GET") -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=60) as answer:
            return answer.status, answer.read()
    except HTTPError as refusal:
        with closing(refusal):
            return refusal.code, refusal.read()


def test_a_page_is_made_when_it_is_asked_for_and_says_nothing_of_the_inside_if_it_can_t_be(
    server: PageServer,
) -> None:
    assert ask(f"{server.url}/ok") == (200, b"ok\n")
    assert ask(f"{server.url}/ok?since=1") == (200, b"ok\n")
    assert ask(f"{server.url}/ok", "HEAD") == (200, b"")
    assert ask(f"{server.url}/") == (200, b"/broken\n/ok\n")
    assert ask(f"{server.url}/other") == (404, b"/broken\n/ok\n")
    assert ask(f"{server.url}/ok", "POST")[0] == 501
    assert ask(f"{server.url}/broken") == (500, b"page could not be made; the log says why\n")
    assert ask(f"{server.url}/ok")[0] == 200


def test_clients_that_say_nothing_are_bounded_and_cut_off(
    server: PageServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pages._Handler, "timeout", 1.0)
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 10))
            for _ in range(pages.MOST_REQUESTS + 4)
        ]
        assert [one.recv(1) for one in silent] == [b""] * len(silent), "each is cut off, at once or after a second"
    assert ask(f"{server.url}/ok")[0] == 200
    assert capfd.readouterr().err == ""


def test_requests_for_which_no_thread_could_be_started_take_no_place_from_later_ones(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as crowded:
        crowded.setattr(threading.Thread, "start", refuse)
        for _ in range(pages.MOST_REQUESTS):
            with socket.create_connection(("127.0.0.1", server.port), 10) as client:
                assert client.recv(1) == b"", "it is cut off"
    assert ask(f"{server.url}/ok")[0] == 200


def test_a_taken_port_is_an_error_or_another_port(server: PageServer) -> None:
    with pytest.raises(InputError, match=rf"listen on; got Address already in use \(127.0.0.1:{server.port}\)"):
        PageServer("127.0.0.1", server.port, {})
    with closing(PageServer("127.0.0.1", server.port, {}, takes_other_port=True)) as other:
        assert other.port not in (0, server.port)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "x" * 300])
def test_an_address_of_somebody_else_is_an_error_of_one_line(host: str) -> None:
    with pytest.raises(InputError, match=r"\Ametrics address must be one that we can listen on; got .*\Z"):
        PageServer(host, 0, {}, takes_other_port=True)


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_pages_are_served_over_ipv6() -> None:
    if not has_ipv6():
        pytest.skip("IPv6 must be there on the loopback interface; it is not")
    with closing(PageServer("::1", 0, {"/ok": lambda: text_page("ok")})) as server:
        assert server.url == f"http://[::1]:{server.port}"
        assert ask(f"{server.url}/ok") == (200, b"ok\n")


@pytest.mark.parametrize("text", ["", "9465", ":9465", "host:", "host:70000", "host:-1", "host:٣", "on"])
def test_what_is_neither_an_address_nor_off_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="metrics_listen must be host:port, port 0 for any free one, or off; got "):
        parse_listen(text)


def test_metrics_tell_of_the_process_too() -> None:
    make: Callable[[], Page] = metrics_page(CollectorRegistry())
    page = make()
    assert page.content_type.startswith("text/plain; version=")
    assert b"process_start_time_seconds" in page.body
