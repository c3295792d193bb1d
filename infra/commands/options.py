"""Shared by the commands: flags, the settings of this call, and how results are printed.

Imports nothing heavy: all of it runs for ``irregulars --help``.
"""

from __future__ import annotations

import errno
import inspect
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, cast

import typer

from irregulars.errors import InputError
from irregulars.printing import json_text, printable, printable_lines

if TYPE_CHECKING:
    from rich.console import Console

    from irregulars.infra.settings import Settings
    from irregulars.kafka.topics import TopicSettings
    from irregulars.sinks.notices.state_log import StateLog


Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
F = TypeVar("F", bound=Callable[..., None])

# Flags of the commands that ask a service, by the settings that they set
SERVICES: Final[Mapping[str, Mapping[str, Any]]] = {
    "kafka": {
        "kafka_bootstrap": typer.Option("--bootstrap", metavar="HOST:PORT",
                                        help="Kafka brokers to ask first (kafka_bootstrap)."),
        "topic_prefix": typer.Option("--topic-prefix", metavar="TEXT",
                                     help="Stands before each topic's name (topic_prefix)."),
    },
    "database": {
        "clickhouse_url": typer.Option("--clickhouse-url", metavar="URL",
                                       help="ClickHouse over HTTP (clickhouse_url)."),
        "clickhouse_database": typer.Option("--database", metavar="NAME",
                                            help="ClickHouse database (clickhouse_database)."),
    },
}  # fmt: skip


def asks(*services: str) -> Callable[[F], F]:
    """Give a command the flags of the services that it asks; `settings_of` finds their values in its context."""
    flags = {name: option for service in services for name, option in SERVICES[service].items()}

    def with_flags(command: F) -> F:
        @wraps(command)
        def run(*, context: typer.Context, **values: Any) -> None:
            config, given = call_of(context, **{name: values.pop(name) for name in flags})
            context.obj = Invocation(config, given)
            command(context, **values)

        signature, kind = inspect.signature(command, eval_str=True), inspect.Parameter.KEYWORD_ONLY
        more = [inspect.Parameter(name, kind, default=None, annotation=Annotated[str | None, one])
                for name, one in flags.items()]  # fmt: skip
        # Typer reads the flags from it.
        run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *more])  # type: ignore[attr-defined]
        return cast("F", run)

    return with_flags


@dataclass(frozen=True, slots=True)
class Invocation:
    """The settings file of this call, and the values that ``--set`` and the flags of `asks` give."""

    config: Path | None = None
    assignments: Mapping[str, object] = field(default_factory=dict)


def settings_of(
    context: typer.Context, /, *, file: Path | None = None, others: Collection[str] = (), **flags: object
) -> Settings:
    """Read the settings of this call; a flag of the command beats ``--set``, and `None` was not given.

    `file`: Settings file that the command was given, instead of that of ``--config``; `others`: Names in the file
    that are the command's own. Raises `InputError` if a source holds an unknown name or an unusable value.
    """
    from irregulars.infra.settings import load_settings

    config, given = call_of(context, **flags)
    return load_settings(given, file or config, others=others)


def call_of(context: typer.Context, /, **flags: object) -> tuple[Path | None, dict[str, object]]:
    """Return the settings file of this call, and the values given by ``--set`` and by flags."""
    invocation = context.obj if isinstance(context.obj, Invocation) else Invocation()
    given = {name: value for name, value in flags.items() if value is not None}
    return invocation.config, {**invocation.assignments, **given}


def kafka_of(settings: Settings) -> tuple[str, TopicSettings, dict[str, Any]]:
    """Return the brokers to ask first, the topics, and librdkafka's settings of protocol and credentials."""
    from irregulars.infra.wiring import kafka_security

    return settings.kafka_bootstrap, settings.topics(), kafka_security(settings)


def state_log(context: typer.Context, *needed: str) -> AbstractContextManager[StateLog]:
    """Open mutes, opinions and thresholds on Kafka for one command; raises `ServiceError` where one is missing."""
    from irregulars.sinks.notices.state_log import opened

    return opened(*kafka_of(settings_of(context)), *needed)


def start_log(settings: Settings) -> None:
    """Log as a worker does, from the level of the settings on."""
    import logging.config

    from irregulars.streams.health.log_lines import logging_config

    levels = {"warning": "warn", "critical": "crit"}
    logging.config.dictConfig(logging_config(levels.get(settings.log_level, settings.log_level)))


