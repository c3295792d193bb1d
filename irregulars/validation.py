"""Values from outside (JSON, TOML, settings), checked against the annotation of the type that they are to become.

An annotation is the rule: ``Annotated[int, Meta(ge=0, le=65_535)]`` is an integer from 0 to 65535. msgspec checks it;
this module words the error, with its place. A message that breaks its schema must be refused here: further in it
would stop a worker, and since it is read again after each restart, it would stop every worker.
"""

from __future__ import annotations

import difflib
import json
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, inspect

from irregulars.errors import InputError, RecordError

# Reentrant: while one type is converted, a hook converts parts of it to others (`state_codec`).
_LOCK: Final = threading.RLock()
_KNOWN: Final[set[Any]] = set()


@contextmanager
def first_use(kind: Any) -> Iterator[None]:
    """Let one thread at a time convert to a type for the first time.

    msgspec 0.22 inspects a dataclass when it converts to it for the first time, and keeps the result in the class. If
    two threads do so at once, one reads a result that the other has not finished, and the process dies (SIGSEGV).
    """
    if kind in _KNOWN:
        yield
        return
    with _LOCK:
        yield
    # Not reached after an error: then the next caller takes the lock once more.
    _KNOWN.add(kind)


LARGEST: Final = 1 << 62  # JSON's integers have no bounds; arithmetic on these still fits into an int64
MAX_RANK: Final = (1 << 22) - 1  # the highest rank: tables with an entry for each rank of a job must fit into memory
MAX_NAME_CHARACTERS: Final = 1024
"""Of a host, a device, a communicator or a reason: verdicts and evidence repeat them, and must fit into a message."""

MAX_JOB_CHARACTERS: Final = 4096
"""Of a job's name: it stands in the key of each message, for which producers have 4096 bytes."""

MAX_ROWS: Final = 1 << 48
"""Rows that a rank can have sent or lost: three days of a billion a second, and sums of them fit an int64."""

Text = Annotated[str, Meta(min_length=1)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARACTERS)]
JobName = Annotated[
    str,
    Meta(
        min_length=1, max_length=MAX_JOB_CHARACTERS, pattern=r"\A[^\x00]",
        description=f"text of 1 to {MAX_JOB_CHARACTERS} characters that begins with no zero byte",
    ),
]  # fmt: skip
"""Keys that begin with a zero byte are those of a partition's own records beside those of its jobs
(`streams.snapshots.records`)."""

Label = Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS)]  # a name that may be empty
Integer = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
RowCount = Annotated[int, Meta(ge=0, le=MAX_ROWS)]
Rank = Annotated[int, Meta(ge=0, le=MAX_RANK)]
Size = Annotated[int, Meta(ge=1, le=MAX_RANK + 1)]
Number = Annotated[float, Meta(ge=-1e308, le=1e308)]
Positive = Annotated[float, Meta(gt=0, le=1e308)]
NotNegative = Annotated[float, Meta(ge=0, le=1e308)]
Share = Annotated[float, Meta(ge=0, le=1)]

MAX_SECONDS: Final = 1e9
"""Of a setting: some 31 years. As nanoseconds, and added to the time of day, it fits an int64."""

Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=MAX_SECONDS)]

_LONGEST: Final = 80
_OPEN: Final = LARGEST  # a bound from here on is not worth a word, unless the value is beyond it


def checked(value: Any, kind: Any, what: str, where: str = "", error: type[InputError] = InputError) -> Any:
    """Return a value as its annotation says: a list as a tuple, a mapping as a dataclass, a text as a path.

    Parameters
    ----------
    kind
        A type that msgspec knows, `pathlib.Path`, or a dataclass of such. Keys that a dataclass lacks are ignored.
    what, where
        Name and place of the value, for the text of an error; empty for a message whose fields have their own names.

    Raises
    ------
    InputError
        Or `error`, if the value breaks its rule: the text names the innermost part that does.

    Examples
    --------
    >>> checked([1, 2], tuple[Rank, ...], "ranks")
    (1, 2)
    >>> checked([1, -2], tuple[Rank, ...], "ranks")
    Traceback (most recent call last):
    irregulars.errors.InputError: ranks[1] must be an integer from 0 to 4194303; got -2
    """
    try:
        with first_use(kind):
            return msgspec.convert(value, kind, dec_hook=_read_path)
    except msgspec.ValidationError as reason:
        name, rule, found = _culprit(value, kind, what)
        got = "none" if found is MISSING else shown(found)
        raise error(f"{name} must be {rule}; got {got}" + (f" ({where})" if where else "")) from reason


