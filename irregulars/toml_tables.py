"""TOML files that people write: read, or refused in one line; tables of theirs as dataclasses."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, get_type_hints

from irregulars.errors import InputError, PluginError
from irregulars.validation import checked, require_known, shown

_Table = TypeVar("_Table")


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Read a TOML file, which `what` names in errors; raises `InputError` if it can't be read, or is no TOML."""
    import tomllib  # most calls read no such file

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{what} must be readable; got {error.strerror} ({path})") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or nested too deeply
        raise InputError(f"{what} must be TOML; got {str(error).splitlines()[0]} ({path})") from error


def key(default: Any, about: str) -> Any:
    """Describe a key of a table: its default (`MISSING`: it must be given), and its meaning."""
    return field(default=default, metadata=MappingProxyType({"about": about}))


def read_table(found: Any, table: type[_Table], where: str) -> _Table:
    """Read one table of a TOML file into a dataclass whose fields were made by `key`, or have defaults.

    Raises `InputError` if a key is unknown, missing, of the wrong type or out of bounds.
    """
    known: dict[str, Field[Any]] = {one.name: one for one in fields(table)}  # type: ignore[arg-type]
    if not isinstance(found, dict):
        raise InputError(f"table must hold keys; got {shown(found)} ({where})")
    for name in found:
        require_known(name, known, "key", where, f"it may be one of {', '.join(known)}")
    for name, one in known.items():
        if name not in found and one.default is MISSING and one.default_factory is MISSING:
            raise InputError(f"key {name} must be there; got none ({where})")
    kinds = get_type_hints(table, include_extras=True)
    values = {}
    for name, value in found.items():
        values[name] = checked(value, kinds[name], name, f"{where}, key {name}")
        # TOML can write it, and neither paths nor variables of the environment can hold it.
        if isinstance(value, str) and "\0" in value:
            raise InputError(f"{name} must be text without a null; got {shown(value)} ({where}, key {name})")
    return table(**values)


def open_plugin(kind: str, options: Mapping[str, Any], what: str, needed: Collection[str], where: str) -> Any:
    """Call ``package.module:Name``, which a table names as its kind, with the table's options.

    `what`: a source, for example, which has the attributes `needed`: checked here, where the place in the file is
    known. Raises `PluginError` if it can't be imported, does not take the options, or lacks one of these.
    """
    module, _, name = kind.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)(**options)
        missing = [one for one in needed if not hasattr(made, one)]
        if missing:
            raise TypeError(f"a {type(made).__name__} without {', '.join(missing)} is no {what}")
    except (Exception, SystemExit) as error:  # whatever a stranger's code raises, it can't be used
        found = " ".join(f"{type(error).__name__}: {error}".split())
        text = f"kind must be one that can be imported and called with its options; got {found} ({where})"
        raise PluginError(text) from error
    return made
