"""How people get in: what was set, and whether it is safe to listen there."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from irregulars.errors import InputError
from irregulars.infra.console.access.addresses import Network, is_loopback, own_names, parse_networks
from irregulars.secret_files import read_secret

LEAST_TOKEN: Final = 16
"""Signs of a token in a file at least: shorter ones can be guessed, however slowly we let people try."""

SECRET_HEADER: Final = "X-Proxy-Secret"
"""Header in which a proxy shows that it is one, where `proxy_secret` is set."""

_TOKEN_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """Who gets in.

    Parameters
    ----------
    token
        Lets people in; None: only proxies do.
    secret
        Signs cookies and forms: the token where there is one.
    proxies
        Those that are believed: from which address a request comes, and who somebody is.
    proxy_secret
        What a proxy must send beside it, in `SECRET_HEADER`; None: its address alone makes a proxy.
    user_header
        The header in which proxies say who somebody is; None: they do not.
    names
        Names by which browsers may reach us, beside addresses.
    port
        Names the cookie: browsers give the cookies of one host to all its ports.
    is_encrypted
        Whether we speak TLS ourselves.
    """

    token: str | None = field(repr=False)
    secret: str = field(repr=False)
    user_header: str | None = None
    proxies: tuple[Network, ...] = ()
    proxy_secret: str | None = field(default=None, repr=False)
    names: frozenset[str] = frozenset()
    port: int = 0
    is_encrypted: bool = False

    @property
    def cookie(self) -> str:
        """Name of the cookie."""
        return f"irregulars_console_{self.port}"


def make_policy(
    listen: tuple[str, int],
    *,
    token_file: Path | None = None,
    user_header: str | None = None,
    proxies: Sequence[str] = (),
    proxy_secret_file: Path | None = None,
    names: Sequence[str] = (),
    is_encrypted: bool = False,
    takes_plain: bool = False,
) -> AccessPolicy:
    """Return the policy for what was set.

    Parameters
    ----------
    listen
        Host and port.
    token_file
        Holds the token; None: a random one, unless a proxy says who somebody is.
    proxy_secret_file
        Holds what a proxy must send; None: nothing.
    takes_plain
        Whether somebody said that others may reach us unencrypted.

    Raises
    ------
    InputError
        If what was set would let in whom it must not, or would send secrets where others read along.
    """
    networks = parse_networks(proxies)
    if not networks and (user_header is not None or proxy_secret_file is not None):
        raise InputError(
            "console_user_header and console_proxy_secret_file must be set together with console_proxies; got no "
            "proxy. Who can send the header from elsewhere could be anybody"
        )
    if not (is_loopback(listen[0]) or is_encrypted or user_header or takes_plain):
        raise InputError(
            f"console_listen must be on this machine alone where nothing is encrypted; got {listen[0]!r}. Set "
            "console_certificate_file and console_key_file, or a proxy (console_user_header, console_proxies), or "
            "say console_plain_http=true if the network in between is yours alone"
        )
    token = _token(token_file) if token_file is not None or user_header is None else None
    proxy_secret = None if proxy_secret_file is None else _secret(proxy_secret_file, "console_proxy_secret_file")
    known = own_names() | {name.lower() for name in names} | {listen[0].lower()}
    secret = token or secrets.token_urlsafe(_TOKEN_BYTES)
    return AccessPolicy(token, secret, user_header, networks, proxy_secret, known, listen[1], is_encrypted)


def _token(path: Path | None) -> str:
    return secrets.token_urlsafe(_TOKEN_BYTES) if path is None else _secret(path, "console_token_file")


def _secret(path: Path, name: str) -> str:
    secret = read_secret(path, name)
    if len(secret) < LEAST_TOKEN:
        raise InputError(f"{name} must hold at least {LEAST_TOKEN} signs; got {len(secret)} ({path})")
    return secret


def is_open_to_others(path: Path) -> bool:
    """Return whether others on this machine may read a file."""
    return bool(path.stat().st_mode & 0o077)