def one_of(*choices: str) -> Meta:
    """Annotate a text that must be one of these."""
    pattern = "|".join(map(re.escape, choices))
    return Meta(pattern=rf"\A(?:{pattern})\Z", description=f"one of {', '.join(choices)}")


def nearest(name: str, known: Collection[str]) -> str:
    """Return a question that names the known text nearest to one that is unknown; empty where none is near.

    >>> nearest("slow_rnak", ["slow_rank", "slow_nic"]), nearest("xyz", ["slow_rank"])
    ('; did you mean slow_rank?', '')
    """
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def require_known(name: str, known: Collection[str], what: str, where: str, otherwise: str) -> None:
    """Raise `InputError` for a name that is none of the known ones, with the nearest of them, or else with a hint."""
    if name not in known:
        hint = nearest(name, known) or f"; {otherwise}"
        raise InputError(f"{what} must be a known one; got {shown(name)} ({where}){hint}")


def describe(kind: Any, value: Any = None) -> str:
    """Return the rule of an annotation in words, for a value that breaks it where there is one.

    >>> describe(Annotated[int, Meta(ge=1)] | None), describe(tuple[str, ...])
    ('an integer of at least 1', 'a list of texts')
    """
    info = inspect.type_info(_without_none(kind))
    if isinstance(info, inspect.Metadata):
        told = (info.extra_json_schema or {}).get("description")
        if told is not None:
            return str(told)
        info = info.type
    if isinstance(info, inspect.IntType | inspect.FloatType):
        return _number(info, value)
    if isinstance(info, inspect.StrType):
        is_overlong = isinstance(value, str) and len(value) > (info.max_length or len(value))
        if info.max_length is not None and (is_overlong or info.max_length < MAX_NAME_CHARACTERS):
            return f"text of {info.min_length or 0} to {info.max_length} characters"
        return "text that is not empty" if info.min_length else "text"
    if isinstance(info, inspect.LiteralType):
        return f"one of {', '.join(map(str, info.values))}"
    if isinstance(info, inspect.CustomType):
        return "a path without a null" if isinstance(value, str) else "a path"
    if isinstance(info, inspect.ListType | inspect.VarTupleType):
        filled = " that is not empty" if info.min_length else ""
        return f"a list of {_PLURALS.get(type(info.item_type), 'values')}{filled}"
    if isinstance(info, inspect.TupleType):
        return f"a list of {len(info.item_types)} values"
    return _NAMES.get(type(info), "an object")


def shown(value: object) -> str:
    """Print a value for the text of an error: one line of bounded length, without the credentials of an address."""
    try:
        text = re.sub(r"//[^/@]*@", "//…@", repr(value))
    except ValueError:  # Python prints no such number
        return "a number of thousands of digits"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


_NAMES: Final[Mapping[type, str]] = {inspect.BoolType: "true or false"}
_PLURALS: Final[Mapping[type, str]] = {inspect.StrType: "texts", inspect.IntType: "integers"}


def _number(info: inspect.IntType | inspect.FloatType, value: Any) -> str:
    name = "an integer" if isinstance(info, inspect.IntType) else "a number"
    if isinstance(info, inspect.FloatType) and (info.le is None or info.le >= 1e308) and _is_beyond(value, 1e308):
        return f"{name} below 1e308"
    least, most = _bound(info.ge, value), _bound(info.le, value)
    if least is not None and most is not None:
        return f"{name} from {least} to {most}"
    if info.gt is not None:
        return f"{name} above {_written(info.gt)}" + (f" and at most {most}" if most is not None else "")
    for bound, words in ((least, "of at least"), (most, "of at most")):
        if bound is not None:
            return f"{name} {words} {bound}"
    return name


