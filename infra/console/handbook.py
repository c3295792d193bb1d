"""The pages of ``infra/docs``, as the installed package has them: an operator on call has no checkout at hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Final

from markdown_it import MarkdownIt
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from irregulars.infra.console.rendering import render

_COMMENT: Final = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_NO_WORD: Final = re.compile(r"[^\w\- ]")
_PAGE: Final = re.compile(r"([\w-]+)\.md(#.*)?")


async def handbook_page(request: Request) -> Response:
    """Show a page, the index where none is named."""
    title, text = read_page(request.path_params.get("name", "index"))
    return render(request, "handbook.html", title=title, text=text)


# Pages are part of the package: they do not change while the process runs.
@cache
def read_page(name: str) -> tuple[str, Markup]:
    """Return title and HTML of a page; raises `HTTPException` where there is none of the name."""
    # The route lets no slash into `name`, so it can't leave the folder.
    place = files("irregulars.infra").joinpath("docs", f"{name}.md")
    if not place.is_file():
        raise HTTPException(404, f"No page of the name {name!r} ships.")
    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = reader.parse(_COMMENT.sub("", place.read_text("utf-8")))
    # Name headings as GitHub does, let links lead to pages of the console, and leave out what is not served.
    for at, one in enumerate(tokens):
        if one.type == "heading_open":
            one.attrSet("id", _NO_WORD.sub("", tokens[at + 1].content.strip().lower()).replace(" ", "-"))
        for inner in one.children or ():
            if inner.type == "link_open":
                target = str(inner.attrGet("href"))
                page = _PAGE.fullmatch(target)
                if page is not None:
                    inner.attrSet("href", f"/docs/{page[1]}{page[2] or ''}")
                elif not target.startswith(("#", "http")):  # a file of the repository
                    inner.attrs.pop("href")
            elif inner.type == "image":
                inner.type, inner.tag = "text", ""
    title = next(tokens[at + 1].content for at, one in enumerate(tokens) if one.type == "heading_open")
    return title, Markup(reader.renderer.render(tokens, reader.options, {}))


ROUTES: Final[Sequence[BaseRoute]] = (
    Route("/docs", handbook_page, name="handbook"),
    Route("/docs/{name}", handbook_page),
)
