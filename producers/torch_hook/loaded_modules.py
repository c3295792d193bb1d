"""Modules that training has loaded, or loads later: they are not loaded for us."""

from __future__ import annotations

import sys
from types import ModuleType


def whole_module(name: str) -> ModuleType | None:
    """Return a module once all of it is there; while another thread imports it, only a part of it is."""
    module = sys.modules.get(name)
    is_partial = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if is_partial else module
