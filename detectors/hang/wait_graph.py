"""Who waits for whom: the ends of all chains of waiting, in a graph of any size and with cycles."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def last_groups(edges: Mapping[Node, Iterable[Node]]) -> list[set[Node]]:
    """Find the groups of nodes at which every walk along the edges ends.

    A group is one node without an edge to others, or several that wait for each other in a circle: the strongly
    connected components without a way out (Tarjan's algorithm, SIAM J. Comput. 1972, without recursion).

    Parameters
    ----------
    edges
        From each node to those that it waits for; nodes without edges need not have a key.

    Examples
    --------
    >>> last_groups({1: [2], 2: [3], 4: [2], 5: [6], 6: [5]})
    [{3}, {5, 6}]
    """
    group_of: dict[Node, int] = {}
    groups: list[set[Node]] = []
    for start in edges:
        if start not in group_of:
            _walk(start, lambda node: edges.get(node, ()), group_of, groups)
    has_way_out = {group_of[a] for a, ends in edges.items() for b in ends if group_of[a] != group_of[b]}
    return [group for at, group in enumerate(groups) if at not in has_way_out]


def _walk(
    start: Node, ends_of: Callable[[Node], Iterable[Node]], group_of: dict[Node, int], groups: list[set[Node]]
) -> None:
    order: dict[Node, int] = {start: 0}
    lowest = {start: 0}
    path, open_nodes = [(start, iter(ends_of(start)))], [start]
    while path:
        node, ends = path[-1]
        for end in ends:
            if end in group_of:
                continue
            if end not in order:
                order[end] = lowest[end] = len(order)
                open_nodes.append(end)
                path.append((end, iter(ends_of(end))))
                break
            lowest[node] = min(lowest[node], order[end])
        else:
            path.pop()
            if path:
                lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[node])
            if lowest[node] == order[node]:
                _close(node, open_nodes, group_of, groups)


def _close(node: Node, open_nodes: list[Node], group_of: dict[Node, int], groups: list[set[Node]]) -> None:
    at = open_nodes.index(node)
    group = set(open_nodes[at:])
    del open_nodes[at:]
    group_of.update(dict.fromkeys(group, len(groups)))
    groups.append(group)
