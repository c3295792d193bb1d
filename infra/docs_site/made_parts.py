"""Parts of the pages that code makes while the site is built: settings, commands, metrics, log events, thresholds.

In a page of the repository such a part is one line between ``<!-- made: NAME -->`` and ``<!-- end -->``. The line
names the command or file that has the same; `hooks.py` puts the part in its place.

    python -m irregulars.infra.docs_site.made_parts               # lists the parts
    python -m irregulars.infra.docs_site.made_parts "log events"  # prints one
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple, get_type_hints

import typer

from irregulars.detectors.plugins.checks import CHECKS
from irregulars.detectors.plugins.protocol import COLUMNS as FRAMES
from irregulars.infra import cli
from irregulars.infra.agent_settings import TABLES, RankTable
from irregulars.infra.settings import FIELDS, Settings
from irregulars.kafka.dead_letters import DeadLetters
from irregulars.kafka.outbox import Outbox
from irregulars.kafka.topics import TopicSettings
from irregulars.messages import kinds
from irregulars.messages.bounds import BOUNDS
from irregulars.messages.evidence import CLASS_COLUMNS, COLUMNS, PATTERN_COLUMNS
from irregulars.messages.records import BATCH_SCHEMAS
from irregulars.messages.threshold_changes import FIXED, LIVE
from irregulars.producers.simulator.settings import described_keys
from irregulars.sinks.investigations import THEMES, shipped_investigations
from irregulars.sinks.notices.settings import KINDS, ChannelTable
from irregulars.streams.health.counters import Counters, metrics_table
from irregulars.streams.health.observer import Hop, Observer
from irregulars.streams.stages.partition_state import PartitionState
from irregulars.thresholds import Threshold, thresholds_of
from irregulars.validation import describe

ROOT: Final = Path(__file__).resolve().parents[2]
SCHEMAS: Final = ROOT / "irregulars" / "messages" / "schemas"
PART: Final = re.compile(r"<!-- made: ([\w -]+) -->\n(.*?)<!-- end -->", re.DOTALL)
_ORIGINS: Final = ("chosen", "formula", "computed", "convention")
_THRESHOLD_FILES: Final = ("thresholds.py", "likelihoods.py")


def fill(markdown: str) -> str:
    """Put the parts of `MAKERS` in their places; parts that are not among them are kept in the page."""
    return PART.sub(lambda found: MAKERS[found[1]]() if found[1] in MAKERS else found[2], markdown)


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table in Markdown whose first column is code."""
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| `{first}` | {' | '.join(others)} |" for first, *others in rows)]) + "\n"


_HEADS: Final = ("value", "default", "meaning")


def keys_of(kind: type) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, rule, default and meaning of each setting, or of each key of a table in a file."""
    rules = get_type_hints(kind, include_extras=True)
    for one in fields(kind):
        default = ", ".join(one.default) if isinstance(one.default, tuple) else str(one.default)
        default = f"`{default.lower() if isinstance(one.default, bool) else default}`" if default else "none"
        default = "must be given" if one.default is MISSING else "none" if one.default is None else default
        yield one.name, describe(rules[one.name]).removesuffix(" or null"), default, one.metadata["about"]


def agent_keys() -> str:
    """Return the keys of all tables of an agent's file."""
    tables = {**{f"[{name}]": kind for name, kind in TABLES.items()}, "[[ranks]]": RankTable}
    rows = [(name, f"`{key}`", *others) for name, kind in tables.items() for key, *others in keys_of(kind)]
    return table(("table", "key", *_HEADS), rows)


def columns(topic: str) -> str:
    """Return the columns of a topic's Arrow messages."""
    rows = [
        (one.name, str(one.type), "yes" if one.nullable else "no", *_range(topic, one.name))
        for one in BATCH_SCHEMAS[topic]
    ]
    return table(("column", "Arrow type", "null", "from", "to"), rows)


def evidence_columns() -> str:
    """Return the columns of evidence."""
    types: dict[str, str] = {name: str(kind) for name, kind in COLUMNS.items()}
    types |= {"offsets": "list<int64>"} | {f"class_{name}": f"list<{kind}>" for name, kind in CLASS_COLUMNS.items()}
    pattern = ", ".join(f"{name}: {kind}" for name, kind in PATTERN_COLUMNS.items())
    rows = [(name, kind, *_range("evidence", name)) for name, kind in types.items()]
    return table(("column", "Arrow type", "from", "to"), [*rows, ("patterns", f"list<struct<{pattern}>>", "", "")])


def _range(topic: str, column: str) -> tuple[str, str]:
    bound = BOUNDS[topic].get(column)
    return ("", "") if bound is None else (_power(bound.least), _power(bound.most))


