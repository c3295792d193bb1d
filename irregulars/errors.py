"""Everything that Irregulars raises on purpose.

::

    IrregularsError
    ├── InputError            a file, a setting or an argument is unusable; exit status 2
    │   ├── RecordError       one message can't be decoded; it goes to the dead-letter topic
    │   └── PluginError       a plug-in can't be imported or fails its checks
    ├── ServiceError          a service that we need can't be used
    │   ├── ServiceUnavailable    it does not answer
    │   │   └── SendingGivenUp    messages on their way to Kafka were given up, since others may have taken over
    │   ├── ServiceRefused        it answers, and refuses us (credentials, rights)
    │   └── TopicMismatch         topics exist, with another number of partitions than agreed
    └── SinkError
        ├── SinkBusy          try the same rows again after `retry_after_s`
        └── SinkRejected      these rows will never be taken; they go to the dead-letter topic

Texts follow one form, ``<what> must be <rule>; got <value!r> (<where>)``, then what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def how_to_install(extra: str) -> str:
    """Return how to install one of our extras. No package index has us; a package of our name there is not ours.

    >>> how_to_install("worker")
    "Run in a checkout of irregulars: pip install '.[worker]' (of a wheel: pip install 'FILE.whl[worker]')"
    """
    return f"Run in a checkout of irregulars: pip install '.[{extra}]' (of a wheel: pip install 'FILE.whl[{extra}]')"


class IrregularsError(Exception):
    """The root: catch this to catch everything that Irregulars raises on purpose."""


class InputError(IrregularsError):
    """A file, a setting or an argument is unusable."""


class RecordError(InputError):
    """One message can't be decoded."""


class PluginError(InputError):
    """A plug-in can't be imported, or fails the checks of its protocol."""


class ServiceError(IrregularsError):
    """A service that we need can't be used."""


class ServiceUnavailable(ServiceError):
    """A service does not answer within the time that it was given."""


class SendingGivenUp(ServiceUnavailable):
    """Messages on their way to Kafka were given up: others may have taken over the partitions that they came from."""


class ServiceRefused(ServiceError):
    """A service answers and refuses us: wrong credentials, or missing rights."""


class TopicMismatch(ServiceError):
    """A topic exists with another number of partitions than its co-partitioned topics."""


class SinkError(IrregularsError):
    """A sink did not store rows."""


class SinkBusy(SinkError):
    """The sink can't take rows now; the same rows may be written again later."""

    def __init__(self, reason: str, retry_after_s: float) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class SinkRejected(SinkError):
    """The sink will never take these rows."""

    def __init__(self, reason: str, rows: Sequence[Any] = ()) -> None:
        super().__init__(reason)
        self.rows = rows
