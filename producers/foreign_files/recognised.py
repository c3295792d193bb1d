"""Which tool wrote some files, told by how they begin: for whoever takes them for a trace directory."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from irregulars.errors import InputError
from irregulars.producers.foreign_files.files import list_files, open_plain

_FILES_LOOKED_AT: Final = 8
_HEAD_BYTES: Final = 256 * 1024
"""Of each file. Kineto writes the properties of all devices first, some hundred bytes each."""

_SIGNS: Final[Mapping[str, tuple[tuple[bytes, ...], ...]]] = {
    "kineto": ((b'"traceEvents"',), (b'"distributedInfo"',), (b'"schemaVersion"', b'"deviceProperties"')),
    "nccl-inspector": ((b'"coll_perf"',), (b'"p2p_perf"',), (b'"dump_stats"',)),
    "flight-recorder": ((b"pg_config", b"version"), (b"pg_status", b"version"), (b"collective_seq_id",)),
    "clog": ((b"V|", b"|base_timestamp="),),
    "nccl-ras": ((b'"communicators"', b'"nccl_version"'), (b'"communicators"', b'"missing_ranks"')),
}
"""Kind of `irregulars import` to words of which its files have all of one group near their begin."""


def kind_of_files(source: Path) -> str | None:
    """Return the kind under which `irregulars import` reads a file, or the files of a directory; None: unknown."""
    try:
        files = list_files(source)
    except InputError:
        return None
    kinds = (_kind_of(path) for path in islice(files, _FILES_LOOKED_AT))
    return next((kind for kind in kinds if kind is not None), None)


def how_to_import(source: Path) -> str:
    """Say how to import what was taken for a trace directory; empty where it is nothing that we know.

    >>> how_to_import(Path("/nowhere"))
    ''
    """
    kind = kind_of_files(source)
    if kind is None:
        return ""
    return f". It looks like {kind}; run: irregulars import {kind} {shlex.quote(str(source))} job/"


def _kind_of(path: Path) -> str | None:
    try:
        with open_plain(path) as stream:
            head = stream.read(_HEAD_BYTES)
    except InputError:
        return None
    groups = ((kind, group) for kind, all_groups in _SIGNS.items() for group in all_groups)
    return next((kind for kind, group in groups if all(word in head for word in group)), None)