def _power(value: float) -> str:
    """Write powers of two as such, where the digits are many."""
    if isinstance(value, float) or abs(value) < 1000:
        return f"{value:g}"
    less = (abs(value) - 1).bit_length() if (abs(value) & (abs(value) - 1)) == 0 else 0
    sign = "-" if value < 0 else ""
    if less:
        return f"{sign}2^{less}"
    return f"2^{(value + 1).bit_length() - 1} - 1" if (value & (value + 1)) == 0 else str(value)


def fields_of(schema: str, *path: str, left_out: str | None = None) -> str:
    """Return the fields of a JSON schema, or of the objects at a path in it, without those of another schema."""
    properties = _properties(schema, path)
    others = _properties(left_out) if left_out else {}
    rows = [(name, _type(one), one["description"]) for name, one in properties.items() if name not in others]
    return table(("field", "type", "meaning"), rows)


def _properties(schema: str, path: tuple[str, ...] = ()) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SCHEMAS / f"{schema}.json").read_text())
    for name in path:
        found = found["properties"][name]
        found = found.get("items", found)
    properties: dict[str, Any] = found["properties"]
    return properties


def _type(one: Mapping[str, Any]) -> str:
    if "const" in one:
        return f"`{json.dumps(one['const'])}`"
    if "enum" in one:
        return " ".join(f"`{'null' if value is None else value}`" for value in one["enum"])
    return " or ".join(one["type"] if isinstance(one["type"], list) else [one["type"]])


def questions() -> str:
    """Return the questions of ``irregulars sql``, by theme; parameters that must be given are bold."""
    lines = []
    for theme in THEMES:
        lines += ["", f"| {theme} | question | parameters |", "|---|---|---|"]
        for one in shipped_investigations().values():
            known = (f"**{p.name}**" if p.is_required else p.name for p in one.parameters if p.name != "limit")
            lines += [f"| `{one.name}` | {one.title} | {', '.join(known)} |"] if one.theme == theme else []
    return "\n".join([*lines[1:], ""])


def commands() -> str:
    """Return every command, with the first sentence of its help."""
    whole: Any = typer.main.get_command(cli.app)
    rows = [(f"irregulars {name}", one.get_short_help_str(1000)) for name, one in sorted(whole.commands.items())]
    return table(("command", "use"), rows)


def frame_columns(level: str) -> str:
    """Return the columns of a detector's frames of a level."""
    return table(("column", "type", "meaning"), [(name, str(c.dtype), c.about) for name, c in FRAMES[level].items()])


@dataclass
class _Stage:
    hop: str
    states: dict[int, PartitionState[None]] = field(default_factory=dict)

    def state_bytes(self) -> int:
        return 0


def worker_metrics() -> str:
    """Return the metrics of a worker; one that holds a partition, as its samples name the labels."""
    rank, job, topics = _Stage("rank"), _Stage("job"), TopicSettings()
    rank.states[0] = PartitionState(0, 1, 1, {"commops": 10})
    # Nothing listens there: the outbox is only read, and sends nothing.
    outbox = Outbox("127.0.0.1:1", {})
    counters = Counters()
    hops = (Hop(rank, lambda partition, read_to: 90.0), Hop(job, lambda partition, read_to: None))
    observer = Observer(counters, outbox, DeadLetters(outbox, topics), topics, "g", hops, lambda: True, lambda: 100.0)
    observer.saw_ends({0: {"commops": 20}})
    asyncio.run(observer.observe())
    outbox.close(0.0)
    return metrics_table(counters.registry.collect())


@cache  # it parses all sources
def log_events() -> str:
    """Return the events that our processes log, from the calls in the source: folder, level and fields."""
    found: dict[tuple[str, str], tuple[set[str], dict[str, None]]] = {}
    for folder in ("infra", "irregulars", "producers", "sinks", "streams"):
        # rglob does not follow the links in irregulars/ to the other folders
        for path in sorted((ROOT / folder).rglob("*.py")):
            for level, event, text in _logged(ast.parse(path.read_text())):
                levels, keys = found.setdefault((event, folder), (set(), {}))
                levels.add(level.upper())
                keys.update(dict.fromkeys(re.findall(r"(\w+)=", text)))
    rows = [(event, of, ", ".join(sorted(levels)), " ".join(keys)) for (event, of), (levels, keys) in found.items()]
    return table(("event", "of", "level", "fields"), sorted(rows))


