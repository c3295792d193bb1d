"""Which switch each NIC is plugged into, and which switches join those, as files describe it.

Three forms are recognised by their content:

* the output of ``ibnetdiscover``: the leafs are the switches with host adapters, and each switch is below its
  neighbours that are one further from these;
* Slurm's ``topology.conf``: ``SwitchName=leaf-1 Nodes=node[0-3]``, ``SwitchName=spine-1 Switches=leaf-[1-4]``;
* a table: a line for each cable with its lower and its upper end, as ``node-0/mlx5_0 leaf-1``, ``node-0 leaf-1`` for
  all NICs of a host, ``leaf-1 spine-1``; words are parted by blanks, tabs or commas.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final

from irregulars.errors import InputError
from irregulars.grouping import grouped
from irregulars.messages.announcements import Announcement, above
from irregulars.producers.trace.foreign_files import read_bounded
from irregulars.validation import MAX_NAME_CHARACTERS, shown

_MOST_BYTES: Final = 64 << 20  # ibnetdiscover writes some 100 bytes a port: half a million of them
_MOST_NAMES: Final = 1 << 20  # that lists of hosts may stand for

Plug = tuple[str, str | None]  # a host and its NIC; None: all of its NICs


@dataclass(frozen=True, slots=True)
class Fabric:
    """The switch of each NIC, and the switches above each switch."""

    leaf_of: Mapping[Plug, str] = field(default_factory=dict)
    above: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)  # number of lines recognised and not used, by reason

    def place(self, own: Announcement) -> Announcement:
        """Add a rank's switch and those above it, where they are known here and the rank names none itself.

        A host is looked up by its name, then by the part of its name before the first dot.
        """
        hosts = dict.fromkeys((own.host, own.host.split(".")[0])) if own.host else ()
        found = (self.leaf_of.get((host, nic)) for host in hosts for nic in (own.nic, None))
        switch = own.switch or next(filter(None, found), None)
        return replace(own, switch=switch, fabric=own.fabric or above(switch, self.above))


def read_fabric(path: Path) -> Fabric:
    """Read a fabric's description; raises `InputError`, with file and line, if it is none of the three forms."""
    value = read_bounded(path, _MOST_BYTES)
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: must be UTF-8 text; got byte {value[error.start]:#x} at {error.start}") from None
    lines = list(enumerate(text.splitlines(), 1))
    if re.search(r"^(?:Switch|Ca)\s+\d+\s+\"", text, re.MULTILINE):
        return _of_ibnetdiscover(path, lines)
    is_slurm = re.search(r"^\s*SwitchName\s*=", text, re.IGNORECASE | re.MULTILINE)
    cables, skipped = (_of_slurm if is_slurm else _of_table)(path, lines)
    if not cables:
        rule = "must hold cables, output of ibnetdiscover, or Slurm's topology.conf"
        raise InputError(f"{path}: {rule}; got none of them")
    # A name that is above another one is a switch, all others are hosts and NICs.
    uppers = grouped(dict.fromkeys(cables))
    switches = {one for own in uppers.values() for one in own}
    leaf_of = {}
    for lower in uppers.keys() - switches:
        host, _, nic = lower.partition("/")
        if len(uppers[lower]) == 1:
            leaf_of[host, nic or None] = uppers[lower][0]
        else:  # which of them a NIC is plugged into is not told
            skipped["host or NIC on several switches"] += 1
    return Fabric(leaf_of, {one: tuple(uppers[one]) for one in sorted(switches & uppers.keys())}, dict(skipped))


# --- the table ------------------------------------------------------------------------------------------------------


def _of_table(path: Path, lines: list[tuple[int, str]]) -> tuple[list[tuple[str, str]], Counter[str]]:
    cables = []
    for number, line in lines:
        words = re.split(r"[\s,]+", line.partition("#")[0].strip())
        if words == [""]:
            continue
        if len(words) != 2 or not all(0 < len(word) <= MAX_NAME_CHARACTERS for word in words):
            raise InputError(f"{path}, line {number}: must be two names, below and above; got {shown(line)}")
        cables.append((words[0], words[1]))
    return cables, Counter()


# --- Slurm ----------------------------------------------------------------------------------------------------------

_KEY: Final = re.compile(r"(\w+)\s*=\s*(\S+)")
_SLURM_KEYS: Final = frozenset({"switchname", "nodes", "switches"})


def _of_slurm(path: Path, lines: list[tuple[int, str]]) -> tuple[list[tuple[str, str]], Counter[str]]:
    cables, skipped = [], Counter[str]()
    begun = ""
    for number, line in lines:
        # Slurm continues a line behind a backslash.
        line = begun + line.partition("#")[0].rstrip()
        begun = line[:-1] if line.endswith("\\") else ""
        keys = {name.lower(): value for name, value in _KEY.findall(line)}
        if begun or not keys:
            continue
        if "switchname" not in keys:  # blocks, and other plugins' lines
            skipped["line without SwitchName"] += 1
            continue
        skipped.update(f"key {name}" for name in keys.keys() - _SLURM_KEYS)
        for name in ("nodes", "switches"):
            # Bounded while they are listed: a line of 20 bytes can stand for a million names.
            parts = re.findall(r"(?:[^,\[]|\[[^\]]*\]|\[)+", keys.get(name, ""))
            names = (one for part in parts for one in _expanded(part, f"{path}, line {number}"))
            cables += [(lower, keys["switchname"]) for lower in islice(names, _MOST_NAMES + 1)]
            if len(cables) > _MOST_NAMES:
                raise InputError(f"{path}, line {number}: names must be at most {_MOST_NAMES} together; got more")
    return cables, skipped


def _expanded(part: str, where: str) -> Iterator[str]:
    """Yield the names of one part of Slurm's lists of hosts.

    >>> list(_expanded("node[08-10,12]-ib", ""))
    ['node08-ib', 'node09-ib', 'node10-ib', 'node12-ib']
    """
    found = re.search(r"\[([^\]]*)\]", part)
    if found is None:
        if "[" in part or len(part) > MAX_NAME_CHARACTERS:
            raise InputError(f"{where}: must list names as node[0-3,7]; got {shown(part)}")
        yield part
        return
    for one in found[1].split(","):
        ends = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", one)
        if ends is None or int(ends[2] or ends[1]) - int(ends[1]) >= _MOST_NAMES:
            raise InputError(f"{where}: must list names as node[0-3,7]; got {shown(part)}")
        for number in range(int(ends[1]), int(ends[2] or ends[1]) + 1):
            middle = str(number).zfill(len(ends[1]))
            yield from _expanded(part[: found.start()] + middle + part[found.end() :], where)


# --- ibnetdiscover --------------------------------------------------------------------------------------------------

_NODE: Final = re.compile(r"(Switch|Ca|Rt)\s+\d+\s+\"([^\"]+)\"\s*#\s*\"([^\"]*)\"")
_PORT: Final = re.compile(r"\[\d+\](?:\([0-9a-fA-F]+\))?\s+\"([^\"]+)\"\[\d+\]")
_OF_SWITCH: Final = re.compile(r"(?:MF0;)?([^:;]+)(?::.*)?")  # MF0;leaf-1:MQM8700/U1


def _of_ibnetdiscover(path: Path, lines: list[tuple[int, str]]) -> Fabric:
    kinds: dict[str, str] = {}
    descriptions: dict[str, str] = {}
    beside: dict[str, dict[str, None]] = {}
    skipped = Counter[str]()
    node = None
    for number, line in lines:
        if header := _NODE.match(line):
            kind, node, descriptions[node] = header.groups()
            kinds[node] = kind
        elif port := _PORT.match(line):
            if node is None:
                raise InputError(f"{path}, line {number}: port must follow a Switch or Ca; got {shown(line)}")
            beside.setdefault(node, {})[port[1]] = None
            beside.setdefault(port[1], {})[node] = None
        elif re.match(r"\[\d+\]|(?:Switch|Ca)\s", line):
            skipped["line of another form"] += 1
    # Switches are named as people do; those whose name is not their own by their GUID
    found = {node: _OF_SWITCH.match(descriptions[node]) for node, kind in kinds.items() if kind == "Switch"}
    short = {node: own[1].strip() for node, own in found.items() if own is not None}
    counts = Counter(short.values())
    names = {node: short[node] if counts[short.get(node, "")] == 1 else node for node in found}
    adapters = [node for node, kind in kinds.items() if kind == "Ca"]
    # How far each switch is from the nearest leaf
    level = dict.fromkeys(sorted({one for node in adapters for one in beside.get(node, ()) if one in names}), 0)
    waiting = list(level)
    for one in waiting:  # grows as it goes
        for other in beside[one]:
            if other in names and other not in level:
                level[other] = level[one] + 1
                waiting.append(other)
    uppers = {
        names[one]: tuple(sorted(names[other] for other in beside.get(one, ()) if level.get(other, 0) == own + 1))
        for one, own in level.items()
    }
    # Each of these links is counted from both of its ends.
    sideways = sum(level[one] == level.get(other) for one in level for other in beside[one]) // 2
    skipped.update({"link between switches of one level": sideways} if sideways else {})
    cables = []
    for node in adapters:
        host, _, nic = descriptions[node].partition(" ")
        leafs = [names[one] for one in beside.get(node, ()) if one in names]
        # On several switches, the one that its traffic takes is not known.
        if not host or len(leafs) != 1:
            skipped["adapter without a host's name, or not on one switch"] += 1
            continue
        cables.append((host, nic or None, leafs[0]))
    leafs_of_host: dict[str, set[str]] = {}
    for host, _, leaf in cables:
        leafs_of_host.setdefault(host, set()).add(leaf)
    # A host's adapters may be described as "node-0 HCA-1", which is no name of sysfs: one leaf for all needs none.
    lone = ((host, *leafs) for host, leafs in leafs_of_host.items() if len(leafs) == 1)
    leaf_of: dict[Plug, str] = {(host, None): leaf for host, leaf in lone}
    leaf_of |= {(host, nic): leaf for host, nic, leaf in cables if nic is not None}
    return Fabric(leaf_of, {one: ups for one, ups in uppers.items() if ups}, dict(skipped))
