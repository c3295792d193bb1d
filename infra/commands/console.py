"""``irregulars console``: the web console."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from irregulars import stopping
from irregulars.infra.commands.options import asks, settings_of, start_log
from irregulars.printing import say

if TYPE_CHECKING:
    import socket

    from irregulars.infra.console.access import AccessPolicy
    from irregulars.infra.settings import Settings


@asks("kafka", "database")
def console(
    context: typer.Context,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Where; port 0: any free one (console_listen)."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="Has the token; else a random one is printed.")
    ] = None,
    user_header: Annotated[
        str | None,
        typer.Option("--trust-proxy-header", metavar="NAME", help="Header in which a proxy says who somebody is."),
    ] = None,
    proxies: Annotated[
        list[str] | None,
        typer.Option("--proxy", metavar="ADDRESS", help="Address or network of that proxy; may stand several times."),
    ] = None,
    proxy_secret_file: Annotated[
        Path | None,
        typer.Option("--proxy-secret-file", metavar="FILE", help="Has what that proxy must send in X-Proxy-Secret."),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--host-name", metavar="NAME", help="Name by which browsers reach it; may stand several times."),
    ] = None,
    certificate_file: Annotated[
        Path | None, typer.Option("--certificate", metavar="FILE", help="Our certificate (PEM), for https.")
    ] = None,
    key_file: Annotated[Path | None, typer.Option("--key", metavar="FILE", help="Its private key (PEM).")] = None,
    takes_plain: Annotated[
        bool | None, typer.Option("--plain-http", help="Let other machines reach it unencrypted.", show_default=False)
    ] = None,
    takes_feedback: Annotated[
        bool | None,
        typer.Option("--feedback/--no-feedback", help="Let people judge and mute verdicts.", show_default=False),
    ] = None,
    reads_kafka: Annotated[
        bool, typer.Option("--kafka/--no-kafka", help="Read alerts and dead letters from Kafka.")
    ] = True,
) -> None:
    """Serve the web console: jobs now, incidents, devices by time lost, the pipeline's health; until Ctrl-C.

    It reads ClickHouse as clickhouse_reader_user, and the topics of alerts and dead letters. Without a token file or
    a proxy it prints a link that logs in. infra/docs/console.md tells how to run it for a team.

    Example: irregulars console --clickhouse-url http://clickhouse:8123 --bootstrap kafka-0:9092

    Example: irregulars console --listen 0.0.0.0:8321 --trust-proxy-header X-Forwarded-User --proxy 10.0.0.7
    --host-name irregulars.example
    """
    settings = settings_of(
        context, console_listen=listen, console_token_file=token_file, console_user_header=user_header,
        console_proxies=proxies or None, console_proxy_secret_file=proxy_secret_file, console_hosts=names or None,
        console_certificate_file=certificate_file, console_key_file=key_file, console_plain_http=takes_plain,
        console_feedback=takes_feedback,
    )  # fmt: skip
    from irregulars.infra.console.server import (
        address_of,
        certificate_of,
        config_of,
        console_settings_of,
        listen_on,
        make_app,
        policy_of,
        serve,
    )

    start_log(settings)
    address, certificate = address_of(settings), certificate_of(settings)
    policy = policy_of(settings, address)
    with stopping.held(), listen_on(*address) as listening:
        app = make_app(console_settings_of(settings, policy, reads_kafka=reads_kafka))
        config = config_of(app, certificate)
        # The socket listens already: a browser that follows the link at once waits in its backlog.
        _print_address(listening, policy, settings)
        serve(config, listening)
    print("irregulars: console ended", file=sys.stderr)


def _print_address(listening: socket.socket, policy: AccessPolicy, settings: Settings) -> None:
    """Print the address and the token: a random one here alone, behind the # that browsers send to no server."""
    from irregulars.infra.console.access import has_loopback, is_open_to_others

    # Settings that work and are less safe than they look
    for secret in (settings.console_token_file, settings.console_proxy_secret_file):
        if secret is not None and is_open_to_others(secret):
            say(f"{secret} can be read by others on this machine; chmod 600 closes it")
    if policy.user_header is not None and policy.proxy_secret is None and has_loopback(policy.proxies):
        say(f"whoever is logged in on this machine can send {policy.user_header} and be anybody, as the proxy stands "
            "on it too; console_proxy_secret_file prevents that")  # fmt: skip
    host, port = settings.console_listen.rpartition(":")[0], listening.getsockname()[1]
    url = f"{'https' if policy.is_encrypted else 'http'}://{host}:{port}/"
    is_told = policy.token is not None and settings.console_token_file is None
    print(f"irregulars: console at {url}{f'login#{policy.token}' if is_told else ''}", flush=True)