def _bound(bound: float | None, value: Any) -> str | None:
    if bound is None or (abs(bound) >= _OPEN and not _is_beyond(value, abs(bound))):
        return None
    return _written(bound)


def _written(bound: float) -> str:
    """Write a bound as people would type it.

    >>> _written(1e9), _written(0.05), _written(86_400)
    ('1e9', '0.05', '86400')
    """
    return f"{bound:g}".replace("e+0", "e") if isinstance(bound, float) else str(bound)


def _is_beyond(value: Any, bound: float) -> bool:
    return isinstance(value, int | float) and abs(value) > bound


def _culprit(value: Any, kind: Any, what: str) -> tuple[str, str, Any]:
    """Name the innermost part of a value that breaks its rule, the rule, and the part."""
    for part, inner, name in _parts(value, _without_none(kind), what):
        if part is MISSING or not _fits(part, inner):
            return _culprit(part, inner, name)
    return what, describe(kind, value), value


def _parts(value: Any, kind: Any, what: str) -> Iterator[tuple[Any, Any, str]]:
    """Yield the parts of a value, each with its annotation and its name."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        yield from _parts(value, inner[0], what)
    elif is_dataclass(kind) and isinstance(value, Mapping):
        kinds = get_type_hints(kind, include_extras=True)
        for one in fields(kind):
            has_default = one.default is not MISSING or one.default_factory is not MISSING
            if one.name in value or not has_default:
                name = f"{what}.{one.name}" if what else one.name
                yield value.get(one.name, MISSING), kinds[one.name], name
    elif origin in (tuple, list) and isinstance(value, list | tuple):
        kinds_of_items = inner if inner[-1] is not Ellipsis and origin is tuple else inner[:1] * len(value)
        # Of a list that is too short or too long no part breaks a rule: `_culprit` then names the list itself.
        for at, (part, one_kind) in enumerate(zip(value, kinds_of_items, strict=False)):
            yield part, one_kind, f"{what}[{at}]"
    elif isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        for key, part in value.items():
            yield part, inner[1], f"{what}[{key!r}]"


def _fits(value: Any, kind: Any) -> bool:
    try:
        # Without `first_use`: `checked` has converted to the whole type before, which inspects its parts as well.
        msgspec.convert(value, kind, dec_hook=_read_path)
    except msgspec.ValidationError:
        return False
    return True


def _without_none(kind: Any) -> Any:
    others = [one for one in get_args(kind) if one is not NoneType]
    return others[0] if NoneType in get_args(kind) and len(others) == 1 else kind


def _read_path(kind: Any, value: Any) -> Path:
    """Read a path, which msgspec does not know; it makes a ValidationError of errors."""
    if kind is not Path:
        raise TypeError(f"annotation must be one that msgspec knows, or a path; got {kind}")
    if isinstance(value, str) and "\0" in value:
        raise ValueError("path must have no null")
    return Path(value)


def json_object(value: bytes | None, what: str) -> dict[str, Any]:
    """Decode a JSON object; raises `RecordError`."""
    try:
        # Decoded here, strictly: of bytes json.loads takes UTF-16 and UTF-32 as well, and lets halves of surrogate
        # pairs pass, which no topic and no table can hold.
        values = json.loads((value or b"").decode())
        if value and b"\\u" in value:  # an escape can write such a half as well
            json.dumps(values, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{what} must be JSON; got {first_line(error)}") from error
    if not isinstance(values, dict):
        raise RecordError(f"{what} must be a JSON object; got {type(values).__name__}")
    return values


def first_line(error: BaseException) -> str:
    """Return type and first line of an error's text."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no text'}"


def about(
    text: str, *, words: tuple[str, ...] = (), is_left_out: bool = False, known: Any = None
) -> Mapping[str, Any]:
    """Return the metadata of a field of a message.

    `text`: the description that people read, in the schema, the database and the pages. `words`: the texts that it
    may be; a reader takes a newer worker's own. `is_left_out`: whether JSON lacks it where it is None, in place of
    null. `known`: rule of a number that is NaN here, and null in JSON, where it is not known.
    """
    return MappingProxyType({"about": text, "words": words, "is_left_out": is_left_out, "known": known})
