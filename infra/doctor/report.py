"""The report for people: groups, one line a finding, and what to do beneath what is not well; 80 columns."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from irregulars.infra.doctor.findings import GROUPS, Finding, Level, count, span
from irregulars.printing import printable

if TYPE_CHECKING:
    from rich.text import Text

WIDTH: Final = 80
_STYLES: Final[dict[Level, str]] = {"ok": "green", "warning": "yellow", "problem": "bold red", "unknown": "cyan"}
_INDENT: Final = 11
_FINDING: Final = "  {level:<9}"


def lines_of(findings: Sequence[Finding]) -> Iterator[tuple[str, str]]:
    r"""Give the lines of a report, each with its style.

    >>> from irregulars.infra.doctor.findings import finding, ok
    >>> report = [ok("kafka", "broker", "1 broker at kafka:9092"),
    ...           finding("problem", "topics", "topics", "1 topic missing: irregulars.alerts", "topic_missing")]
    >>> print("\n".join(line for line, _ in lines_of(report)))
    Kafka
      ok       broker: 1 broker at kafka:9092
    Topics
      PROBLEM  topics: 1 topic missing: irregulars.alerts
               -> irregulars topics create
    """
    group = ""
    for one in findings:
        if one.group != group:
            group = one.group
            yield GROUPS[group], "bold"
        level = one.level.upper() if one.level == "problem" else one.level
        first, *others = _wrapped(f"{one.subject}: {one.text}", _FINDING.format(level=level))
        yield first, _STYLES[one.level]
        yield from ((line, "") for line in others)
        if one.to_do:
            yield from ((line, "dim") for line in _wrapped(one.to_do, " " * _INDENT + "-> ", _INDENT + 3))


def _wrapped(text: str, begin: str, indent: int = _INDENT) -> list[str]:
    return textwrap.wrap(printable(text), WIDTH, initial_indent=begin, subsequent_indent=" " * indent,
                         break_on_hyphens=False)  # fmt: skip


def summary(findings: Iterable[Finding], took_s: float) -> str:
    """Return the last line: how many of each level.

    >>> summary([], 1.23)
    '0 problems, 0 warnings, 0 not known, 0 ok, in 1.2 s'
    """
    found = Counter(one.level for one in findings)
    counted = (count(found["problem"], "problem"), count(found["warning"], "warning"))
    return f"{', '.join(counted)}, {found['unknown']} not known, {found['ok']} ok, in {span(took_s)}"


def coloured(line: str, style: str) -> Text:
    """Return a line for a terminal: of a finding its level alone bears the colour."""
    from rich.text import Text

    if style in _STYLES.values() and line.startswith("  "):
        return Text.assemble((line[:_INDENT], style), line[_INDENT:])
    return Text(line, style)
