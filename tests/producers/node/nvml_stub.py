"""The stub of NVML: built with the system's C compiler, and loaded so that the real `pynvml` finds it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml_stub.c")
SONAME = "libnvidia-ml.so.1"


class NvmlStub:
    """Answers of the stub, by name; see ``nvml_stub.c``."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.stub_set.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_double)
        library.stub_set.restype = None

    def reset(self, gpus: int) -> None:
        self._library.stub_reset()
        self.set(-1, count=gpus)

    def set(self, gpu: int, **values: float) -> None:
        for name, value in values.items():
            self._library.stub_set(name.encode(), gpu, value)


def build_stub(directory: Path) -> Path:
    """Compile the stub; skips the test, with the reason, where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("a C compiler (cc, gcc or clang) must be installed to build a stub of NVML; none is")
    library = directory / SONAME
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", f"-Wl,-soname,{SONAME}", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    return library


def load_stub(directory: Path) -> NvmlStub:
    """Load the stub before anything else of its name: the dynamic linker then finds it by that name."""
    return NvmlStub(ctypes.CDLL(str(build_stub(directory))))
