"""Text from outside on a terminal: names come from jobs and files, and a terminal obeys their control characters."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from typing import Any, Final, TextIO

# Characters that JSON may hold unescaped and a terminal obeys: controls, signs without width, changes of the
# direction of reading; and halves of surrogate pairs, which UTF-8 can't hold.
_UNSAFE_IN_JSON: Final = re.compile("[\x7f-\x9f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_NUMBER: Final = re.compile(r"(\d) (?=(?:ns|µs|ms|s|GB/s|MB/s|GPUs?|GPU-hours)\b)")
_USUAL: Final = 80
_NARROWEST: Final = 20  # columns of a terminal that does not tell, and of the narrowest for which lines are broken


def printable(text: object) -> str:
    r"""Return a text as one line in which nothing moves a cursor, changes a colour or turns the direction of reading.

    >>> print(printable("node-\x1b[31m3\n"), printable("\ud800"), printable("nœud 3"))
    node-\x1b[31m3\n \ud800 nœud 3
    """
    told = str(text)
    if told.isprintable():
        return told
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in told)


def one_line(text: str) -> str:
    """Replace unprintable characters by spaces: names may hold line breaks or a terminal's escape sequences."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


def printable_lines(text: object) -> str:
    """Do the same with a text of several lines."""
    return "\n".join(map(printable, str(text).split("\n")))


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, in the plural where that is so.

    >>> counted(1, "fault"), counted(2000, "row"), counted(2, "batch", "batches")
    ('1 fault', '2,000 rows', '2 batches')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def broken(text: str, stream: TextIO, indent: str = "  ") -> str:
    """Break one line between words where a stream is a terminal, which would break it inside of them."""
    if not stream.isatty():
        return text
    try:
        own = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        own = 0
    # `shutil` asks the variable COLUMNS first, by which people choose the width themselves.
    width = max(_NARROWEST, shutil.get_terminal_size((own or _USUAL, 0)).columns)
    whole = _NUMBER.sub("\\1\N{NO-BREAK SPACE}", text)  # a number stays with its unit
    lines = textwrap.wrap(whole.lstrip(), width, initial_indent=text[: len(text) - len(text.lstrip())],
                          subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)  # fmt: skip
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def say(text: object) -> None:
    """Print one line on standard error, with our name before it."""
    print(broken(f"irregulars: {printable(text)}", sys.stderr), file=sys.stderr, flush=True)


def json_text(value: Any, indent: int | None = None) -> str:
    r"""Return a value as JSON that a terminal can show: as short as can be read, and the same value.

    >>> print(json_text({"host": "nœud\x9b3"}))
    {"host": "nœud\u009b3"}
    """
    written = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", written)
