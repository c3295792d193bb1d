"""Draw sentences of the README and the pages at random, for a reader who holds each against the product.

    python -m tests.infra.docs.claims --seed 7 --count 40

Headings, code, tables and pictures are left out. Each page has its share by its number of sentences.
"""

from __future__ import annotations

import argparse
import random
import re
from pathlib import Path
from typing import Final, NamedTuple

_ROOT: Final = Path(__file__).resolve().parents[3]
_NO_PROSE: Final = re.compile(r"^\s*(?:#|\||<|!\[|>|---)|^\s*$|^ {4}")
_END: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\[])")
_LEAST_WORDS: Final = 6  # shorter ones are labels


class Claim(NamedTuple):
    """A sentence, and the line in which its paragraph begins."""

    page: str
    line: int
    text: str


def claims_of(page: str, text: str) -> list[Claim]:
    r"""Return the sentences of a page in Markdown.

    >>> [one.text for one in claims_of("a.md", "# Head\n\nOne rank is named here, and\nno other. Yes.")]
    ['One rank is named here, and no other.']
    """
    found: list[Claim] = []
    paragraph: list[str] = []
    first, is_code = 0, False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        is_fence = line.lstrip().startswith("```")
        is_code ^= is_fence
        begins_item = bool(re.match(r"\s*(?:[*-]|\d+\.) ", line))
        if is_code or is_fence or begins_item or _NO_PROSE.match(line):
            sentences = _END.split(" ".join(paragraph))
            found += [Claim(page, first, one) for one in sentences if len(one.split()) >= _LEAST_WORDS]
            paragraph = []
        if not (is_code or is_fence or _NO_PROSE.match(line)):
            first = first if paragraph else number
            paragraph.append(line.strip())
    return found


def main() -> None:
    """Print the drawn sentences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=40)
    given = parser.parse_args()
    pages = [_ROOT / "README.md", *sorted((_ROOT / "infra" / "docs").glob("*.md"))]
    claims = [one for page in pages for one in claims_of(page.relative_to(_ROOT).as_posix(), page.read_text("utf-8"))]
    for number, one in enumerate(random.Random(given.seed).sample(claims, given.count), 1):
        print(f"{number}. {one.page}:{one.line}  {one.text}")


if __name__ == "__main__":
    main()
