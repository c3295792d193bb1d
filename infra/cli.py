"""The command line ``irregulars``. Commands import their packages when they run, so that ``--help`` is quick."""

from __future__ import annotations

import copy
import errno
import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from irregulars import stopping
from irregulars.errors import IrregularsError, how_to_install
from irregulars.infra.commands.act import act, node_check
from irregulars.infra.commands.alerts import alerts
from irregulars.infra.commands.analyze import analyze, explain
from irregulars.infra.commands.console import console
from irregulars.infra.commands.demo import demo, up
from irregulars.infra.commands.doctor import doctor, kit, show_settings
from irregulars.infra.commands.mutes import feedback, mutes
from irregulars.infra.commands.options import Invocation, spare_models
from irregulars.infra.commands.plugins import backtest, plugins
from irregulars.infra.commands.processes import agent, notify, worker
from irregulars.infra.commands.show import show
from irregulars.infra.commands.sql import sql
from irregulars.infra.commands.thresholds import thresholds
from irregulars.infra.commands.topics import deadletter, topics
from irregulars.infra.commands.traces import import_trace, print_keys, replay, simulate
from irregulars.printing import printable, say

_WHOLE = 1000  # most letters of a command's summary
UNUSABLE = 2
_BY_SIGNAL = 128  # and its number, as shells have it
# Commands that a signal ends with status 0: they run until then, and finish what they do
_UNTIL_STOPPED = {"act", "agent", "console", "notify", "replay", "up", "worker"}

_NOT_READ = 1  # Typer's own status where a pipe is closed before all is written
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

# Import name to extra, for packages that the base install, made for GPU nodes, does without.
_EXTRAS = {
    "faust": "worker", "mode": "worker", "aiokafka": "worker", "uvloop": "worker", "river": "worker",
    "sklearn": "train", "clickhouse_connect": "worker",
    "starlette": "console", "uvicorn": "console", "jinja2": "console", "markupsafe": "console",
    "chdb": "demo", "tansu": "demo", "torch": "torch",
}  # fmt: skip


class _Group(TyperGroup):
    """Lists its commands, each with the whole first sentence of its help: the base class cuts it at a line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        self._write_section(formatter, "Commands", list(self.commands))

    def _write_section(self, formatter: Any, title: str, names: list[str]) -> None:
        with formatter.section(title):
            formatter.write_dl([(name, self.commands[name].get_short_help_str(_WHOLE)) for name in names])

    def get_params(self, ctx: Any) -> Any:
        return spare_models(super().get_params(ctx))


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> Any:
        return spare_models(super().get_params(ctx))


class _Simulate(_Command):
    """Its help ends with the kinds of ``--fault`` and the keys of ``--set``."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        print_keys(formatter)


class _Commands(_Group):
    """Turns our own errors, and those of the call, into one line and a status.

    Every other error is a bug and keeps its traceback.
    """

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in GROUPS.items():
            self._write_section(formatter, title, list(names))

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        try:
            status = super().main(*args, **extra | {"standalone_mode": False})
            sys.stdout.flush()  # here, where it can be reported, and not when the process ends
        except stopping.StopAsked as asked:
            sys.exit(_BY_SIGNAL + asked.number)
        except OSError as error:
            if error.errno not in {errno.EPIPE, *_NO_ROOM}:
                raise
            # Send what is left in the buffer of standard output nowhere: Python would try it again at its end.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
            if error.errno == errno.EPIPE:  # whoever read has seen enough
                sys.exit(_NOT_READ)
            where = f" ({printable(error.filename)})" if error.filename else ""
            say(f"what is printed or written must find room; got {error.strerror}{where}")
            sys.exit(UNUSABLE)
        except Exception as raised:
            told: Any = raised
            if not hasattr(told, "format_message"):  # Typer keeps the class of its errors to itself
                raise
            # Errors of a call know their command: its own help is the one to read.
            context = getattr(told, "ctx", None)
            path = context.command_path if context is not None else "irregulars"
            if type(told).__name__ == "NoArgsIsHelpError":  # called without a command
                print(told.message)
                sys.exit(0)
            line = printable(" ".join(str(told.format_message()).split()).rstrip("."))
            say(f"{line}{'' if line.endswith('?') else '.'} See: {path} --help")
            sys.exit(UNUSABLE)
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        # Click has taken the command's name from the arguments already, and keeps it apart until it invokes the
        # command.
        is_until_stopped = not _UNTIL_STOPPED.isdisjoint([*ctx._protected_args, *ctx.args][:1])
        try:
            with stopping.raises():
                result = super().invoke(ctx)
                sys.stdout.flush()  # here, where a signal ends it: whoever should read may not
                return result
        except IrregularsError as error:
            _fail(" ".join(str(error).split()))
        except ModuleNotFoundError as error:
            # A missing package of an extra is the user's to install; any other missing module is a bug.
            extra = _EXTRAS.get((error.name or "").split(".")[0])
            if extra is None:
                raise
            _fail(f"package {error.name} must be installed; got none. {how_to_install(extra)}")
        except stopping.StopAsked:
            if not is_until_stopped:
                raise
            raise typer.Exit from None


