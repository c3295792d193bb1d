"""The screen as one HTML file: nothing is fetched, no script runs, every text is escaped (job names are input)."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Final

from irregulars.infra.showing.chart_style import CHARTS, DARK, LIGHT
from irregulars.infra.showing.charts import chain_chart, extremes_of, heat_map, rate_chart, times_chart
from irregulars.infra.showing.screen import Screen
from irregulars.infra.showing.text_page import (
    chain_texts,
    commands_of,
    cost_text,
    device_text,
    earlier_text,
    finding_text,
    gpu_text,
    others_text,
    since_text,
    times_text,
    title_text,
    without_text,
)
from irregulars.printing import printable

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
    """Return what stands under the page's title, for pages that have a head and a style of their own."""
    return "".join(_body(screen))


def _safe(text: object) -> str:
    return escape(printable(text))


def _body(screen: Screen) -> Iterator[str]:
    yield from _facts(screen)
    if screen.iterations:
        yield _section("Iteration times", times_chart(screen.iterations), _marks(screen))
    if screen.chain is not None:
        head = f"In iteration {screen.chain.iteration}, from the symptom to the cause."
        texts = [printable(one) for one in chain_texts(screen, screen.chain)]
        yield _section("Who waited for whom", chain_chart(texts), head)
    yield f"<h2>Evidence</h2><p>{_safe(screen.verdict.evidence)}</p>\n"
    yield _alternatives(screen)
    if screen.cells:
        ranks = screen.verdict.suspects[0].ranks if screen.verdict.suspects else ()
        chart = heat_map(screen.cells, screen.bin_ranks, ranks)
        shared = f" A row is {screen.bin_ranks} ranks, and shows the longest." if screen.bin_ranks > 1 else ""
        yield _section("Time between operators, rank by iteration", chart, f"{extremes_of(screen.cells)}.{shared}")
    yield from _bandwidth(screen)
    yield _state(screen)


def _section(title: str, chart: str, text: str) -> str:
    return f"<h2>{_safe(title)}</h2>{chart}<p class='dim'>{_safe(text)}</p>\n"


def _facts(screen: Screen) -> Iterator[str]:
    facts = {
        "Device": device_text(screen), "Since": since_text(screen), "Cost": cost_text(screen),
        "Without": without_text(screen), "Do": f"{screen.next_step}.",
    }  # fmt: skip
    rows = [f"<dt>{name}</dt><dd>{_safe(text)}</dd>" for name, text in facts.items() if text]
    rows += [f"<dt>Look</dt><dd>{_command(text)}</dd>" for text in commands_of(screen)]
    rows.append(f"<dt>Runbook</dt><dd>{_link(screen.runbook)}</dd>")
    yield f"<dl>{''.join(rows)}</dl>\n"


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


def _alternatives(screen: Screen) -> str:
    rows = [f"<dt>{_safe(one.what)}?</dt><dd>{_safe(finding_text(one))}</dd>" for one in screen.alternatives]
    return f"<h2>Or is it …</h2><dl>{''.join(rows)}</dl>\n" if rows else ""


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
