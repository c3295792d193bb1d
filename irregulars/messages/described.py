"""Descriptions of a record's fields, kept with the fields: the one list of them.

JSON schemas, columns of the database and tables of the pages are made from the classes (`tests.infra.docs.fields`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def about(
    text: str, *, words: tuple[str, ...] = (), is_left_out: bool = False, known: Any = None
) -> Mapping[str, Any]:
    """Return the metadata of a field of a message.

    `text`: the description that people read, in the schema, the database and the pages. `words`: the texts that it
    may be; a reader takes a newer worker's own. `is_left_out`: whether JSON lacks it where it is None, in place of
    null. `known`: rule of a number that is NaN here, and null in JSON, where it is not known.
    """
    return MappingProxyType({"about": text, "words": words, "is_left_out": is_left_out, "known": known})
