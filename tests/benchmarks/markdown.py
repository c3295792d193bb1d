"""Tables as pages and reports have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Cells = Sequence[str]


def table(head: Cells, lines: Iterable[Cells]) -> list[str]:
    rows = ["| " + " | ".join(cells) + " |" for cells in (head, *lines)]
    return [rows[0], "|---" * len(head) + "|", *rows[1:]]