def _logged(module: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Yield level, event and the rest of each call such as ``LOG.info("event=ready took_s=%.1f", …)``."""
    for node in ast.walk(module):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="LOG"), attr=level), args=[ast.Constant(str(text)), *_]
            ):
                event = re.match(r"event=(\w+)(.*)", text, re.DOTALL)
                if event is not None:  # one that begins with %s is none: its names stand beside it in the code
                    yield level, event[1], event[2]


class Room(NamedTuple):
    """A room, by its folder, and its set of thresholds; likelihoods are a set of their own, by their module."""

    folder: str
    values: Any

    @property
    def name(self) -> str:
        """Such as ``blame``."""
        return self.folder.rsplit("/", 1)[1]

    @property
    def thresholds(self) -> list[Threshold]:
        """The thresholds with units, meanings and sources."""
        return thresholds_of(self.values)


@cache
def rooms() -> tuple[Room, ...]:
    """Find the rooms with a ``thresholds.py`` or ``likelihoods.py``, by folder.

    Raises `ValueError` if one of them holds no set of thresholds, or several.
    """
    paths = [
        path for top in ("detectors", "streams") for name in _THRESHOLD_FILES for path in (ROOT / top).rglob(name)
    ]
    known = []
    for path in sorted(paths):
        file = path.relative_to(ROOT).with_suffix("").as_posix()
        module = importlib.import_module(f"irregulars.{file.replace('/', '.')}")
        found = [
            value
            for value in vars(module).values()
            if is_dataclass(value) and type(value).__module__ == module.__name__ and thresholds_of(value)
        ]
        if len(found) != 1:
            raise ValueError(f"{file}.py must hold one set of thresholds; got {len(found)}")
        known.append(Room(file.removesuffix("/thresholds"), found[0]))
    return tuple(known)


def thresholds() -> str:
    """Return the thresholds of all rooms, a table for each."""
    parts = []
    for room in rooms():
        # A paper, or how a value was found; the reason is written beside it in the code.
        rows = [
            (
                one.name,
                _number(one.value),
                one.unit,
                one.meaning,
                next((how for how in _ORIGINS if one.source.startswith(how)), one.source),
            )
            for one in room.thresholds
        ]
        # A bare bar would end the cell.
        cells = [(row[0], *(cell.replace("|", "\\|") for cell in row[1:])) for row in rows]
        parts.append(f"## {room.folder}\n\n" + table(("name", "value", "unit", "meaning", "source"), cells))
    return "\n".join(parts)


def _number(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


MAKERS: Final[Mapping[str, Callable[[], str]]] = {
    "commands": commands,
    "settings": lambda: table(("name", *_HEADS), keys_of(Settings)),
    "live thresholds": lambda: table(
        ("setting", "value", "meaning"),
        [(name, describe(kind), FIELDS[name].metadata["about"]) for name, kind in LIVE.items()],
    ),
    "fixed thresholds": lambda: table(("setting", "why not"), list(FIXED.items())),
    "thresholds": thresholds,
    "settings of the agent": agent_keys,
    "metrics of a worker": worker_metrics,
    "log events": log_events,
    "options of every channel": lambda: table(("key", *_HEADS), keys_of(ChannelTable)),
    **{
        f"options of {name}": lambda kind=kind: table(("key", *_HEADS), keys_of(kind))  # type: ignore[misc]
        for name, (kind, _) in KINDS.items()
    },
    **{f"columns {name}": partial(columns, name) for name in BATCH_SCHEMAS},
    "columns evidence": evidence_columns,
    "fields of notices": partial(fields_of, "notices"),
    "fields of verdicts": partial(fields_of, "verdicts"),
    "fields of suspects": partial(fields_of, "verdicts", "suspects"),
    "fields of explanations": partial(fields_of, "verdicts", "explanation"),
    "fields of steps": partial(fields_of, "verdicts", "explanation", "path"),
    "fields of alternatives": partial(fields_of, "verdicts", "explanation", "considered"),
    "fields of alerts": partial(fields_of, "alerts", left_out="verdicts"),
    "fields of actions": partial(fields_of, "actions"),
    "fields of an action": partial(fields_of, "actions", "actions"),
    "kinds of verdicts": lambda: table(
        ("`kind`", "meaning", "first suspect"),
        [(name, one.meaning, one.suspects) for name, one in kinds.VERDICT_KINDS.items()],
    ),
    "kinds of devices": lambda: table(
        ("`device`", "it is"), [(name, one.meaning) for name, one in kinds.DEVICE_KINDS.items()]
    ),
    "keys of simulate": lambda: table(
        ("key and default", "meaning"), [(keys.replace(", ", "`, `"), text) for keys, text in described_keys()]
    ),
    "questions": questions,
    "columns of operators": partial(frame_columns, "operator"),
    "columns of ranks": partial(frame_columns, "rank"),
    "checks of detectors": lambda: table(
        ("check", "promise"), [(name, str(check.__doc__)) for name, check in CHECKS.items()]
    ),
}


if __name__ == "__main__":
    sys.stdout.write("\n".join(MAKERS[name]() for name in sys.argv[1:]) or "".join(f"{name}\n" for name in MAKERS))
