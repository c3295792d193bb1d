"""Names of jobs, hosts and verdicts as pieces of an address, with whatever characters they have."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from starlette.convertors import PathConvertor, register_url_convertor

NAME: Final = "irregulars_name"
"""In a route, ``{job:irregulars_name}``: a name that `piece_of` wrote, slashes and line breaks included."""

_DOTS: Final = (".", "..")


def piece_of(name: str) -> str:
    """Return a name as one piece of an address.

    Browsers take a piece ``.`` or ``..`` for a step up, encoded or not, so these get a slash, which the route drops.

    >>> piece_of("a/b"), piece_of("..")
    ('a%2Fb', '..%2F')
    """
    return quote(f"{name}/" if name in _DOTS else name, safe="")


class _Name(PathConvertor):
    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value[:-1] if value[:-1] in _DOTS and value[-1] == "/" else value


register_url_convertor(NAME, _Name())
