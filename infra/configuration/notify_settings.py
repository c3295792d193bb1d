"""The TOML file of ``irregulars notify``: which channels there are, and what each wants to hear.

Keys at the top level are general settings, as in ``irregulars.toml``. Each table ``[[channel]]`` is a channel: what
stands in `ChannelTable`, and the options of its kind (`infra.configuration.notify_channels`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

from msgspec import Meta

from irregulars.errors import InputError
from irregulars.infra.configuration.agent_settings import key, read_table
from irregulars.infra.configuration.toml_file import read_toml
from irregulars.validation import NotNegative, Text, describe, one_of, shown

OWN: Final = ("channel",)
"""Keys of the file that are no general settings."""

ChannelName = Annotated[str, Meta(pattern=r"\A[a-z0-9][a-z0-9_-]{0,63}\Z", description="a name of a-z 0-9 _ -")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelTable:
    """What every ``[[channel]]`` may say."""

    kind: Text = key(MISSING, "What it is: one of the kinds below, or package.module:Name of somebody else's")
    name: ChannelName = key(
        MISSING, "Its name in metrics, the log and the topic `notices`; another name is another channel"
    )
    least_severity: Annotated[str, one_of("ticket", "page")] = key("ticket", "It is not told of what is less urgent")
    least_gpu_hours: NotNegative | None = key(None, "As `notify_least_gpu_hours`, which is the default")
    jobs: tuple[str, ...] | None = key(None, "Jobs of which it is told, shell patterns; default: `notify_jobs`")


@dataclass(frozen=True, slots=True)
class ChannelEntry:
    """One ``[[channel]]``, with the options that its kind takes, and where it stands for errors."""

    table: ChannelTable
    options: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""


def read_notify_file(path: Path) -> tuple[ChannelEntry, ...]:
    """Read the channels of a file; its keys at the top level are read by `settings.load_settings`.

    Raises
    ------
    InputError
        If the file can't be read, has no channel, or a key is missing, of the wrong type, or said twice.
    """
    found = read_toml(path, "notify's file").get("channel", [])
    if not isinstance(found, list) or not found:
        raise InputError(f"channels must be an array of tables, [[channel]], with one at least; got none ({path})")
    entries = tuple(_entry(one, f"{path}, channel {place + 1}") for place, one in enumerate(found))
    names = [one.table.name for one in entries]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise InputError(f"name must be another than those before; got {name!r} ({entries[place].where})")
    return entries


def _entry(found: Any, where: str) -> ChannelEntry:
    if not isinstance(found, dict):
        raise InputError(f"channel must be a table, [[channel]]; got {shown(found)} ({where})")
    own = {one.name for one in fields(ChannelTable)}
    table = read_table({name: value for name, value in found.items() if name in own}, ChannelTable, where)
    return ChannelEntry(table, {name: value for name, value in found.items() if name not in own}, where)


def options_table(kind: type) -> str:
    """Return the Markdown table of a kind's options, for ``infra/docs/notifying.md``."""
    kinds = get_type_hints(kind, include_extras=True)
    rows = [f"| `{one.name}` | {_rule(kinds[one.name])} | {_shown(one)} | {one.metadata['about']} |"
            for one in fields(kind)]  # fmt: skip
    return "\n".join(["| key | value | default | meaning |", "|---|---|---|---|", *rows, ""])


def _rule(kind: Any) -> str:
    return describe(kind).removesuffix(" or null")


def _shown(one: Field[Any]) -> str:
    if one.default is MISSING:
        return "must be given"
    shown_value = str(one.default).lower() if isinstance(one.default, bool) else one.default
    return "none" if shown_value in (None, ()) else f"`{shown_value}`"
