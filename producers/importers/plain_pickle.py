"""Pickles of plain data, read without running anything.

Python's own unpickler calls any function that the file names. This one knows only the opcodes that build None,
booleans, numbers, texts, bytes, lists, tuples and dictionaries; any other opcode, and so every name of a class or
function, is refused. Nothing that it builds can be called. The format is that of the standard library's
`pickletools`.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any, Final

from irregulars.errors import InputError

MAX_INTEGER_BITS: Final = 64
MAX_INSTRUCTIONS: Final = 3_000_000  # a dump of 2,000 entries with their stacks has some hundred thousand
_MARK: Final = object()
_PUSHED: Final = frozenset(
    {"BINFLOAT", "BINUNICODE", "BINUNICODE8", "SHORT_BINUNICODE", "UNICODE", "BINBYTES", "BINBYTES8",
     "SHORT_BINBYTES", "BINSTRING", "SHORT_BINSTRING", "STRING", "FLOAT"}
)  # fmt: skip
_INTEGERS: Final = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "LONG4", "LONG", "INT"})
_IGNORED: Final = frozenset({"PROTO", "FRAME"})
_CONSTANTS: Final[dict[str, Callable[[], Any]]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple,
}  # fmt: skip
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def load_plain(value: bytes) -> Any:
    """Read one pickle of plain data.

    Raises InputError if it is truncated or broken, names a class or a function, or builds anything but plain data.
    """
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(value)):
            if count > MAX_INSTRUCTIONS:
                raise ValueError(f"more than {MAX_INSTRUCTIONS} instructions")
            if opcode.name == "STOP":
                return machine.result()
            machine.run(opcode.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, UnicodeError) as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise InputError(f"must be a complete pickle of plain data; got: {reason}") from None
    raise InputError("must be a complete pickle of plain data; got no end")


class _Machine:
    """The stack and the memory of a pickle."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def result(self) -> Any:
        if len(self._stack) != 1 or self._stack[0] is _MARK:
            raise ValueError(f"{len(self._stack)} values at its end")
        return self._stack[0]

    def run(self, name: str, argument: Any) -> None:
        if name in _PUSHED:
            self._stack.append(argument)
        elif name in _INTEGERS:
            if not isinstance(argument, int) or argument.bit_length() > MAX_INTEGER_BITS:
                raise ValueError(f"an integer of more than {MAX_INTEGER_BITS} bits")
            self._stack.append(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name]())
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            self._stack.append(self._memo[int(argument)])
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self._memo[int(argument)] = self._top()
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self._top()
        elif name not in _IGNORED:
            if name == "MARK":
                self._stack.append(_MARK)
            elif name in _TUPLES:
                values = [self._pop() for _ in range(_TUPLES[name])]
                self._stack.append(tuple(reversed(values)))
            elif name in ("TUPLE", "LIST", "DICT"):
                values = self._after_mark()
                self._stack.append(tuple(values) if name == "TUPLE" else values if name == "LIST" else _pairs(values))
            elif name in ("APPEND", "APPENDS"):
                values = self._after_mark() if name == "APPENDS" else [self._pop()]
                self._of(list).extend(values)
            elif name in ("SETITEM", "SETITEMS"):
                values = self._after_mark() if name == "SETITEMS" else [self._pop(), self._pop()][::-1]
                self._of(dict).update(_pairs(values))
            else:
                raise ValueError(f"the instruction {name}, which builds more than plain data")

    def _pop(self) -> Any:
        value = self._stack.pop()
        if value is _MARK:
            raise ValueError("a mark where a value must stand")
        return value

    def _top(self) -> Any:
        if self._stack[-1] is _MARK:
            raise ValueError("a mark where a value must stand")
        return self._stack[-1]

    def _of(self, wanted: type) -> Any:
        if type(self._top()) is not wanted:
            raise ValueError(f"{type(self._top()).__name__} where a {wanted.__name__} must stand")
        return self._top()

    def _after_mark(self) -> list[Any]:
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("no mark")
        values = self._stack[at + 1 :]
        del self._stack[at:]
        return values


def _pairs(values: list[Any]) -> dict[Any, Any]:
    if len(values) % 2:
        raise ValueError("a key without a value")
    keys = values[::2]
    for key in keys:
        if not isinstance(key, (str, int)):
            raise ValueError(f"a key that is a {type(key).__name__}")
    return dict(zip(keys, values[1::2], strict=True))
