"""The native hook as the session sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from irregulars.producers.torch_hook.hooks.native_library import NativeLibrary
from irregulars.producers.torch_hook.hooks.ring import CAPACITY, Ring


class NativeHook:
    """Hooks in C++, and the ring that they write into.

    Parameters
    ----------
    path
        Of the library.
    capacity
        Rows of the ring.
    """

    name = "native"

    def __init__(self, path: Path, capacity: int = CAPACITY) -> None:
        self._library = NativeLibrary(path, capacity)
        self.ring: Ring = self._library

    def attach(self, process_group: Any, name: str, number: int, device: str) -> bool:
        """Add the hooks to a process group; return whether it worked."""
        return self._library.attach(name, number, device)

    def enable(self, is_on: bool) -> None:
        """Switch recording on or off."""
        self._library.enable(is_on)

    def detach(self) -> None:
        """Do nothing: what hangs on the groups is no object of Python's, and another thread may be using it."""

    def set_iteration(self, iteration: int) -> None:
        """Say which iteration operators belong to from now on."""
        self._library.set_iteration(iteration)

    def errors(self) -> tuple[int, str]:
        """Count what went wrong in the hook, with the text of the first."""
        return self._library.errors()

    def ask_devices(self) -> None:
        """Do nothing: `take` of the ring asks them."""