def _fail(text: str) -> NoReturn:
    say(text)
    raise typer.Exit(UNUSABLE) from None


app = typer.Typer(
    name="irregulars",
    cls=_Commands,
    help="Find, in real time, the one device that slows a large training job down.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # else Typer loads all of rich for each help, three quarters of the time that it takes
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        print(f"irregulars {version('irregulars')}")
        raise typer.Exit


@app.callback()
def _start(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Settings file (TOML); default: irregulars.toml")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting; may stand several times.")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    from irregulars.infra.settings import parse_assignment

    context.obj = Invocation(config, dict(parse_assignment(text) for text in assignments or []))


# Commands as the help lists them, by who needs them
GROUPS = {
    "Every day": ("demo", "analyze", "show", "explain", "import", "up", "alerts", "sql", "console", "doctor"),
    "For operators": (
        "worker", "agent", "notify", "act", "node-check", "feedback", "mutes", "thresholds", "topics", "deadletter",
        "settings", "kit",
    ),
    "For developers and detectors": ("simulate", "replay", "backtest", "plugins"),
}  # fmt: skip

for one in (demo, analyze, show, explain, up, worker, agent, replay, alerts, console, notify, feedback, sql, doctor,
            kit, backtest):  # fmt: skip
    app.command(cls=_Command)(one)
app.command("import", cls=_Command)(import_trace)
app.command(cls=_Simulate)(simulate)
app.command("settings", cls=_Command)(show_settings)
app.command("node-check", cls=_Command)(node_check)
app.add_typer(act, name="act", cls=_Group)
app.add_typer(topics, name="topics", cls=_Group)
app.add_typer(deadletter, name="deadletter", cls=_Group)
app.add_typer(mutes, name="mutes", cls=_Group)
app.add_typer(thresholds, name="thresholds", cls=_Group)
app.add_typer(plugins, name="plugins", cls=_Group)


def _with_alone(name: str) -> typer.Typer:
    """Return the command line with only the command of that name, or with all where none has it.

    Typer makes every command that is registered, of which one runs: that takes longer than to import them all.
    """
    alone = copy.copy(app)
    alone.registered_commands = [
        one for one in app.registered_commands if (one.name or getattr(one.callback, "__name__", "")) == name
    ]
    alone.registered_groups = [one for one in app.registered_groups if one.name == name]
    return alone if alone.registered_commands or alone.registered_groups else app


def main() -> None:
    """Run the command line: status 0 or that of the command, 2 when something is unusable, 130 or 143 by a signal."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a name may hold half of a surrogate pair, which UTF-8 can't
            stream.reconfigure(errors="backslashreplace")
    _with_alone(sys.argv[1] if len(sys.argv) > 1 else "")(prog_name="irregulars")
