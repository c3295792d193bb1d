"""Colours of pages and charts, light and dark, as CSS: one place for the page of one verdict and for the console."""

from __future__ import annotations

from typing import Final

LIGHT: Final = (
    "--bg:#fff;--fg:#1b1f24;--dim:#57606a;--line:#d0d7de;--usual:#8c959f;--odd:#bf8700;--cause:#cf222e;--own:#cf222e;"
    "--others:#0969da;--band:#0969da22;--box:#f6f8fa;--h0:#eaeef2;--h1:#fae3b4;--h2:#f5b95f;--h3:#e8803a;--h4:#cf4a2e;"
    "--h5:#8e1519"
)
"""Variables of a light page."""

DARK: Final = (
    "--bg:#0d1117;--fg:#e6edf3;--dim:#9198a1;--line:#30363d;--usual:#6e7681;--odd:#d29922;--cause:#f85149;"
    "--own:#f85149;--others:#58a6ff;--band:#58a6ff22;--box:#161b22;--h0:#1c2128;--h1:#4d3a12;--h2:#86601a;--h3:#bd7a26;"
    "--h4:#e8803a;--h5:#ffb77a"
)
"""The same of a dark one."""

CHARTS: Final = """
text{font:11px system-ui,sans-serif;fill:var(--dim)}text.strong{fill:var(--cause);font-weight:600}
text.line{font-size:13px;fill:var(--fg)}.usual{fill:var(--usual)}.odd{fill:var(--odd)}.cause{fill:var(--cause)}
.box{fill:var(--box);stroke:var(--line)}.box-cause{fill:var(--box);stroke:var(--cause);stroke-width:1.5}
.arrow{fill:none;stroke:var(--dim)}.own{fill:none;stroke:var(--own);stroke-width:1.6}.band{fill:var(--band)}
.others{fill:none;stroke:var(--others)}.heat0{fill:var(--h0)}.heat1{fill:var(--h1)}.heat2{fill:var(--h2)}
.heat3{fill:var(--h3)}.heat4{fill:var(--h4)}.heat5{fill:var(--h5)}
"""
"""Classes that charts use (`charts.py`)."""


def themed() -> str:
    """Return the colours for pages with a switch: as the system has it, unless the root says which theme it is."""
    return (
        f":root{{color-scheme:light;{LIGHT}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{DARK}}}}}\n"
        f":root[data-theme=dark]{{color-scheme:dark;{DARK}}}\n{CHARTS}"
    )