def repeated(context: typer.Context, /, **flags: object) -> str:
    """Return how to call the command line with the settings of this call; `flags` as `settings_of` takes them."""
    config, given = call_of(context, **flags)
    file = "" if config is None else f" --config {shlex.quote(str(config))}"
    return program() + file + "".join(f" --set {shlex.quote(f'{name}={given[name]}')}" for name in given)


def program() -> str:
    """Return how to call the command line that runs: by its name where the shell finds it, else by its path."""
    own = Path(sys.executable).with_name("irregulars")
    found = shutil.which("irregulars")
    if not own.exists() or (found is not None and Path(found).samefile(own)):
        return "irregulars"
    here = Path.cwd()
    return shlex.quote(str(own.relative_to(here) if here in own.parent.parents else own))


def print_json(value: Any) -> None:
    """Print one JSON value on standard output, and nothing else."""
    print(json_text(value, indent=2))


def print_result(json: bool, value: Any, lines: Iterable[str]) -> None:
    """Print a result: for scripts as JSON, else as lines for people, in which no name moves a cursor."""
    if json:
        print_json(value)
        return
    for line in lines:
        print(printable(line))


def write_file(what: str, path: Path, text: str | None) -> None:
    """Write a file that the caller named; without a text only check that this is possible, before work begins.

    Raises `InputError` where it is not.
    """
    try:
        if text is not None:
            path.write_text(text, encoding="utf-8")
        elif not os.access(path if path.exists() else path.parent, os.W_OK) or path.is_dir():
            number = errno.EISDIR if path.is_dir() else errno.EACCES if path.parent.exists() else errno.ENOENT
            # The error that writing would raise, so that one message serves for both.
            raise OSError(number, os.strerror(number))
    except OSError as error:
        raise InputError(f"{what} must be a file that can be written; got {error.strerror} ({path})") from None


def plain(name: object) -> str:
    """Return a name escaped for a text with markup, and on one line."""
    from rich.markup import escape

    return escape(printable(name))


def open_console(*, is_error: bool = False) -> Console:
    """Return a console that colours terminals only, and never cuts lines of a file or pipe.

    ``NO_COLOR`` and ``TERM=dumb`` are respected. Texts are printed without escape sequences; names in a
    text with markup need `plain` as well.
    """
    from rich.console import Console

    class SafeConsole(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*(printable_lines(one) if isinstance(one, str) else one for one in objects), **options)

    stream = sys.stderr if is_error else sys.stdout
    # Without a terminal Rich assumes 80 columns, and would wrap the lines of a file or pipe.
    return SafeConsole(stderr=is_error, width=None if stream.isatty() else 100_000, highlight=False)


class PlainValue:
    """Converter of the values of one parameter, which asks Typer's own, slow to make, only where it must.

    `parameter`: an option or argument of Typer, of a version that has ``get_runtime_param``.
    """

    def __init__(self, parameter: Any) -> None:
        self._descriptor = parameter.type_descriptor
        self._converter = parameter.get_runtime_param  # as it was before `spare_models`

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value as its type, as Typer would; errors are Typer's."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if isinstance(value, str) and self._is_readable_path(value):
            return Path(value)
        return self._converter().coerce(value, param=param, ctx=ctx)

    def __call__(self) -> PlainValue:
        """Stand in the place of ``get_runtime_param``."""
        return self

    def _is_readable_path(self, value: str) -> bool:
        """Return whether a path is wanted for which Typer's own checks would all pass."""
        info = self._descriptor.parameter_info
        is_checked = info.writable or info.resolve_path or not (info.file_okay and info.dir_okay)
        is_special = is_checked or info.parser is not None or info.path_type is not None
        try:
            return self._descriptor.annotation is Path and not is_special and os.access(value, os.R_OK)
        except ValueError:  # half of a surrogate pair, or a zero byte: no file has such a name
            return False


def spare_models(parameters: list[Any]) -> list[Any]:
    """Make a command's parameters accept plain values as they are; older versions of Typer do so by themselves."""
    for one in parameters:
        if hasattr(one, "get_runtime_param") and not isinstance(one.get_runtime_param, PlainValue):
            one.get_runtime_param = PlainValue(one)
    return parameters
