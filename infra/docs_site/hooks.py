"""Hooks that mkdocs calls while it builds the site: parts that code makes, and links that lead to pages of the site.

In the repository pages link to each other (``judgement.md#hang``) and to files that are no pages (``../../tests/…``).
On the site the second kind leads to the repository where mkdocs's setting ``repo_url`` names it, else is plain.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any, Final

from irregulars.infra.docs_site.made_parts import fill

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS: Final = "infra/docs"
_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_CODE: Final = re.compile(r"^(```[\s\S]*?^```|(?: {4}.*\n)+)|`[^`\n]+`", re.MULTILINE)
_FENCE: Final = re.compile(r"^```(\w+) [\w ]+$", re.MULTILINE)
_ON_SITE: Final = (".md", ".png", ".svg")
_NO_WORD: Final = re.compile(r"[^\w\- ]")
# On GitHub a list may follow a paragraph at once; Python-Markdown needs a blank line between them.
_LIST_AT_ONCE: Final = re.compile(r"^(?!\s*(?:[*\-]|\d+\.)\s)(\S.*)\n(?=(?:[*\-]|\d+\.) )", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name headings as GitHub does, so that one link serves both."""
    config.mdx_configs["toc"] = {"slugify": slug, "permalink": True}
    return config


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill a page, turn its links into those of the site, and its lists into lists for Python-Markdown."""
    pages = {file.src_uri for file in files}

    def link(found: re.Match[str]) -> str:
        return site_link(found, pages, config.repo_url)

    plain = _FENCE.sub(r"```\1", fill(markdown))  # a second word is for the tests that type the block
    return outside_code(plain, lambda text: _LINK.sub(link, _LIST_AT_ONCE.sub(r"\1\n\n", text)))


def site_link(found: re.Match[str], pages: set[str], repository: str | None) -> str:
    """Return one link as the site has it.

    `pages`: All pages and pictures of the site, by their names in `DOCS`. `repository`: where files that are no pages
    can be read; None: nowhere.
    """
    mark, text, target = found.groups()
    path, anchor, name = target.partition("#")
    if not path or "://" in path:
        return found[0]
    there = posixpath.normpath(posixpath.join(DOCS, path))
    own = posixpath.relpath(there, DOCS)
    if own in pages or (own.endswith(_ON_SITE) and not own.startswith("..")):  # one that is missing ends the build
        return f"{mark}[{text}]({own}{anchor}{name})"
    return text if repository is None else f"{mark}[{text}]({repository.rstrip('/')}/blob/main/{there}{anchor}{name})"


def outside_code(markdown: str, change: Any) -> str:
    """Change a text of Markdown, but for blocks of code and code within a line.

    >>> outside_code("a `a` a", lambda text: text.replace("a", "b"))
    'b `a` b'
    """
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        # No page holds a NUL, so no text can be mistaken for a place that is kept.
        return f"\x00{len(kept) - 1}\x00"

    changed: str = change(_CODE.sub(keep, markdown))
    return re.sub(r"\x00(\d+)\x00", lambda found: kept[int(found[1])], changed)


def slug(text: str, separator: str) -> str:
    """Return the anchor that GitHub gives a heading.

    >>> slug("Where do I change …?", "-"), slug("`slow_nic`: what to do", "-")
    ('where-do-i-change-', 'slow_nic-what-to-do')
    """
    return _NO_WORD.sub("", re.sub(r"<[^>]+>", "", text).strip().lower()).replace(" ", separator)
