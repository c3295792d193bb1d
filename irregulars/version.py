"""The version of the package, where a module can read it without the doors of `irregulars` itself."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
