"""The screen as one HTML file, and charts as inline SVG: for `irregulars show --html` and for the console's pages.

Nothing is fetched, no script runs, every text is escaped (job names are input). Colours are classes of the style
sheet, so that light and dark follow the reader; each chart has a title for readers who don't see it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from typing import Final

from irregulars.infra.showing.found import Cell, Iteration, RateSample, Screen, median_of, span_of
from irregulars.infra.showing.numerics import QUANTITIES, Band, standing_out
from irregulars.infra.showing.text_page import (
    checks_of,
    earlier_text,
    facts_of,
    gpu_text,
    headline,
    in_bars,
    names_of,
    others_text,
    times_text,
)
from irregulars.infra.showing.transfers import TRANSFER_KINDS, Way
from irregulars.messages.judgements import Verdict
from irregulars.messages.kinds import STANDSTILLS
from irregulars.printing import printable
from irregulars.sinks.advice import alternatives_of, command_to_run, head_text, path_texts, unended_text
from irregulars.words import duration, name_ranks, percent, rate, span

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

# Classes that charts use. Text stands outside of what is stretched, so it has its size at any width.
CHARTS: Final = """
.plot{display:grid;grid-template-columns:max-content 1fr;gap:0 8px;margin:0}.plot svg{display:block}
.plot .shapes{width:100%;overflow:hidden}.plot .below{grid-column:2;display:flex;justify-content:space-between}
.plot,.plot text{font:12px/1.5 system-ui,sans-serif;color:var(--dim);fill:var(--dim)}
.plot text.strong{fill:var(--cause);font-weight:600}
.chain{list-style:none;margin:0;padding:0}.chain li{border:1px solid var(--line);border-radius:5px;padding:4px 10px;
background:var(--box)}.chain li+li{margin-top:16px;position:relative}.chain li+li::before{content:"\\2193";
position:absolute;top:-19px;left:14px;color:var(--dim)}.chain li.cause{border-color:var(--cause);border-width:2px}
.usual{fill:var(--usual)}.odd{fill:var(--odd)}.cause{fill:var(--cause)}
.own,.others{fill:none;stroke:var(--own);stroke-width:1.6;vector-effect:non-scaling-stroke}.others{stroke:var(--others)}
.dot{stroke:var(--cause);stroke-width:6;stroke-linecap:round;vector-effect:non-scaling-stroke}
.band{fill:var(--band)}.heat0{fill:var(--h0)}.heat1{fill:var(--h1)}.heat2{fill:var(--h2)}
.heat3{fill:var(--h3)}.heat4{fill:var(--h4)}.heat5{fill:var(--h5)}
"""


def themed() -> str:
    """Return the colours for pages with a switch: as the system has it, unless the root names a theme."""
    return (
        f":root{{color-scheme:light;{LIGHT}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{DARK}}}}}\n"
        f":root[data-theme=dark]{{color-scheme:dark;{DARK}}}\n{CHARTS}"
    )


_WIDTH: Final = 640  # of the shapes of a chart, which a page stretches
_SMALL_WIDTH: Final = 180
_SMALL_HEIGHT: Final = 30
_MOST_BARS: Final = 600
_LOG_FROM: Final = 20.0  # highest over lowest value from which on a scale is logarithmic
_LEVELS: Final = 6
_STANDING_SHOWN: Final = 12
_FULL_RATIO: Final = 1.5  # to the median: the least that gets the strongest colour
_OFF_SCALE: Final = 3.0  # a regular time above so many times the longest irregular or usual one is cut: warm-up
_LONG_NAME: Final = 30  # characters above which a name may break: its column would be as wide
_LINE: Final = 15.0  # of labels, px

Tell = Callable[[float], str]  # writes a value of a cell
Label = tuple[float, str, str]  # height at which it is to stand, its class, and its text


def _plot(height: float, title: str, shapes: Iterable[str], labels: Sequence[Label], below: Sequence[str]) -> str:
    """Return a chart: labels at its left, shapes that are stretched to the width, and texts below, left to right."""
    # About 7 px for a letter of 12 px: texts can't be measured here.
    wide = 7 * max((len(text) for _, _, text in labels), default=0) + 2
    side = "".join(
        f'<text x="{wide}" y="{y:.1f}" text-anchor="end" class="{kind}">{escape(text)}</text>'
        for y, kind, text in labels
    )
    told = "".join(f"<span>{escape(text)}</span>" for text in below)
    return (
        f'<figure class="plot"><svg width="{wide}" height="{height:.0f}" aria-hidden="true">{side}</svg>'
        f'<svg class="shapes" viewBox="0 0 {_WIDTH} {height:.0f}" height="{height:.0f}" preserveAspectRatio="none" '
        f'role="img" aria-label="{escape(title)}"><title>{escape(title)}</title>{"".join(shapes)}</svg>'
        f'<figcaption class="below">{told}</figcaption></figure>'
    )


def _scale(height: float, top: str, bottom: str = "0") -> list[Label]:
    """Return the labels of a scale that begins at the bottom."""
    return [(12.0, "note", top), (height - 1, "note", bottom)]


def _spaced(wanted: Iterable[Label]) -> list[Label]:
    """Leave out labels that would stand over one another; the first ones stay."""
    kept: list[Label] = []
    for one in wanted:
        if all(abs(one[0] - other[0]) >= _LINE for other in kept):
            kept.append(one)
    return kept


def _rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> str:
    shape = (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.3):.2f}" height="{max(height, 0):.2f}" class="{kind}"'
    )
    return f"{shape}><title>{escape(title)}</title></rect>" if title else f"{shape}/>"


def times_chart(iterations: Sequence[Iteration], hang: Verdict | None = None) -> str:
    """Draw a bar for each iteration (of very many, for the longest of some), irregular ones marked.

    The scale ends at three times the longest irregular or the usual time: a first iteration that compiled would leave
    no room for the others. `hang`: a verdict whose last iteration never ended; its bar is as tall as the chart.
    """
    height = 132.0
    unended = None if hang is None else hang.iterations[1] - 1
    bars = in_bars(iterations, _MOST_BARS)
    ended = [one for one in iterations if one.iteration != unended] or list(iterations)
    high = max([median_of([one.elapsed_ns for one in ended]), *(one.elapsed_ns for one in ended if one.is_irregular)])
    most = max(min(_OFF_SCALE * high, max(one.elapsed_ns for one in ended)), 1.0)
    step = _WIDTH / len(bars)
    parts = []
    for at, bar in enumerate(bars):
        one = max(bar, key=lambda one: one.elapsed_ns)
        hung = hang if any(o.iteration == unended for o in bar) else None
        kind = _colour(any(o.has_cause for o in bar) or hung is not None, any(o.is_irregular for o in bar))
        tall = height * (1.0 if hung else min(one.elapsed_ns / most, 1.0))
        title = unended_text(hung) if hung else f"iteration {one.iteration}: {duration(one.elapsed_ns)}"
        parts.append(_rect(at * step, height - tall, step * 0.85, tall, kind, title))
    shown = span((iterations[0].iteration, iterations[-1].iteration + 1))
    below = (f"iteration {iterations[0].iteration}", str(iterations[-1].iteration))
    return _plot(height, f"Time of {shown}", parts, _scale(height, duration(most)), below)


def _colour(has_cause: bool, is_irregular: bool) -> str:
    return "cause" if has_cause else "odd" if is_irregular else "usual"


def heat_map(cells: Sequence[Cell], bin_ranks: int, accused: Sequence[int]) -> str:
    """Draw how long ranks worked between their operators: a row for each bin of ranks, a column an iteration."""
    bins, columns = (sorted({getattr(one, name) for one in cells}) for name in ("bin", "iteration"))
    tall, wide = min(16.0, max(4.0, 480 / len(bins))), _WIDTH / len(columns)
    row_of, column_of = ({value: at for at, value in enumerate(values)} for values in (bins, columns))
    low = median_of([one.work_ns for one in cells])
    high = max(max(one.work_ns for one in cells), _FULL_RATIO * low, 1.0)  # so that noise looks calm
    own = {rank // bin_ranks for rank in accused}
    parts = [
        _rect(
            column_of[one.iteration] * wide, row_of[one.bin] * tall, wide, tall,
            f"heat{_level(one.work_ns, low, high)}",
            f"rank {one.rank}, iteration {one.iteration}: {duration(one.work_ns)}",
        )
        for one in cells
    ]  # fmt: skip

    def label(number: int) -> Label:
        first = number * bin_ranks
        shown = str(first) if bin_ranks == 1 else f"{first}-{first + bin_ranks - 1}"
        y = row_of[number] * tall + tall * 0.5 + 4
        return (y, "strong", f"▸ {shown}") if number in own else (y, "note", shown)

    labels = _spaced(map(label, [*(one for one in bins if one in own), *bins]))
    title = f"Time between operators by rank and iteration, {duration(low)} to {duration(high)}"
    below = (f"iteration {columns[0]}", str(columns[-1]))
    chart = _plot(max(len(bins) * tall, _LINE), title, parts, labels, below)
    return chart + _colour_scale(duration(low), duration(high))


def _colour_scale(low: str, high: str) -> str:
    """Return the scale of a heat map's colours."""
    steps = "".join(_rect(level * 14, 0, 14, 10, f"heat{level}") for level in range(_LEVELS))
    scale = f'<svg width="{14 * _LEVELS}" height="10" aria-hidden="true">{steps}</svg>'
    return f'<p class="dim">{escape(low)} {scale} {escape(high)}</p>'


