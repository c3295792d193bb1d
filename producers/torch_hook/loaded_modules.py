"""Modules that training has loaded, or loads later, and functions in them that are replaced for a while."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def whole_module(name: str) -> ModuleType | None:
    """Return a module once all of it is there; while another thread imports it, only a part of it is.

    It is not loaded for us.
    """
    module = sys.modules.get(name)
    is_partial = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if is_partial else module


def put_back(owner: Any, name: str, ours: Any, original: Any) -> None:
    """Put a function back that ours has replaced, unless another tool has replaced ours since.

    That tool's function would be lost. It calls ours, which must do no more than call the original from now on.
    """
    if vars(owner).get(name) is ours:
        setattr(owner, name, original)
