"""What a channel was told of an incident: a message each on the topic ``notices``, from which a restart goes on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final

from irregulars.errors import RecordError
from irregulars.messages.records import decode_json, encode_json
from irregulars.validation import Count, Integer, JobName, Text, checked, one_of

STATES: Final = ("trying", "open", "doubtful", "refused", "closed")
KEPT_NS: Final = 30 * 86_400 * 10**9
"""How long a record is kept after the incident's end was told. Only alerts of the last week are read again."""

State = Annotated[str, one_of(*STATES)]


@dataclass(frozen=True, slots=True)
class Told:
    """What one channel knows of one incident.

    Parameters
    ----------
    verdict_id, channel
        Which incident, and the channel's name.
    state
        ``trying``: it is being told that it opened; ``open``: it has heard that; ``doubtful``: the try was given
        up, and may have arrived; ``refused``: it was given up, and did not arrive; ``closed``: it has heard of the
        end, or will not any more.
    event, revision, severity
        Of the newest notice: of which revision of the verdict, and how urgent it was told to be.
    job
        Of the verdict.
    device
        As `sinks.notices.devices.device_of` names it; None: not known.
    reference
        What the channel returned: the id of a message that it updates.
    told_ns
        When, ns since the epoch.
    partition, offset
        Where the alert stands that the notice rests on.
    storm
        Id of the storm (`sinks.notices.storms`) by whose notices it was told; the storm's own record has it too.
        None, and not in the JSON: it was told by itself.
    """

    verdict_id: Text
    channel: Text
    state: State
    event: Annotated[str, one_of("opened", "updated", "resolved")]
    revision: Count
    severity: Annotated[str, one_of("note", "ticket", "page")]
    job: JobName
    device: str | None
    reference: str | None
    told_ns: Integer
    partition: Count
    offset: Count
    storm: Text | None = None

    @property
    def key(self) -> bytes:
        """Key on the topic."""
        return told_key(self.verdict_id, self.channel)

    def to_json(self) -> dict[str, Any]:
        """As an object of ``irregulars/messages/schemas/notices.json``."""
        values = asdict(self)
        if self.storm is None:
            del values["storm"]
        return values


def told_key(verdict_id: str, channel: str) -> bytes:
    """Key on the topic ``notices``; a channel's name has no slash.

    >>> told_key("llama:1:25:0", "pager")
    b'llama:1:25:0/pager'
    """
    return f"{verdict_id}/{channel}".encode()


def encode_told(told: Told) -> bytes:
    """Encode for the topic ``notices``."""
    return encode_json("notices", told.to_json())


def decode_told(value: bytes | None) -> Told:
    """Decode a message of the topic ``notices``; raises `RecordError`."""
    told: Told = checked(decode_json(value, "notices"), Told, "", error=RecordError)
    return told
