"""What may be listened on, and with which secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from irregulars.errors import InputError
from irregulars.infra.console.access.policy import LEAST_TOKEN, is_open_to_others, make_policy

EVERYWHERE = ("0.0.0.0", 8321)


def file_with(folder: Path, token: str) -> Path:
    path = folder / "token"
    path.write_text(token)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.7", "irregulars.example"])
def test_others_may_not_reach_it_unencrypted(host: str) -> None:
    with pytest.raises(InputError, match="console_certificate_file") as caught:
        make_policy((host, 8321))
    assert "console_user_header" in str(caught.value)
    assert "console_plain_http" in str(caught.value)


@pytest.mark.parametrize("safe", [
    {"is_encrypted": True}, {"user_header": "X-User", "proxies": ["10.0.0.7"]}, {"takes_plain": True},
])  # fmt: skip
def test_others_may_reach_it_where_somebody_saw_to_it(safe: dict[str, Any]) -> None:
    assert make_policy(EVERYWHERE, **safe).is_encrypted is ("is_encrypted" in safe)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_this_machine_alone_needs_nothing(host: str) -> None:
    first, second = make_policy((host, 8321)), make_policy((host, 8321))
    assert first.token is not None
    assert first.token != second.token
    assert len(first.token) >= 32
    assert first.cookie == "irregulars_console_8321"


def test_what_a_proxy_says_needs_a_proxy(tmp_path: Path) -> None:
    given: dict[str, Any]
    for given in ({"user_header": "X-User"}, {"proxy_secret_file": file_with(tmp_path, "t" * LEAST_TOKEN)}):
        with pytest.raises(InputError, match="must be set together"):
            make_policy(EVERYWHERE, **given)
    for one in ("10.0.0.7/8", "proxy.example", "", "10.0.0.0/33", "0.0.0.0/0", "::/0"):
        with pytest.raises(InputError, match="console_proxies must be"):
            make_policy(EVERYWHERE, user_header="X-User", proxies=[one])


def test_a_proxy_that_names_nobody_leaves_the_token_and_makes_nothing_safe() -> None:
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


def test_behind_a_proxy_there_is_no_token_unless_a_file_holds_one(tmp_path: Path) -> None:
    proxied: dict[str, Any] = {"user_header": "X-User", "proxies": ["10.0.0.7"]}
    alone = make_policy(EVERYWHERE, **proxied)
    assert alone.token is None
    assert alone.secret
    token = "t" * LEAST_TOKEN
    assert make_policy(EVERYWHERE, token_file=file_with(tmp_path, token + "\n"), **proxied).token == token


@pytest.mark.parametrize("token", ["", "\n", "t" * (LEAST_TOKEN - 1)])
def test_a_short_token_is_refused_and_not_shown(tmp_path: Path, token: str) -> None:
    with pytest.raises(InputError) as caught:
        make_policy(("127.0.0.1", 1), token_file=file_with(tmp_path, token))
    assert not token.strip() or token not in str(caught.value)


def test_a_file_that_others_can_read_is_known(tmp_path: Path) -> None:
    path = file_with(tmp_path, "t" * LEAST_TOKEN)
    assert not is_open_to_others(path)
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        assert is_open_to_others(path)
