"""``irregulars console``: the web console."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from irregulars.infra.commands.options import Bootstrap, ClickHouseUrl, Database, TopicPrefix, settings_of

if TYPE_CHECKING:
    import socket

    from irregulars.infra.configuration.settings import Settings
    from irregulars.infra.console.access.policy import AccessPolicy


def console(
    context: typer.Context,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0: any free one (console_listen).")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file with the token; else a random one is printed.")
    ] = None,
    user_header: Annotated[
        str | None,
        typer.Option("--trust-proxy-header", metavar="NAME", help="Header in which a proxy says who somebody is."),
    ] = None,
    proxies: Annotated[
        list[str] | None,
        typer.Option("--proxy", metavar="ADDRESS", help="Address or network of that proxy; may stand several times."),
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
        typer.Option(
            "--feedback/--no-feedback", help="Let people say whether a verdict was right.", show_default=False
        ),
    ] = None,
    reads_kafka: Annotated[
        bool, typer.Option("--kafka/--no-kafka", help="Read alerts and dead letters from Kafka.")
    ] = True,
    bootstrap: Bootstrap = None,
    topic_prefix: TopicPrefix = None,
    clickhouse_url: ClickHouseUrl = None,
    database: Database = None,
) -> None:
    """Serve the web console: jobs now, incidents, devices by time lost, the pipeline's health; until Ctrl-C.

    It reads ClickHouse as clickhouse_reader_user, and the topics of alerts and dead letters. It prints a link that
    logs in. infra/docs/console.md tells how to run it for a team.

    Example: irregulars console --clickhouse-url http://clickhouse:8123 --bootstrap kafka-0:9092

    Example: irregulars console --listen 0.0.0.0:8321 --trust-proxy-header X-Forwarded-User --proxy 10.0.0.7
    --host-name irregulars.example
    """
    settings = settings_of(
        context,
        console_listen=listen,
        console_token_file=token_file,
        console_user_header=user_header,
        console_proxies=tuple(proxies) if proxies else None,
        console_hosts=tuple(names) if names else None,
        console_certificate_file=certificate_file,
        console_key_file=key_file,
        console_plain_http=takes_plain,
        console_feedback=takes_feedback,
        kafka_bootstrap=bootstrap,
        topic_prefix=topic_prefix,
        clickhouse_url=clickhouse_url,
        clickhouse_database=database,
    )
    _serve(settings, reads_kafka)


def _serve(settings: Settings, reads_kafka: bool) -> None:
    from irregulars.infra.console.serving.app import make_app
    from irregulars.infra.console.serving.from_settings import (
        address_of,
        certificate_of,
        console_settings_of,
        policy_of,
    )
    from irregulars.infra.console.serving.server import listen_on, loaded, serve

    _start_log(settings)
    address, certificate = address_of(settings), certificate_of(settings)
    policy = policy_of(settings, address)
    with listen_on(*address) as listening:
        app = make_app(console_settings_of(settings, policy, reads_kafka=reads_kafka))
        config = loaded(app, certificate)
        _tell(listening, policy, settings)
        serve(config, listening)
    print("irregulars: console ended", file=sys.stderr)


def _start_log(settings: Settings) -> None:
    import logging.config

    from irregulars.streams.telemetry.log_format import logging_config

    levels = {"warning": "warn", "critical": "crit"}
    logging.config.dictConfig(logging_config(levels.get(settings.log_level, settings.log_level)))


def _tell(listening: socket.socket, policy: AccessPolicy, settings: Settings) -> None:
    """Say where it is, and how to get in. A random token is told here alone, behind the sign that browsers keep."""
    from irregulars.infra.console.access.policy import is_open_to_others

    host, port = settings.console_listen.rpartition(":")[0], listening.getsockname()[1]
    url = f"{'https' if policy.is_encrypted else 'http'}://{host}:{port}/"
    path = settings.console_token_file
    if policy.token is not None and path is None:
        print(f"irregulars: console at {url}login#{policy.token}", flush=True)
    else:
        print(f"irregulars: console at {url}", flush=True)
    if path is not None and is_open_to_others(path):
        print(f"irregulars: {path} can be read by others on this machine; chmod 600 closes it", file=sys.stderr)
