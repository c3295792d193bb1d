"""Draws sentences of the pages by chance, each of which is then tried by hand: ``python -m tests.claims --seed N``.

A sentence of a page counts once somebody else has tried it. Chosen by hand, they would be those that are known to
hold, so a seed draws them, from the README and all pages of ``infra/docs``. Prose alone is drawn:
tables and blocks of code are made, or run, by tests of their own.
"""

import argparse
import random
import re
from pathlib import Path

_ROOT = Path(__file__).parents[1]
# A sentence ends where another begins, or with its paragraph: "e.g. 5" and "infra/docs" end none.
_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z*`\[])")
_NO_PROSE = re.compile(r"^\s*(#|\||>?\s*$|!\[|<|    \S)")
_LEAST_WORDS = 8


def sentences(page: str) -> list[tuple[int, str]]:
    """Each sentence of prose in the Markdown ``page``, with the line at which its paragraph begins."""
    found: list[tuple[int, str]] = []
    begun, lines, is_code = 1, [], False
    for number, line in enumerate([*page.splitlines(), ""], start=1):
        is_fence = line.lstrip().startswith("```")
        is_code ^= is_fence
        ends = is_code or is_fence or _NO_PROSE.match(line) is not None
        if lines and (ends or re.match(r"\s*([*-]|\d+\.) ", line)):
            found += [(begun, part) for part in _END.split(" ".join(lines)) if len(part.split()) >= _LEAST_WORDS]
            lines = []
        if not ends:
            begun = begun if lines else number
            lines.append(line.strip())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--number", type=int, default=40, help="of sentences drawn")
    arguments = parser.parse_args()
    pages = [_ROOT / "README.md", *sorted((_ROOT / "infra/docs").rglob("*.md"))]
    claims = [(page, line, text) for page in pages for line, text in sentences(page.read_text())]
    print(f"{arguments.number} of {len(claims)} sentences, seed {arguments.seed}")
    for page, line, text in sorted(random.Random(arguments.seed).sample(claims, arguments.number)):
        print(f"{page.relative_to(_ROOT)}:{line}: {text}")


if __name__ == "__main__":
    main()
