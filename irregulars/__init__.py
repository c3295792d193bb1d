"""Find, in real time, the one device that slows a large training job down.

The packages are `producers`, `streams`, `detectors`, `sinks` and `infra`; infra/docs/architecture.md shows the way
through them. The names that users need are here: `irregulars.torch_comms` in a training script, `read_trace` and
`analyze` for recordings, `Detector` and `check_detector` for detectors of their own, `errors` for exceptions.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from irregulars.version import VERSION

if TYPE_CHECKING:
    from irregulars.detectors.plugins.checks import check_detector
    from irregulars.detectors.plugins.protocol import Detector
    from irregulars.infra.runs.analysis import analyze
    from irregulars.producers.trace.directory import read_trace

__version__ = VERSION
__all__ = ["Detector", "__version__", "analyze", "check_detector", "read_trace"]

# Where `__getattr__` finds each name at run time; the imports above are the same for type checkers.
_HOMES: Final = {
    "Detector": "irregulars.detectors.plugins.protocol",
    "analyze": "irregulars.infra.runs.analysis",
    "check_detector": "irregulars.detectors.plugins.checks",
    "read_trace": "irregulars.producers.trace.directory",
}


def __getattr__(name: str) -> Any:
    """Import one module, and nothing else: a training process needs neither pyarrow nor Kafka to start."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
