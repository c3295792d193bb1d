"""Values of the command line that need no more than they are, without pydantic.

Newer versions of Typer convert each value, and each that was not given, by a model of pydantic: importing that and
making the models takes 0.15 s, more than half of what the command line needs before a command begins.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class PlainValue:
    """Stands for what converts the values of one parameter, and asks that only where there is something to convert.

    Parameters
    ----------
    parameter
        An option or argument of Typer, of a version that has ``get_runtime_param``.
    """

    def __init__(self, parameter: Any) -> None:
        self._descriptor = parameter.type_descriptor
        self._converter = parameter.get_runtime_param  # as it was before `spare_models`

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value as its type, as Typer would; errors are Typer's."""
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if isinstance(value, str) and self._is_readable_path(value):
            return Path(value)
        return self._converter().coerce(value, param=param, ctx=ctx)

    def _is_readable_path(self, value: str) -> bool:
        """Tell whether a path is wanted, of which Typer would check nothing that isn't so."""
        info = self._descriptor.parameter_info
        is_checked = info.writable or info.resolve_path or not (info.file_okay and info.dir_okay)
        is_special = is_checked or info.parser is not None or info.path_type is not None
        return self._descriptor.annotation is Path and not is_special and _can_be_read(value)


def _can_be_read(path: str) -> bool:
    try:
        return os.access(path, os.R_OK)
    except ValueError:  # half of a surrogate pair, or a zero byte: no file has such a name
        return False


def spare_models(parameters: list[Any]) -> list[Any]:
    """Let the parameters of a command take plain values as they are; older versions of Typer do so by themselves."""
    for one in parameters:
        if hasattr(one, "get_runtime_param") and not isinstance(one.get_runtime_param, _Giving):
            one.get_runtime_param = _Giving(PlainValue(one))
    return parameters


class _Giving:
    """A function that returns the same value always, and is told from others by its type."""

    def __init__(self, value: PlainValue) -> None:
        self._value = value

    def __call__(self) -> PlainValue:
        return self._value
