"""What console.md says of proxies and TLS, run as it stands there: real openssl, real nginx, a real console."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import subprocess
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from irregulars.infra.runs.child_process import free_port
from tests.infra.commands.test_console import NOWHERE
from tests.integration.pipelines import COMMAND
from tests.integration.secured_kafka import openssl
from tests.integration.worker_runs import ROOT

pytestmark = pytest.mark.integration

PAGE = (ROOT / "infra" / "docs" / "console.md").read_text()
NGINX = os.environ.get("NGINX") or shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
NAME = "irregulars.example"
HTML = {"Accept": "text/html"}
READY_S = 60.0

AROUND = """
{user}
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {server}
}}
"""
"""What Debian's nginx.conf has around a server, with files in a folder of the test."""


def part(name: str, replaced: Mapping[str, str] | None = None) -> str:
    """Return a part of the page that is to be run; each thing to replace must stand in it."""
    found = re.search(rf"^ *<!-- run: {name} -->\n(.*?)^ *<!-- end -->", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, name
    text = textwrap.dedent(re.sub(r"^```.*\n", "", found[1], flags=re.MULTILINE))
    for old, new in (replaced or {}).items():
        assert old in text, (name, old)
        text = text.replace(old, new)
    return text


def prepare(folder: Path, name: str) -> str:
    """Run the commands of a part in a folder, up to the one that starts the console; return that one."""
    before, found, command = part(name).partition("irregulars console ")
    subprocess.run(["sh", "-euc", before], cwd=folder, check=True, capture_output=True)
    return found and command


@contextmanager
def process(words: list[str], folder: Path, port: int) -> Iterator[None]:
    """Run a program until the block ends; it begins when the program listens."""
    with (folder / "log").open("ab") as log:
        running = subprocess.Popen(
            words, cwd=folder, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        try:
            deadline_s = time.monotonic() + READY_S
            while not listens(port):
                assert running.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline_s, (folder / "log").read_text()
                time.sleep(0.05)
            yield
        finally:
            running.terminate()
            running.wait(60)


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def console(folder: Path, name: str, address: str) -> Iterator[int]:
    """Run the console as a part of the page says, on a free port."""
    port, command = free_port(), prepare(folder, name)
    assert address in command
    given = command.replace("\\\n", " ").replace(address, f"127.0.0.1:{port}").split()
    with process([*COMMAND, "console", *NOWHERE, *given], folder, port):
        yield port


def browser(folder: Path, port: int) -> httpx.Client:
    """Somebody at another address than the proxy, who knows the console by its name, and trusts its certificate."""
    trusting = ssl.create_default_context(cafile=folder / "console.pem")
    elsewhere = httpx.HTTPTransport(verify=trusting, local_address="127.0.0.2")
    client = httpx.Client(base_url=f"https://127.0.0.1:{port}", transport=elsewhere, timeout=60,
                          headers={**HTML, "Host": f"{NAME}:{port}"})  # fmt: skip
    client.event_hooks["request"].append(lambda request: request.extensions.update(sni_hostname=NAME))
    return client


@contextmanager
def behind_nginx(folder: Path, console_part: str, nginx_part: str) -> Iterator[tuple[httpx.Client, int]]:
    """Run console and nginx as the page says; yield a browser, and the console's own port."""
    if NGINX is None:
        pytest.skip("nginx must be on the PATH or in NGINX; it is not (Debian: apt-get install nginx)")
    prepare(folder, "certificate")
    with ExitStack() as stack:
        own, port = stack.enter_context(console(folder, console_part, "127.0.0.1:8321")), free_port()
        for end in ("pem", "key"):
            (folder / f"irregulars.{end}").write_bytes((folder / f"console.{end}").read_bytes())
        here = {"443 ssl": f"127.0.0.1:{port} ssl", "127.0.0.1:8321": f"127.0.0.1:{own}", "/etc/nginx": str(folder)}
        server = part(nginx_part, here)
        user = "user root;" if os.geteuid() == 0 else ""  # pytest's folders are this user's alone
        (folder / "nginx.conf").write_text(AROUND.format(user=user, folder=folder, server=server))
        stack.enter_context(process([NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf")], folder, port))
        yield stack.enter_context(browser(folder, port)), own


def log_in(client: httpx.Client, folder: Path, **headers: str) -> httpx.Response:
    origin = f"https://{client.headers['Host']}"
    token = (folder / "console.token").read_text().strip()
    return client.post("/login", data={"token": token}, headers={"Origin": origin, **headers})


def test_behind_nginx_the_token_lets_in_and_other_sites_and_names_stay_out(tmp_path: Path) -> None:
    with behind_nginx(tmp_path, "token", "nginx") as (client, _):
        assert client.get("/questions").headers["location"] == "/login?next=%2Fquestions"
        answer = log_in(client, tmp_path)
        assert answer.status_code == 303
        assert {"Secure", "HttpOnly"} <= set(answer.headers["set-cookie"].split("; "))
        assert client.get("/questions").status_code == 200
        other = log_in(client, tmp_path, Origin="https://evil.example")
        assert other.status_code == 403
        assert client.get("/", headers={"Host": "evil.example"}).status_code == 421
        assert client.post("/login", data={"token": "guess"}).status_code == 403
        assert log_in(client, tmp_path).status_code == 303


def test_behind_nginx_that_logs_people_in_its_names_count_and_no_others(tmp_path: Path) -> None:
    password = openssl("passwd", "-apr1", "swordfish").decode().strip()
    (tmp_path / "irregulars.users").write_text(f"ann:{password}\n")
    with behind_nginx(tmp_path, "secret", "nginx with names") as (client, own):
        assert client.get("/questions").status_code == 401
        page = client.get("/questions", auth=("ann", "swordfish"), headers={"X-Forwarded-User": "root"})
        assert page.status_code == 200
        assert ">ann<" in page.text
        assert "root" not in page.text
        forged = {**HTML, "X-Forwarded-User": "root", "X-Proxy-Secret": "a guess of a secret"}
        for left_out in ("X-Proxy-Secret", None):
            told = {name: value for name, value in forged.items() if name != left_out}
            answer = httpx.get(f"http://127.0.0.1:{own}/questions", headers=told, timeout=60)
            assert answer.status_code == 303, told
        secret = (tmp_path / "proxy.secret").read_text().strip()
        assert secret not in page.text + (tmp_path / "log").read_text()
    assert (tmp_path / "proxy.secret").stat().st_mode & 0o077 == 0
    assert (tmp_path / "irregulars-secret.conf").stat().st_mode & 0o077 == 0


def test_with_tls_of_its_own_as_the_page_says(tmp_path: Path) -> None:
    prepare(tmp_path, "certificate")
    prepare(tmp_path, "token")
    with console(tmp_path, "tls", "0.0.0.0:8321") as port, browser(tmp_path, port) as client:
        answer = log_in(client, tmp_path)
        assert answer.status_code == 303
        assert "Secure" in answer.headers["set-cookie"].split("; ")
        page = client.get("/questions")
        assert page.status_code == 200
        assert "max-age=" in page.headers["strict-transport-security"]