def ways_chart(
    ways: Sequence[Way], title: str = "Transfers by way and iteration", name: str = "iteration", tell: Tell = duration
) -> str:
    """Draw how many times the usual time of its kind each way took; a row a way, a column an iteration or another."""
    high = max(_FULL_RATIO, *(way.ratio for way in ways))  # a single stall would leave no colour for the others

    def level(way: Way, took_ns: float) -> int:
        return _level(took_ns / way.usual_ns if way.usual_ns else 1.0, 1.0, high)

    chart = _rows_chart(title, ways, level, name, tell)
    return chart + _colour_scale("as usual", f"{high:.1f} times that or more")


def pauses_chart(causes: Sequence[Way]) -> str:
    """Draw how much longer than usual ranks paused; a row a cause, a column an iteration."""
    high = max(took_ns - cause.usual_ns for cause in causes for took_ns in cause.took_ns.values())
    chart = _rows_chart("Pauses", causes, lambda cause, took_ns: _level(took_ns - cause.usual_ns, 0.0, high))
    return chart + _colour_scale("as usual", f"{duration(high)} more")


def _rows_chart(
    title: str,
    rows: Sequence[Way],
    level: Callable[[Way, float], int],
    name: str = "iteration",
    tell: Tell = duration,
) -> str:
    columns = sorted({iteration for row in rows for iteration in row.took_ns})
    tall, wide = 16.0, _WIDTH / len(columns)
    parts, labels = [], []
    for at, row in enumerate(rows):
        labels.append((at * tall + 12, "strong" if row.is_accused else "note", f"{'▸ ' * row.is_accused}{row.name}"))
        for column, iteration in enumerate(columns):
            if iteration in row.took_ns:
                took_ns = row.took_ns[iteration]
                told = f"{row.name}, {name} {iteration}: {tell(took_ns)} (usual {tell(row.usual_ns)})"
                parts.append(_rect(column * wide, at * tall, wide, tall, f"heat{level(row, took_ns)}", told))
    return _plot(len(rows) * tall, title, parts, labels, (f"{name} {columns[0]}", str(columns[-1])))


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
    height, top = 130.0, 4.0
    first, last = bands[0].iteration, max(bands[-1].iteration, bands[0].iteration + 1)
    known = [v for one in bands for v in (one.lowest, one.middle, one.highest) if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(known), max(known)
    is_log = low > 0 and high > _LOG_FROM * low
    least, most = (math.log(low), math.log(high)) if is_log else (low, high)

    def across(iteration: int) -> float:
        return 3 + (_WIDTH - 6) * (iteration - first) / (last - first)

    def up(value: float) -> float:  # a value that is not finite is drawn at the edge
        part = 0.5 if most == least else ((math.log(value) if is_log else value) - least) / (most - least)
        return height - top - (height - 2 * top) * min(max(part, 0.0), 1.0)

    def line(name: str, own: Iterable[Band]) -> str:
        return " ".join(f"{across(one.iteration):.1f},{up(getattr(one, name)):.1f}" for one in own)

    parts = [
        f'<polygon points="{line("highest", bands)} {line("lowest", reversed(bands))}" class="band"/>',
        f'<polyline points="{line("middle", bands)}" class="others"/>',
        *(
            _rect(across(at) - 0.6, 0, 1.2, height, "odd", f"{kind}, from iteration {at} on")
            for at, kind in marks
            if first <= at <= last
        ),
        *(
            f'<path d="M{across(one.iteration):.1f} {up(one.value):.1f}h0.01" class="dot"><title>'
            f"rank {one.rank}, iteration {one.iteration}: {one.value:.6g} (median {one.middle:.6g})</title></path>"
            for one in out
        ),
    ]
    scale = ", logarithmic" if is_log else ""
    named = f"{title}, {low:.4g} to {high:.4g}{scale}: {span((first, bands[-1].iteration + 1))}"
    below = (f"iteration {first}", str(bands[-1].iteration))
    return _plot(height, named, parts, _scale(height, f"{high:.4g}", f"{low:.4g}"), below)


def small_line(iterations: Sequence[Iteration], usual_ns: float, text: str) -> str:
    """Draw iteration times as one small line of a table, with the usual time as a level; `text` says the same."""
    most = max(max(one.elapsed_ns for one in iterations), 1)
    step = _SMALL_WIDTH / max(len(iterations), 40)
    bars: dict[str, list[str]] = {"usual": [], "odd": [], "cause": []}
    for at, one in enumerate(iterations):
        kind = _colour(one.has_cause, one.is_irregular is True)
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


def chain_list(texts: Sequence[str]) -> str:
    """List hand-overs and the cause, each below the one that waited for it."""
    marks = ["", *[""] * (len(texts) - 2), ' class="cause"'][-len(texts) :]
    rows = (f"<li{mark}>{escape(text)}</li>" for mark, text in zip(marks, texts, strict=True))
    return f'<ol class="chain">{"".join(rows)}</ol>'


def rate_chart(samples: Sequence[RateSample], direction: str, lasted: Sequence[int]) -> str:
    """Draw the peaks of the accused NIC in one direction over the range and the median of all others.

    `lasted`: begin of the verdict's iterations and, unless they go on, their end, ns; a line each, where samples go
    on before and behind.
    """
    own = [one for one in samples if one.direction == direction]
    height = 132.0
    most = max((v for one in own for v in (one.own, one.others_most) if math.isfinite(v)), default=1.0) or 1.0
    # One sample alone has no span: 1 ns keeps the division below from failing.
    first, last = own[0].time_ns, max(own[-1].time_ns, own[0].time_ns + 1)

    def place(one: RateSample, value: float) -> str:
        return f"{_WIDTH * (one.time_ns - first) / (last - first):.1f},{height - (height - 2) * value / most:.1f}"

    beside = [one for one in own if math.isfinite(one.others_median)]
    band = [place(one, one.others_most) for one in beside] + [
        place(one, one.others_least) for one in reversed(beside)
    ]
    parts = [
        f'<polygon points="{" ".join(band)}" class="band"/>',
        f'<polyline points="{" ".join(place(one, one.others_median) for one in beside)}" class="others"/>',
        f'<polyline points="{" ".join(place(o, o.own) for o in own if math.isfinite(o.own))}" class="own"/>',
        *(
            _rect(_WIDTH * (at - first) / (last - first) - 0.6, 0, 1.2, height, "odd", f"it {word}")
            for at, word in zip(lasted, ("began", "ended"), strict=False)
            if first < at < last
        ),
    ]
    title = f"Peaks of what NICs {direction}: the accused one, and all others"
    return _plot(height, title, parts, _scale(height, rate(most)), ("0 s", duration(last - first)))


_STYLE: Final = f"""
:root{{color-scheme:light dark;{LIGHT}}}
@media (prefers-color-scheme:dark){{:root{{{DARK}}}}}
*{{box-sizing:border-box}}body{{margin:0 auto;padding:24px 16px;max-width:800px;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}}h1{{font-size:20px;margin:0 0 4px}}
h2{{font-size:15px;margin:26px 0 6px;padding-top:10px;border-top:1px solid var(--line)}}
p{{margin:4px 0}}.dim{{color:var(--dim)}}
dl{{display:grid;grid-template-columns:84px 1fr;gap:4px 10px;margin:12px 0}}dt{{color:var(--dim)}}dd{{margin:0}}
code{{font:13px ui-monospace,monospace;background:var(--box);padding:1px 4px;border-radius:3px}}
table{{border-collapse:collapse}}.name{{white-space:nowrap}}
th,td{{text-align:left;padding:2px 14px 2px 0;vertical-align:top}}
.copy{{display:none}}{CHARTS}"""

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def page_of(screen: Screen) -> str:
    """Return the page."""
    title = _safe(headline(screen))
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
    # The answer (its cost, the next step, who waited for whom), then charts, then the history
    answer, charts = "".join(_answer(screen)), "".join(_charts(screen))
    return f'<div class="answer">{answer}</div>\n<div class="charts">{charts}</div>\n{_state(screen)}'


def _safe(text: object) -> str:
    return escape(printable(text))


def unbroken(text: str) -> str:
    """Escape a text, and keep names in one line that browsers would break at their hyphens.

    >>> unbroken("GPU 1 on node-1")
    'GPU 1 on <span class="name">node-1</span>'
    """
    words = (one if "-" not in one or len(one) > _LONG_NAME else f'<span class="name">{one}</span>'
             for one in escape(text).split(" "))  # fmt: skip
    return " ".join(words)


def _answer(screen: Screen) -> Iterator[str]:
    rows = [f"<dt>{name}</dt><dd>{_safe(text)}</dd>" for name, text in facts_of(screen).items()]
    rows += [f"<dt>{name}</dt><dd>{_command(text)}</dd>" for name, text in checks_of(screen)]
    runbook = _safe(screen.runbook)  # no link where it is a path in the repository: it leads nowhere from here
    link = f'<a href="{runbook}">{runbook}</a>' if screen.runbook.startswith(("http", "/")) else runbook
    rows.append(f"<dt>Runbook</dt><dd>{link}</dd>")
    yield f"<dl>{''.join(rows)}</dl>\n"
    reasons = screen.verdict.explanation
    if reasons is not None and reasons.path:
        texts = [printable(one) for one in path_texts(reasons, names_of(screen))]
        yield f"<h2>Who waited for whom</h2><p class='dim'>{_safe(head_text(reasons).capitalize())}</p>"
        yield f"{chain_list(texts)}\n"
    if screen.device is not None:  # else the device's line has said it
        yield f"<h2>Evidence</h2><p>{_safe(screen.verdict.evidence)}</p>\n"
    others = alternatives_of(screen.verdict, names_of(screen))
    if rows := [f"<dt>{_safe(what)}?</dt><dd>{_safe(text)}</dd>" for what, text in others]:
        yield f"<h2>Or is it …</h2><dl>{''.join(rows)}</dl>\n"


def _charts(screen: Screen) -> Iterator[str]:
    """Yield the charts that fit the verdict: standing or numbers, times, transfers or ranks' own work."""
    verdict = screen.verdict
    if screen.standing:
        yield f"<h2>Who stands where</h2>{_standing(screen)}\n"
    for title, chart, legend in numerics_charts(screen.numerics, [(verdict.iterations[0], verdict.kind)]):
        yield _section(title, chart, legend)
    if screen.iterations:
        hang = verdict if verdict.kind in STANDSTILLS else None
        told = times_text(screen)
        # Its marks ^ and ' are those of the text page: here colours take their place.
        if median := told.partition("; median ")[2]:
            told = f"Red: with this cause; yellow: irregular otherwise; grey: regular; median {median}"
        yield _section("Iteration times", times_chart(screen.iterations, hang), f"{told}.")
    if screen.ways:
        crossing = " ▸: through the accused device." if any(way.is_accused for way in screen.ways) else ""
        legend = f"How long transfers took, all partners being there, against other ways of the same kind.{crossing}"
        yield _section("Transfers, way by iteration", ways_chart(screen.ways), legend)
    if screen.cells:
        chart = heat_map(screen.cells, screen.bin_ranks, verdict.suspects[0].ranks if verdict.suspects else ())
        shared = f" A row is {screen.bin_ranks} ranks, and shows the longest." if screen.bin_ranks > 1 else ""
        yield _section("Time between operators, rank by iteration", chart, f"{extremes_of(screen.cells)}.{shared}")
    if screen.pauses:
        whose = name_ranks(verdict.suspects[0].ranks)
        legend = f"What {whose} paused for beyond usual; of several ranks, the longest."
        yield _section("Own time, cause by iteration", pauses_chart(screen.pauses), legend)
    # The direction of the NIC's line, so that text and chart show the same.
    direction = "received" if " received at most" in screen.nic else "sent"
    if screen.verdict.kind in TRANSFER_KINDS and any(one.direction == direction for one in screen.rate_samples):
        is_open = verdict.state == "open"
        lasted = span_of(screen.iterations, range(*verdict.iterations))
        chart = rate_chart(screen.rate_samples, direction, lasted[:1] if is_open else lasted)
        first = screen.verdict.suspects[0]
        kind, own = first.traits, f"of {name_ranks(first.traits.senders(first.ranks))}"
        accused = f"the accused {kind.noun}" if kind.identity[-1:] == ("nic",) else f"the NICs {own}"
        beside = any(math.isfinite(one.others_median) for one in screen.rate_samples)
        legend = f"Red: {accused}{'; blue: the median of all others, within their least and most' * beside}."
        lines = "line: where it began" if is_open else "lines: where it began and ended"
        legend += f" Yellow {lines}." if 'class="odd"' in chart else ""
        legend += f" {screen.nic}." if screen.nic else ""
        yield _section(f"What NICs {direction}", chart, legend)


def _standing(screen: Screen) -> str:
    rows = []
    for one in screen.standing[:_STANDING_SHOWN]:
        suspect = "" if one.probability is None else f"{percent(one.probability)} suspect"
        texts = (one.where, name_ranks(one.ranks), suspect, one.since)
        rows.append(f"<tr>{''.join(f'<td>{unbroken(printable(text))}</td>' for text in texts)}</tr>")
    more = len(screen.standing) - _STANDING_SHOWN
    left = f"<p class='dim'>{more} more places: {_command(command_to_run(screen.verdict))}</p>" if more > 0 else ""
    head = "<tr><th>Where</th><th>Ranks</th><th>Suspect</th><th>Since, UTC</th></tr>"
    table = f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="scroll">{table}</div>{left}'


def _section(title: str, chart: str, text: str) -> str:
    return f"<h2>{_safe(title)}</h2>{chart}<p class='dim'>{_safe(text)}</p>\n"


def _command(text: str) -> str:
    """Return a check as HTML; a command gets a button that copies it (console.js)."""
    if not text.startswith(("irregulars ", "py-spy ")):
        return _safe(text)
    return f'<code>{_safe(text)}</code> <button type="button" class="copy">Copy</button>'


def _state(screen: Screen) -> str:
    texts = [gpu_text(one, screen.gpu_median_mhz) for one in screen.gpus]
    texts += [others_text(screen)] if screen.others else []
    texts.append(earlier_text(screen))
    rows = "".join(f"<p>{_safe(text)}</p>" for text in texts)
    missing = "".join(f"<p class='dim'>Not told: {_safe(text)}</p>" for text in screen.missing)
    return f"<h2>State and history</h2>{rows}{missing}\n"
