"""Opinions of people on verdicts: right or wrong. A message each on the compacted topic ``feedback``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated

from msgspec import Meta

from irregulars.messages.records import decode_as, encode_json
from irregulars.validation import Integer, Rank, Share

Words = Annotated[str, Meta(min_length=1, max_length=500)]
Note = Annotated[str, Meta(max_length=500)]


@dataclass(frozen=True, slots=True)
class Opinion:
    """One person's opinion on one verdict; a later one of the same person on the same verdict replaces it.

    It repeats fields of the verdict, so that its readers need no other topic.
    """

    # verdict_id, job, kind: Of the verdict
    verdict_id: Words
    job: Words
    kind: Words
    iterations: tuple[Integer, Integer]  # range ``(first, past the last)`` of the verdict when it was judged
    # Whether the first suspect was to blame; of a verdict without suspects: whether that was right. None: the
    # person's earlier opinion is withdrawn.
    is_right: bool | None
    who: Words
    time_ns: Integer  # when it was recorded, ns since the epoch
    note: Note = ""
    # First suspect, named the same in all jobs (``nic:node-3/mlx5_1``); None: it has no such name
    device: Words | None = None
    rank: Rank | None = None  # first rank of the first suspect; None: there is none
    probability: Share | None = None  # of the first suspect, 0 to 1; None: there is none

    @property
    def key(self) -> bytes:
        """Key on the topic."""
        return f"{self.verdict_id}/{self.who}".encode()


def encode_opinion(opinion: Opinion) -> bytes:
    """Encode for the topic ``feedback``."""
    return encode_json("feedback", asdict(opinion))


def decode_opinion(value: bytes | None) -> Opinion:
    """Decode a message of the topic ``feedback``; raises `RecordError`."""
    return decode_as(value, "feedback", Opinion)


def newest_opinions(opinions: Iterable[Opinion]) -> list[Opinion]:
    """Return the newest opinion on each verdict that was not withdrawn, of any person, oldest first."""
    in_time = sorted(opinions, key=lambda one: (one.time_ns, one.who))
    # By person first: a word that its author has replaced or withdrawn must not count as the newest.
    standing = {one.key: one for one in in_time}
    newest = {one.verdict_id: one for one in in_time if one.is_right is not None and standing[one.key] is one}
    return sorted(newest.values(), key=lambda one: (one.time_ns, one.verdict_id))
