"""Which other devices would slow just the transfers that a network fault slows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tests.benchmarks.independent.closed_form.arrays import Flags
from tests.benchmarks.independent.closed_form.scenario import Fault
from tests.benchmarks.independent.closed_form.topology import Fabric

Pairs = set[tuple[int, int]]  # stages that send to one another
Entity = tuple[str, int, int]  # a group (kind, stage, number) or a path ("p", rank, rank)


def _signature(fabric: Fabric, nics: Iterable[int], direction: str, logged: Flags, pairs: Pairs) -> frozenset[Entity]:
    """Transfers that slow NICs slow and the log can show: groups, and directed pairs of stages' lanes."""
    layout = fabric.layout
    lanes = layout.lanes
    found: set[Entity] = set()
    for rank in np.flatnonzero(np.isin(fabric.nic, list(nics))).tolist():
        stage, lane = divmod(rank, lanes)
        for kind in layout.groups:
            if fabric.plan[kind].crosses:
                group = int(layout.lane_group[kind][lane])
                members = layout.groups[kind][group] + stage * lanes
                if logged[members].any():
                    found.add((kind, stage, group))
        for x, y in pairs:
            for mine, way in ((x, "tx"), (y, "rx")):
                if mine == stage and direction in ("both", way):
                    a, b = lane + x * lanes, lane + y * lanes
                    if fabric.host[a] != fabric.host[b] and (logged[a] or logged[b]):
                        found.add(("p", a, b))
    return frozenset(found)


def _touched(fabric: Fabric, entities: Iterable[Entity]) -> set[int]:
    """Ranks that take part in the transfers."""
    touched: set[int] = set()
    for kind, first, second in entities:
        if kind == "p":
            touched.update((first, second))
        else:
            members = fabric.layout.groups[kind][second] + first * fabric.layout.lanes
            touched.update(members.tolist())
    return touched


def rivals(fabric: Fabric, fault: Fault, logged: Flags, pairs: Pairs) -> list[str] | None:
    """Other devices that slow just the same transfers, which no log can tell apart; None: no transfer shows it."""
    own: set[int] = set()
    is_link = fault.kind == "slow_link"
    if is_link:
        lanes = fabric.layout.lanes
        a, b = fault.ranks_in_order
        ways = [(a, b), (b, a)] if fault.direction == "both" else [(a, b)]
        mine = frozenset(("p", x, y) for x, y in ways if (x // lanes, y // lanes) in pairs)
    else:
        assert fault.nics is not None
        own = {int(n) for n in fault.nics}
        mine = _signature(fabric, own, fault.direction, logged, pairs)
    if not mine:
        return None
    # A rival shares every transfer, hence any few show all devices that can be one.
    touched = _touched(fabric, list(mine)[:3])
    found = []
    for nic in sorted({int(fabric.nic[r]) for r in touched}):
        directions = () if own == {nic} else ("both", "tx", "rx")
        if any(_signature(fabric, [nic], direction, logged, pairs) == mine for direction in directions):
            found.append(f"nic {nic}")
    for switch in sorted({int(fabric.switch[r]) for r in touched}):
        nics = set(np.unique(fabric.nic[fabric.switch == switch]).tolist())
        if nics != own and _signature(fabric, nics, "both", logged, pairs) == mine:
            found.append(f"switch {switch}")
    if not is_link and all(e[0] == "p" for e in mine) and len({tuple(sorted(e[1:])) for e in mine}) == 1:
        found.append("link")
    return found
