"""Templates: Jinja with escaping always on, and the words of `irregulars show` as filters."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from irregulars.printing import printable


def make_templates(*, has_heat_map: bool) -> Environment:
    """Return the environment of all templates.

    Parameters
    ----------
    has_heat_map
        Whether the heat map's script is there; else pages show what the server draws.
    """
    environment = Environment(
        loader=PackageLoader("irregulars.infra.console"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.globals |= {"has_heat_map": has_heat_map}
    environment.filters |= {"plain": printable}
    return environment


def render(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a page."""
    page = request.app.state.templates.get_template(template)
    return HTMLResponse(page.render(request=request, **values), status)
