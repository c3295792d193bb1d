"""The screen as one HTML file, and charts as inline SVG: for `irregulars show --html` and for the console's pages.

Nothing is fetched, no script runs, every text is escaped (job names are input). Colours are classes of the style
sheet, so that light and dark follow the reader; each chart has a title for readers who don't see it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from textwrap import wrap
from typing import Final

from irregulars.infra.showing.found import Cell, Iteration, RateSample, Screen, median_of
from irregulars.infra.showing.numerics import QUANTITIES, Band, standing_out
from irregulars.infra.showing.text_page import (
    commands_of,
    cost_text,
    device_text,
    earlier_text,
    gpu_text,
    names_of,
    others_text,
    since_text,
    times_text,
    title_text,
    without_text,
)
from irregulars.printing import printable
from irregulars.sinks.advice import alternatives_of, head_text, path_texts
from irregulars.words import duration, rate, span

# Variables of a light page
LIGHT: Final = (
    "--bg:#fff;--fg:#1b1f24;--dim:#57606a;--line:#d0d7de;--usual:#8c959f;--odd:#bf8700;--cause:#cf222e;--own:#cf222e;"
    "--others:#0969da;--band:#0969da22;--box:#f6f8fa;--h0:#eaeef2;--h1:#fae3b4;--h2:#f5b95f;--h3:#e8803a;--h4:#cf4a2e;"
    "--h5:#8e1519"
)

# The same of a dark one
DARK: Final = (
    "--bg:#0d1117;--fg:#e6edf3;--dim:#9198a1;--line:#30363d;--usual:#6e7681;--odd:#d29922;--cause:#f85149;"
    "--own:#f85149;--others:#58a6ff;--band:#58a6ff22;--box:#161b22;--h0:#1c2128;--h1:#4d3a12;--h2:#86601a;--h3:#bd7a26;"
    "--h4:#e8803a;--h5:#ffb77a"
)

# Classes that charts use (`charts.py`)
CHARTS: Final = """
text{font:11px system-ui,sans-serif;fill:var(--dim)}text.strong{fill:var(--cause);font-weight:600}
text.line{font-size:13px;fill:var(--fg)}.usual{fill:var(--usual)}.odd{fill:var(--odd)}.cause{fill:var(--cause)}
.box{fill:var(--box);stroke:var(--line)}.box-cause{fill:var(--box);stroke:var(--cause);stroke-width:1.5}
.arrow{fill:none;stroke:var(--dim)}.own{fill:none;stroke:var(--own);stroke-width:1.6}.band{fill:var(--band)}
.others{fill:none;stroke:var(--others)}.heat0{fill:var(--h0)}.heat1{fill:var(--h1)}.heat2{fill:var(--h2)}
.heat3{fill:var(--h3)}.heat4{fill:var(--h4)}.heat5{fill:var(--h5)}
"""


def themed() -> str:
    """Return the colours for pages with a switch: as the system has it, unless the root says which theme it is."""
    return (
        f":root{{color-scheme:light;{LIGHT}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{DARK}}}}}\n"
        f":root[data-theme=dark]{{color-scheme:dark;{DARK}}}\n{CHARTS}"
    )


_WIDTH: Final = 720
_LEFT: Final = 64
_BOTTOM: Final = 22
_LINE_SIGNS: Final = 96
_SMALL_WIDTH: Final = 180
_SMALL_HEIGHT: Final = 30
_MOST_BARS: Final = 600
_LOG_FROM: Final = 20.0  # highest over lowest value from which on a scale is logarithmic
_LEVELS: Final = 6
_FULL_RATIO: Final = 1.5  # to the median: the least that gets the strongest colour


def _svg(height: float, title: str, parts: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "note") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> str:
    shape = (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.3):.2f}" height="{max(height, 0):.2f}" class="{kind}"'
    )
    return f"{shape}><title>{escape(title)}</title></rect>" if title else f"{shape}/>"


def times_chart(iterations: Sequence[Iteration]) -> str:
    """Draw a bar for each iteration (of very many, for the longest of some), irregular ones marked."""
    height, top = 170.0, 12.0
    each = max(1, -(-len(iterations) // _MOST_BARS))
    groups = [iterations[at : at + each] for at in range(0, len(iterations), each)]
    longest = [max(group, key=lambda one: one.elapsed_ns) for group in groups]
    most = max(one.elapsed_ns for one in longest) or 1
    step = (_WIDTH - _LEFT) / len(groups)
    parts = []
    for at, (one, group) in enumerate(zip(longest, groups, strict=True)):
        kind = (
            "cause" if any(o.has_cause for o in group) else "odd" if any(o.is_irregular for o in group) else "usual"
        )
        tall = (height - top - _BOTTOM) * one.elapsed_ns / most
        title = f"iteration {one.iteration}: {duration(one.elapsed_ns)}"
        parts.append(_rect(_LEFT + at * step, height - _BOTTOM - tall, step * 0.85, tall, kind, title))
    shown = span((iterations[0].iteration, iterations[-1].iteration + 1))
    parts += [
        _text(_LEFT - 6, top + 8, duration(most), "end"), _text(_LEFT - 6, height - _BOTTOM, "0", "end"),
        _text(_LEFT, height - 6, f"iteration {iterations[0].iteration}"),
        _text(_WIDTH, height - 6, str(iterations[-1].iteration), "end"),
    ]  # fmt: skip
    return _svg(height, f"Time of {shown}", parts)


def heat_map(cells: Sequence[Cell], bin_ranks: int, accused: Sequence[int]) -> str:
    """Draw how long ranks worked between their operators: a row for each bin of ranks, a column an iteration."""
    bins, columns = (sorted({getattr(one, name) for one in cells}) for name in ("bin", "iteration"))
    tall, wide = min(16.0, max(4.0, 480 / len(bins))), (_WIDTH - _LEFT) / len(columns)
    row_of, column_of = ({value: at for at, value in enumerate(values)} for values in (bins, columns))
    low = median_of([one.work_ns for one in cells])
    high = max(max(one.work_ns for one in cells), _FULL_RATIO * low, 1.0)  # so that noise looks calm
    own = {rank // bin_ranks for rank in accused}
    parts = [
        _rect(
            _LEFT + column_of[one.iteration] * wide, row_of[one.bin] * tall, wide, tall,
            f"heat{_level(one.work_ns, low, high)}",
            f"rank {one.rank}, iteration {one.iteration}: {duration(one.work_ns)}",
        )
        for one in cells
    ]  # fmt: skip
    for number in bins if tall >= 9 else [one for one in bins if one in own]:
        mark, first = "▸ " if number in own else "", number * bin_ranks
        shown = str(first) if bin_ranks == 1 else f"{first}-{first + bin_ranks - 1}"
        y = row_of[number] * tall + tall * 0.5 + 3.5
        parts.append(_text(_LEFT - 6, y, mark + shown, "end", "strong" if mark else "note"))
    height = len(bins) * tall + _BOTTOM
    parts += [_text(_LEFT, height - 6, f"iteration {columns[0]}"), _text(_WIDTH, height - 6, str(columns[-1]), "end")]
    return _svg(height, f"Time between operators by rank and iteration, {duration(low)} to {duration(high)}", parts)


def numerics_charts(bands: Sequence[Band], marks: Sequence[tuple[int, str]]) -> Iterator[tuple[str, str, str]]:
    """Yield title, chart and legend of each quantity with bands; `marks`: first iteration and kind of verdicts."""
    for quantity, title in QUANTITIES.items():
        own = [one for one in bands if one.quantity == quantity]
        if own:
            out = standing_out(own)
            shown = [f"rank {one.rank} in iteration {one.iteration} ({one.value:.4g})" for one in out[:3]]
            more = f", and {len(out) - 3} more" if len(out) > 3 else ""
            legend = "Blue: the median over ranks, within the lowest and the highest."
            legend += f" Red: far outside of the others: {', '.join(shown)}{more}." if out else ""
            legend += " Yellow: where a verdict on numbers began." if marks else ""
            yield title, _numerics_chart(title, own, out, marks), legend


def _numerics_chart(title: str, bands: Sequence[Band], out: Sequence[Band], marks: Sequence[tuple[int, str]]) -> str:
    height, top = 150.0, 12.0
    first, last = bands[0].iteration, max(bands[-1].iteration, bands[0].iteration + 1)
    known = [v for one in bands for v in (one.lowest, one.middle, one.highest) if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(known), max(known)
    is_log = low > 0 and high > _LOG_FROM * low
    least, most = (math.log(low), math.log(high)) if is_log else (low, high)

    def across(iteration: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - 6) * (iteration - first) / (last - first)

    def up(value: float) -> float:  # what is not finite stands at the edge
        part = 0.5 if most == least else ((math.log(value) if is_log else value) - least) / (most - least)
        return height - _BOTTOM - (height - top - _BOTTOM) * min(max(part, 0.0), 1.0)

    def line(name: str, own: Iterable[Band]) -> str:
        return " ".join(f"{across(one.iteration):.1f},{up(getattr(one, name)):.1f}" for one in own)

    parts = [
        f'<polygon points="{line("highest", bands)} {line("lowest", reversed(bands))}" class="band"/>',
        f'<polyline points="{line("middle", bands)}" class="others"/>',
        *(
            _rect(across(at) - 0.6, top, 1.2, height - top - _BOTTOM, "odd", f"{kind}, from iteration {at} on")
            for at, kind in marks
            if first <= at <= last
        ),
        *(
            f'<circle cx="{across(one.iteration):.1f}" cy="{up(one.value):.1f}" r="3" class="cause"><title>'
            f"rank {one.rank}, iteration {one.iteration}: {one.value:.6g} (median {one.middle:.6g})</title></circle>"
            for one in out
        ),
        _text(_LEFT - 6, top + 8, f"{high:.4g}", "end"), _text(_LEFT - 6, height - _BOTTOM, f"{low:.4g}", "end"),
        _text(_LEFT, height - 6, f"iteration {first}"), _text(_WIDTH, height - 6, str(bands[-1].iteration), "end"),
    ]  # fmt: skip
    scale = ", logarithmic" if is_log else ""
    return _svg(height, f"{title}, {low:.4g} to {high:.4g}{scale}: {span((first, bands[-1].iteration + 1))}", parts)


def small_line(iterations: Sequence[Iteration], usual_ns: float, text: str) -> str:
    """Draw iteration times as one small line of a table, with the usual time as a level; `text` says the same."""
    most = max(max(one.elapsed_ns for one in iterations), 1)
    step = _SMALL_WIDTH / max(len(iterations), 40)
    bars: dict[str, list[str]] = {"usual": [], "odd": [], "cause": []}
    for at, one in enumerate(iterations):
        kind = "cause" if one.is_irregular and one.has_cause else "odd" if one.is_irregular else "usual"
        height = max(1.0, (_SMALL_HEIGHT - 2) * one.elapsed_ns / most)
        bars[kind].append(f"M{(at + 0.5) * step:.1f} {_SMALL_HEIGHT}v-{height:.1f}")
    parts = [f'<path class="bar-{kind}" stroke-width="{step * 0.8:.2f}" d="{"".join(own)}"/>'
             for kind, own in bars.items() if own]  # fmt: skip
    if usual_ns > 0:
        y = _SMALL_HEIGHT - (_SMALL_HEIGHT - 2) * min(usual_ns / most, 1)
        parts.append(f'<path class="level" d="M0 {y:.1f}h{_SMALL_WIDTH}"/>')
    return (
        f'<svg class="small-line" viewBox="0 0 {_SMALL_WIDTH} {_SMALL_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(text)}">{"".join(parts)}</svg>'
    )


def extremes_of(cells: Sequence[Cell]) -> str:
    """Return which rank worked longest and which shortest, and in which iteration."""
    most, least = max(cells, key=lambda one: one.work_ns), min(cells, key=lambda one: one.work_ns)
    return (
        f"longest: rank {most.rank} in iteration {most.iteration}, {duration(most.work_ns)}; shortest: "
        f"rank {least.rank} in iteration {least.iteration}, {duration(least.work_ns)}"
    )


def _level(value: float, low: float, high: float) -> int:
    if high <= low:
        return 0
    return max(0, min(_LEVELS - 1, int((value - low) / (high - low) * _LEVELS)))


def chain_chart(texts: Sequence[str]) -> str:
    """Draw hand-overs and cause as boxes below each other, an arrow from each to the next."""
    lines = [wrap(text, _LINE_SIGNS) or [""] for text in texts]
    parts, y = [], 2.0
    for at, own in enumerate(lines):
        height = 12 + 15 * len(own)
        is_cause = at == len(lines) - 1
        parts.append(f'<rect x="{20 * at + 1}" y="{y}" width="{_WIDTH - 20 * at - 2}" height="{height}" rx="5" '
                     f'class="{"box-cause" if is_cause else "box"}"/>')  # fmt: skip
        parts += [_text(20 * at + 10, y + 18 + 15 * row, line, kind="line") for row, line in enumerate(own)]
        if not is_cause:
            x = 20 * at + 30
            parts.append(f'<path d="M{x} {y + height} v12 m-4 -5 l4 5 l4 -5" class="arrow"/>')
        y += height + 14
    return _svg(y - 8, "Who waited for whom, from the symptom to the cause", parts)


def rate_chart(samples: Sequence[RateSample], direction: str) -> str:
    """Draw the peaks of the accused NIC in one direction over the range and the median of all others."""
    own = [one for one in samples if one.direction == direction]
    height, top = 170.0, 12.0
    most = max((v for one in own for v in (one.own, one.others_most) if math.isfinite(v)), default=1.0) or 1.0
    first, last = own[0].time_ns, max(own[-1].time_ns, own[0].time_ns + 1)

    def place(one: RateSample, value: float) -> str:
        x = _LEFT + (_WIDTH - _LEFT) * (one.time_ns - first) / (last - first)
        return f"{x:.1f},{height - _BOTTOM - (height - top - _BOTTOM) * value / most:.1f}"

    beside = [one for one in own if math.isfinite(one.others_median)]
    band = [place(one, one.others_most) for one in beside] + [
        place(one, one.others_least) for one in reversed(beside)
    ]
    parts = [
        f'<polygon points="{" ".join(band)}" class="band"/>',
        f'<polyline points="{" ".join(place(one, one.others_median) for one in beside)}" class="others"/>',
        f'<polyline points="{" ".join(place(o, o.own) for o in own if math.isfinite(o.own))}" class="own"/>',
        _text(_LEFT - 6, top + 8, rate(most), "end"), _text(_LEFT - 6, height - _BOTTOM, "0", "end"),
        _text(_LEFT, height - 6, "0 s"), _text(_WIDTH, height - 6, duration(last - first), "end"),
    ]  # fmt: skip
    return _svg(height, f"Peaks of what NICs {direction}: the accused one, and all others", parts)


_STYLE: Final = f"""
:root{{color-scheme:light dark;{LIGHT}}}
@media (prefers-color-scheme:dark){{:root{{{DARK}}}}}
*{{box-sizing:border-box}}body{{margin:0 auto;padding:24px 16px;max-width:800px;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}}h1{{font-size:20px;margin:0 0 4px}}
h2{{font-size:15px;margin:26px 0 6px;padding-top:10px;border-top:1px solid var(--line)}}
p{{margin:4px 0}}.dim{{color:var(--dim)}}
dl{{display:grid;grid-template-columns:84px 1fr;gap:4px 10px;margin:12px 0}}dt{{color:var(--dim)}}dd{{margin:0}}
code{{font:13px ui-monospace,monospace;background:var(--box);padding:1px 4px;border-radius:3px}}
svg{{width:100%;height:auto}}{CHARTS}"""

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def page_of(screen: Screen) -> str:
    """Return the page."""
    title = _safe(title_text(screen))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>\n"
        f'<h1>{title}</h1><p class="dim">{_safe(screen.verdict.verdict_id)}, revision {screen.verdict.revision}; '
        f"read from {_safe(screen.source)}</p>\n{body_of(screen)}</body></html>\n"
    )


def body_of(screen: Screen) -> str:
    """Return the part under the title, for pages that have a head and a style of their own."""
    return "".join(_body(screen))


def _safe(text: object) -> str:
    return escape(printable(text))


def _body(screen: Screen) -> Iterator[str]:
    facts = {
        "Device": device_text(screen), "Since": since_text(screen), "Cost": cost_text(screen),
        "Without": without_text(screen), "Do": f"{screen.next_step}.",
    }  # fmt: skip
    rows = [f"<dt>{name}</dt><dd>{_safe(text)}</dd>" for name, text in facts.items() if text]
    rows += [f"<dt>Look</dt><dd>{_command(text)}</dd>" for text in commands_of(screen)]
    rows.append(f"<dt>Runbook</dt><dd>{_link(screen.runbook)}</dd>")
    yield f"<dl>{''.join(rows)}</dl>\n"
    if screen.iterations:
        yield _section("Iteration times", times_chart(screen.iterations), _marks(screen))
    reasons = screen.verdict.explanation
    if reasons is not None and reasons.path:
        texts = [printable(one) for one in path_texts(reasons, names_of(screen))]
        yield _section("Who waited for whom", chain_chart(texts), head_text(reasons).capitalize())
    yield f"<h2>Evidence</h2><p>{_safe(screen.verdict.evidence)}</p>\n"
    others = alternatives_of(screen.verdict, names_of(screen))
    if rows := [f"<dt>{_safe(what)}?</dt><dd>{_safe(text)}</dd>" for what, text in others]:
        yield f"<h2>Or is it …</h2><dl>{''.join(rows)}</dl>\n"
    begin = [(screen.verdict.iterations[0], screen.verdict.kind)]
    for title, chart, legend in numerics_charts(screen.numerics, begin):
        yield _section(title, chart, legend)
    if screen.cells:
        ranks = screen.verdict.suspects[0].ranks if screen.verdict.suspects else ()
        chart = heat_map(screen.cells, screen.bin_ranks, ranks)
        shared = f" A row is {screen.bin_ranks} ranks, and shows the longest." if screen.bin_ranks > 1 else ""
        yield _section("Time between operators, rank by iteration", chart, f"{extremes_of(screen.cells)}.{shared}")
    yield from _bandwidth(screen)
    yield _state(screen)


def _section(title: str, chart: str, text: str) -> str:
    return f"<h2>{_safe(title)}</h2>{chart}<p class='dim'>{_safe(text)}</p>\n"


def _command(text: str) -> str:
    return f"<code>{_safe(text)}</code>" if text.startswith("irregulars ") else _safe(text)


def _link(target: str) -> str:
    """Return a link where it is a URL; a path in the repository leads nowhere from here."""
    return f'<a href="{_safe(target)}">{_safe(target)}</a>' if target.startswith("http") else _safe(target)


def _marks(screen: Screen) -> str:
    _, has_marks, text = times_text(screen).partition("; median ")
    if not has_marks:
        return f"{times_text(screen)}."
    return f"Red: with this cause; yellow: irregular otherwise; grey: regular; median {text}."


def _bandwidth(screen: Screen) -> Iterator[str]:
    direction = "received" if f" {'received'} at most" in screen.nic else "sent"
    if any(one.direction == direction for one in screen.rate_samples):
        chart = rate_chart(screen.rate_samples, direction)
        legend = f"Red: the accused NIC; blue: the median of all others, within their least and most. {screen.nic}."
        yield _section(f"What NICs {direction}", chart, legend)


def _state(screen: Screen) -> str:
    texts = [gpu_text(one, screen.gpu_median_mhz) for one in screen.gpus]
    texts += [others_text(screen)] if screen.others else []
    texts.append(earlier_text(screen.earlier, screen.verdict, screen.recording is not None))
    rows = "".join(f"<p>{_safe(text)}</p>" for text in texts)
    missing = "".join(f"<p class='dim'>Not told: {_safe(text)}</p>" for text in screen.missing)
    return f"<h2>State and history</h2>{rows}{missing}\n"
