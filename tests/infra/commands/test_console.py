"""`irregulars console` as a process: it says where it is, and ends when told."""

from __future__ import annotations

import os
import signal
import ssl
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.infra.conftest import Run, refused
from tests.integration.pipelines import COMMAND
from tests.integration.secured_kafka import Authority, openssl
from tests.integration.worker_runs import ROOT

NOWHERE = ("--no-kafka", "--clickhouse-url", "http://127.0.0.1:1")
END_S = 60
NO_PEM = str(ROOT / "README.md")


@contextmanager
def console(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start one on a free port; yield it with the first line that it prints."""
    words = [*COMMAND, "console", *NOWHERE, *arguments]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


def test_it_prints_a_link_that_logs_in_and_ends_cleanly() -> None:
    with console("--listen", "127.0.0.1:0") as (process, line):
        url, _, token = line.removeprefix("irregulars: console at ").strip().partition("login#")
        assert url.startswith("http://127.0.0.1:")
        with httpx.Client(base_url=url, timeout=END_S) as client:
            assert client.get("/questions").status_code == 401
            assert client.post("/login", data={"token": token}).status_code == 303
            assert client.get("/questions").status_code == 200
            process.send_signal(signal.SIGTERM)  # the browser's connection is still open
            said, complaints = process.communicate(timeout=END_S)
        assert process.returncode == 0, complaints
        assert said == ""
        assert "Traceback" not in complaints
        assert complaints.splitlines()[-1] == "irregulars: console ended"
        assert token not in complaints


def test_with_a_certificate_and_a_token_file_it_speaks_https_and_shows_no_token(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("console")
    file = tmp_path / "token"
    file.write_text("a token that nobody guesses\n")
    file.chmod(0o644)
    with console("--listen", "127.0.0.1:0", "--certificate", str(certificate), "--key", str(key),
                 "--token-file", str(file)) as (process, line):  # fmt: skip
        url = line.removeprefix("irregulars: console at ").strip()
        assert url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=authority.certificate)
        with httpx.Client(base_url=url, verify=trusting, timeout=END_S) as client:
            answer = client.post("/login", data={"token": "a token that nobody guesses"})
            assert "Secure" in answer.headers["set-cookie"].split("; ")
            assert client.get("/questions").status_code == 200
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=END_S)
    assert process.returncode == 0, complaints
    assert "chmod 600" in complaints
    assert "nobody guesses" not in line + complaints
    assert stat.S_IMODE(file.stat().st_mode) == 0o644  # it says so, and changes nothing


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(run: Run, tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path / "ca").issue("console")
    locked = tmp_path / "locked.key"
    openssl("pkcs8", "-topk8", "-passout", "pass:secret", "-in", str(key), "-out", str(locked))
    files = ("--certificate", str(certificate), "--key", str(locked))
    assert "passphrase; got [SSL" in refused(run, "console", *NOWHERE, "--listen", "127.0.0.1:0", *files)


def test_it_says_who_may_be_anybody_where_the_proxy_is_on_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("a secret of proxies\n")
    file.chmod(0o600)
    proxy = ("--listen", "127.0.0.1:0", "--trust-proxy-header", "X-User", "--proxy", "127.0.0.1")
    for more, is_told in (((), True), (("--proxy-secret-file", str(file)), False)):
        with console(*proxy, *more) as (process, line):
            process.send_signal(signal.SIGINT)
            _, complaints = process.communicate(timeout=END_S)
        assert (process.returncode, complaints.splitlines()[-1]) == (0, "irregulars: console ended")
        assert ("console_proxy_secret_file" in complaints) is is_told, complaints
        assert "a secret of proxies" not in line + complaints


@pytest.mark.parametrize(("arguments", "told"), [
    (("--listen", "0.0.0.0:0"), "console_certificate_file"),
    (("--listen", "nonsense"), "console_listen must be"),
    (("--listen", "127.0.0.1:99999"), "console_listen must be"),
    (("--trust-proxy-header", "X-User"), "must be set together"),
    (("--token-file", "/nowhere/token"), "console_token_file"),
    (("--certificate", "/nowhere/cert.pem"), "must be set together"),
    (("--listen", "127.0.0.1:0", "--certificate", NO_PEM, "--key", NO_PEM), "must be a certificate"),
])  # fmt: skip
def test_what_would_not_work_or_be_unsafe_is_one_line(run: Run, arguments: tuple[str, ...], told: str) -> None:
    assert told in refused(run, "console", *NOWHERE, *arguments)
