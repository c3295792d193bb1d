"""Who gets in: the whole console on a real connection, before any database is asked; which settings it accepts."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import Headers

from irregulars.errors import InputError
from irregulars.infra.console.access import CONTENT_POLICY, LEAST_TOKEN, is_from_here, is_open_to_others, make_policy
from tests.infra.console.visits import PAGE, Visit, text_of, visit

HERE = "/questions"  # a page that asks no service anything
OTHERS = ("192.0.2.1", "10.0.0.0/8")


@pytest.fixture
def stranger() -> Iterator[Visit]:
    """Somebody who is not logged in."""
    with visit() as found:
        yield found


def file_with(folder: Path, token: str = "a token that nobody guesses\n") -> Path:
    path = folder / "token"
    path.write_text(token)
    path.chmod(0o600)
    return path


# --- tokens and cookies ---------------------------------------------------------------------------------------------


def test_nobody_sees_anything_without_a_login(stranger: Visit) -> None:
    for path in (HERE, "/", "/jobs/a%20b", "/incidents/v", "/search?q=x", "/nothing", "/api/jobs/a/0/heat-map"):
        answer = stranger.get(path)
        assert answer.status_code == 303, path
        assert answer.headers["location"].startswith("/login"), path
        assert stranger.get(path, {}).status_code == 401, path  # a script's question: no page to go to
    assert stranger.get("/jobs/a%20b?attempt=1").headers["location"] == "/login?next=%2Fjobs%2Fa%2520b%3Fattempt%3D1"
    assert stranger.client.post("/feedback", data={"word": "wrong"}).status_code == 401


def test_what_machines_ask_tells_nothing_and_needs_no_login(stranger: Visit) -> None:
    assert stranger.get("/healthz").text == "ok\n"
    stranger.get("/jobs/secret-name")
    told = stranger.get("/metrics").text
    assert "irregulars_console_page_seconds_count" in told
    assert "secret-name" not in told


def test_the_token_lets_in_and_the_cookie_is_for_this_site_alone(stranger: Visit) -> None:
    answer = stranger.log_in("ann")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    flags = answer.headers["set-cookie"].split("; ")[1:]
    assert {"HttpOnly", "SameSite=strict", "Path=/", "Max-Age=43200"} == set(flags)  # no Secure: this is plain http
    assert stranger.token not in answer.headers["set-cookie"]
    assert stranger.get(HERE).status_code == 200
    assert stranger.get("/session", {}).status_code == 204


def test_under_https_the_cookie_never_travels_unencrypted(tmp_path: Path) -> None:
    # TLS ends in this process, as far as the policy knows; that serving with a certificate works is tested elsewhere.
    with visit(is_encrypted=True) as found:
        answer = found.log_in()
        assert "Secure" in answer.headers["set-cookie"].split("; ")
        assert answer.headers["strict-transport-security"] == "max-age=31536000"
    proxied = ({"user_header": "X-User", "proxies": one} for one in (["127.0.0.1"], OTHERS))
    access: dict[str, Any]
    for access in ({}, *proxied):  # TLS ends in front of it, with a token alone too: so the kit serves it
        with visit(token_file=file_with(tmp_path), **access) as found:
            told = {"token": found.token}
            for scheme in ("https", "http"):
                answer = found.client.post("/login", data=told, headers={"X-Forwarded-Proto": scheme})
                assert ("Secure" in answer.headers["set-cookie"].split("; ")) is (scheme == "https"), access


def test_wrong_tokens_are_refused_counted_and_not_shown_and_the_right_one_lets_in(
    stranger: Visit,
) -> None:
    for token in (None, "", "wrong one", "x" * 10_000, "\x00", "\ud800", "<script>alert(1)</script>"):
        fields = {} if token is None else {"token": token.encode(errors="surrogatepass")}
        answer = stranger.client.post("/login", data=fields)
        assert answer.status_code == 403, token
        assert "That is not the token" in text_of(answer)
        assert "set-cookie" not in answer.headers
        assert not token or token not in answer.text
    for _ in range(20):
        assert stranger.client.post("/login", data={"token": "guess"}).status_code == 403
    assert stranger.log_in().status_code == 303
    assert "irregulars_console_wrong_tokens_total 27.0" in stranger.get("/metrics").text


def test_a_cookie_that_we_did_not_sign_is_none(stranger: Visit) -> None:
    name, cookie = stranger.log_in().headers["set-cookie"].partition(";")[0].split("=", 1)
    stranger.client.cookies.clear()
    longer, other_end = cookie.replace("1.", "1.9", 1), "0" if cookie[-1] != "0" else "1"
    spoilt = (longer, cookie[:-1] + other_end, cookie.partition(".")[0], "", "...", "\xff" * 5000)
    for one, wanted in [(cookie, 200), *((one, 303) for one in spoilt)]:
        headers = [(b"Cookie", f"{name}={one}".encode("latin-1")), (b"Accept", b"text/html")]
        assert stranger.client.get(HERE, headers=headers).status_code == wanted, one[:100]


def test_a_new_token_ends_sessions_and_the_same_one_does_not(tmp_path: Path) -> None:
    with visit(token_file=file_with(tmp_path)) as first:
        cookie = first.log_in().headers["set-cookie"].partition(";")[0].partition("=")[2]
    for token, wanted in (("a token that nobody guesses", 200), ("another one, as long as that", 303)):
        with visit(token_file=file_with(tmp_path, token)) as again:
            name = again.log_in().headers["set-cookie"].partition("=")[0]
            again.client.cookies.clear()
            answer = again.client.get(HERE, headers={**PAGE, "Cookie": f"{name}={cookie}"})
            assert answer.status_code == wanted, token


def test_logging_out_forgets_the_cookie_and_needs_the_word_of_our_own_page(stranger: Visit) -> None:
    stranger.log_in()
    assert stranger.client.post("/logout", data={"csrf": "guess"}).status_code == 403
    assert stranger.get(HERE).status_code == 200
    answer = stranger.client.post("/logout", data={"csrf": stranger.csrf(HERE)})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert stranger.get(HERE).status_code == 303


def test_a_login_leads_nowhere_else(stranger: Visit) -> None:
    for wanted in ("//evil.example", "https://evil.example", "/\\evil.example", "javascript:x", "/\r\nX: y"):
        answer = stranger.client.post("/login", data={"token": stranger.token, "next": wanted})
        assert (answer.status_code, answer.headers["location"]) == (303, "/"), wanted
        assert 'name="next" value="/"' in stranger.client.get("/login", params={"next": wanted}).text


# --- other sites, other names ---------------------------------------------------------------------------------------


def test_what_machines_ask_is_answered_under_any_name(stranger: Visit) -> None:
    for host in ("10.244.1.7:8321", "console.irregulars.svc:80", "evil.example"):
        for path in ("/healthz", "/metrics"):
            assert stranger.get(path, {"Host": host}).status_code == 200, (host, path)
            assert stranger.client.post(path, headers={"Host": host}).status_code == 405, (host, path)


def test_another_name_or_a_path_in_the_host_header_gets_no_page(stranger: Visit) -> None:
    stranger.log_in()
    for host in ("evil.example", "evil.example:8321", "", "127.0.0.1.evil.example", "localhost.evil.example"):
        answer = stranger.get(HERE, {**PAGE, "Host": host})
        assert answer.status_code == 421, host
        assert "console_hosts" in answer.text
    for host in ("127.0.0.1/healthz?", "127.0.0.1:80/static/?", "localhost/login#"):
        answer = stranger.raw(f"GET {HERE} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert answer.split()[1] in (b"400", b"401", b"421"), answer[:200]
        assert b"Questions that ship" not in answer


def test_names_that_were_set_and_addresses_are_known() -> None:
    with visit(names=["Irregulars.example"]) as found:
        found.log_in()
        for host in ("irregulars.example", "IRREGULARS.EXAMPLE:443", "127.0.0.1", "[::1]:80", "localhost"):
            answer = found.get("/login", {**PAGE, "Host": host})
            assert answer.status_code == 200, host


def test_another_site_can_send_no_form(stranger: Visit) -> None:
    stranger.log_in()
    csrf = stranger.csrf(HERE)
    origins, own = [{"Origin": "https://evil.example"}, {"Origin": "null"}], str(stranger.client.base_url)
    sites = [{"Sec-Fetch-Site": site, "Origin": own} for site in ("cross-site", "same-site")]
    for headers in (*origins, *sites):
        for path in ("/login", "/logout", "/feedback"):
            answer = stranger.client.post(path, data={"csrf": csrf}, headers=headers)
            assert (answer.status_code, answer.text) == (403, "This request comes from another site.\n"), headers
    assert stranger.get(HERE).status_code == 200


def test_a_form_of_somebody_else_is_refused_and_a_long_one_too(stranger: Visit) -> None:
    stranger.log_in("ann")
    of_ann = stranger.csrf(HERE)
    stranger.client.cookies.clear()
    stranger.log_in("bob")
    assert stranger.client.post("/feedback", data={"csrf": of_ann, "word": "right"}).status_code == 403
    assert stranger.client.post("/feedback", data={"csrf": "x", "note": "x" * 20_000}).status_code == 413
    many = "&".join(f"f{at}=1" for at in range(100))
    assert stranger.client.post("/feedback", content=many.encode()).status_code == 400


def test_a_form_that_never_arrives_whole_is_no_fault_of_the_console(
    stranger: Visit, caplog: pytest.LogCaptureFixture
) -> None:
    url = stranger.client.base_url
    with socket.create_connection((url.host, url.port or 0)) as connection:
        connection.sendall(b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\ntoken=")
        time.sleep(0.2)
    told = 'irregulars_console_page_seconds_count{page="enter",status="408"} 1.0'
    deadline = time.monotonic() + 60
    while told not in stranger.get("/metrics").text:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == []


# --- proxies --------------------------------------------------------------------------------------------------------


def test_a_proxy_is_believed_and_nobody_else_is() -> None:
    with visit(user_header="X-User", proxies=["127.0.0.0/8"]) as found:
        answer = found.get(HERE, {**PAGE, "X-User": "ann"})
        assert (answer.status_code, "Log out" in answer.text) == (200, False)
        assert ">ann<" in answer.text
        josé = found.client.get(HERE, headers=[(b"Accept", b"text/html"), (b"X-User", "José".encode())])
        assert ">José<" in josé.text
        assert found.get(HERE).status_code == 303
        assert found.get(HERE, {**PAGE, "X-User": ""}).status_code == 303
        two = [("Accept", "text/html"), ("X-User", "root"), ("X-User", "ann")]
        assert found.client.get(HERE, headers=two).status_code == 303
        assert "header X-User" in text_of(found.get("/login"))
        assert found.client.post("/login", data={"token": ""}).status_code == 403  # there is no token at all
    with visit(user_header="X-User", proxies=OTHERS) as found:
        for headers in ({"X-User": "ann"}, {"X-User": "ann", "X-Forwarded-For": "10.0.0.7"}):
            assert found.get(HERE, {**PAGE, **headers}).status_code == 303, headers
    with visit() as found:
        assert found.get(HERE, {**PAGE, "X-User": "ann"}).status_code == 303


def test_a_program_beside_the_proxy_can_name_nobody_without_the_proxy_s_secret(tmp_path: Path) -> None:
    path = file_with(tmp_path, "a secret of proxies")
    with visit(user_header="X-User", proxies=["127.0.0.1"], proxy_secret_file=path) as found:
        named = [("Accept", "text/html"), ("X-User", "ann")]
        right, wrong = ("X-Proxy-Secret", "a secret of proxies"), ("X-Proxy-Secret", "a secret of others")
        for told, status in (([right], 200), ([], 303), ([wrong], 303), ([right, wrong], 303), ([right, right], 303)):
            assert found.client.get(HERE, headers=[*named, *told]).status_code == status, told
        page = found.get("/login")
        assert "console_proxy_secret_file" in text_of(page)
        assert "a secret of proxies" not in page.text


# --- what browsers are told -----------------------------------------------------------------------------------------


def test_every_answer_carries_the_headers_that_bind_browsers(stranger: Visit) -> None:
    answers = [stranger.get(path) for path in ("/", "/login", "/healthz", "/static/console.js", "/static/none")]
    answers += [stranger.get("/", {"Host": "evil.example"}), stranger.client.post("/login"), stranger.log_in()]
    answers += [stranger.get(path) for path in ("/", HERE, "/nothing", "/jobs/x", "/search?q=x", "/pipeline")]
    tag = stranger.get("/static/console.js").headers["etag"]
    answers += [stranger.get("/static/console.js", {"If-None-Match": tag}), stranger.client.put(HERE)]
    assert {one.status_code for one in answers} == {200, 303, 304, 403, 404, 405, 421, 503}
    for one in answers:
        headers, told = one.headers, (one.url, one.status_code)
        assert headers["content-security-policy"] == CONTENT_POLICY, told
        assert headers["x-content-type-options"] == "nosniff", told
        assert headers["x-frame-options"] == "DENY", told
        assert headers["referrer-policy"] == "no-referrer", told
        assert headers["cache-control"] in ("no-store", "no-cache"), told
        assert "'unsafe" not in headers["content-security-policy"], told
        assert "<script>" not in one.text, told
        assert " style=" not in one.text, told
        assert " onclick=" not in one.text, told


def test_an_origin_that_is_no_address_is_somebody_else_s() -> None:
    assert not is_from_here(Headers({"origin": "http://[x", "host": "console"}))
    assert is_from_here(Headers({"origin": "http://console", "host": "console"}))


EVERYWHERE = ("0.0.0.0", 8321)


def test_others_may_reach_it_only_where_somebody_saw_to_it() -> None:
    for host in ("0.0.0.0", "::", "", "10.0.0.7", "irregulars.example"):
        with pytest.raises(InputError, match="console_certificate_file") as caught:
            make_policy((host, 8321))
        assert "console_user_header" in str(caught.value)
        assert "console_plain_http" in str(caught.value)
    safe: dict[str, Any]
    for safe in ({"is_encrypted": True}, {"user_header": "X-User", "proxies": ["10.0.0.7"]}, {"takes_plain": True}):
        assert make_policy(EVERYWHERE, **safe).is_encrypted is ("is_encrypted" in safe)
    for host in ("127.0.0.1", "127.8.8.8", "localhost", "::1"):
        first, second = make_policy((host, 8321)), make_policy((host, 8321))
        assert first.token is not None
        assert first.token != second.token
        assert len(first.token) >= 32
        assert first.cookie == "irregulars_console_8321"


def test_what_a_proxy_says_needs_a_proxy_and_one_that_names_nobody_makes_nothing_safe(tmp_path: Path) -> None:
    given: dict[str, Any]
    for given in ({"user_header": "X-User"}, {"proxy_secret_file": file_with(tmp_path, "t" * LEAST_TOKEN)}):
        with pytest.raises(InputError, match="must be set together"):
            make_policy(EVERYWHERE, **given)
    for one in ("10.0.0.7/8", "proxy.example", "", "10.0.0.0/33", "0.0.0.0/0", "::/0"):
        with pytest.raises(InputError, match="console_proxies must be"):
            make_policy(EVERYWHERE, user_header="X-User", proxies=[one])
    assert make_policy(("127.0.0.1", 1), proxies=["127.0.0.1"]).token is not None
    with pytest.raises(InputError, match="console_listen must be"):
        make_policy(EVERYWHERE, proxies=["10.0.0.7"])


def test_a_proxy_s_secret_is_read_and_shown_nowhere(tmp_path: Path) -> None:
    secret = "s" * LEAST_TOKEN
    policy = make_policy(EVERYWHERE, user_header="X-User", proxies=["10.0.0.7"],
                         proxy_secret_file=file_with(tmp_path, secret))  # fmt: skip
    assert policy.proxy_secret == secret
    assert secret not in repr(policy)
    with pytest.raises(InputError, match="console_proxy_secret_file must hold at least"):
        make_policy(("::1", 1), proxies=["10.0.0.7"], proxy_secret_file=file_with(tmp_path, secret[1:]))


def test_behind_a_proxy_there_is_no_token_unless_a_file_holds_one_that_is_long_enough(tmp_path: Path) -> None:
    proxied: dict[str, Any] = {"user_header": "X-User", "proxies": ["10.0.0.7"]}
    alone = make_policy(EVERYWHERE, **proxied)
    assert alone.token is None
    assert alone.secret
    token = "t" * LEAST_TOKEN
    assert make_policy(EVERYWHERE, token_file=file_with(tmp_path, token + "\n"), **proxied).token == token
    for short in ("", "\n", token[1:]):
        with pytest.raises(InputError) as caught:
            make_policy(("127.0.0.1", 1), token_file=file_with(tmp_path, short))
        assert not short.strip() or short not in str(caught.value)


def test_a_file_that_others_can_read_is_known(tmp_path: Path) -> None:
    path = file_with(tmp_path, "t" * LEAST_TOKEN)
    assert not is_open_to_others(path)
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        assert is_open_to_others(path)
