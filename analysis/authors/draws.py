"""Link capacities for each collective: the authors' own, read from the files of their repository, or drawn at random.

The authors' files are pickles of a NetworkX graph. Unpickling would execute code from the file, so `read` interprets
only the opcodes that build dictionaries, tuples, numbers and text, and records objects without constructing them.
"""

import os
import pickletools
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.authors.fabric import LINKS, NOMINAL_GBPS
from topologies.errors import format_value

Floats = npt.NDArray[np.float64]

MEAN, DEVIATION, LEAST, MOST = 0.5, 0.5, 0.1, 1.0
"""Distribution of the shares of nominal capacity: mean and standard deviation of the normal distribution, and the
bounds that its draws are clipped to."""

_MAX_BYTES = 1 << 16  # size limit of a file; the authors' files have 3,606 bytes
_MAX_GBPS = 1_000_000
_PROGRESS_EVERY = 1000  # files between two reports of progress


class DrawsError(ValueError):
    """A file is not one of the authors' draws; the message is one sentence that names the file."""


def gaussian(count: int, seed: int) -> Floats:
    """Draw shares of nominal capacity as the authors' code does, [count, links]: normally distributed, then clipped."""
    return np.clip(np.random.default_rng(seed).normal(MEAN, DEVIATION, (count, len(LINKS))), LEAST, MOST)


def uniform(count: int, seed: int) -> Floats:
    """Draw shares of nominal capacity as the paper's text says, [count, links]: uniform between the same bounds."""
    return np.random.default_rng(seed).uniform(LEAST, MOST, (count, len(LINKS)))


# --- files ------------------------------------------------------------------------------------------------------------


def count_draws(folder: Path) -> int:
    """Count the draws in a folder: 0.pkl, 1.pkl and so on without a gap; raises DrawsError for fewer than two."""
    try:
        names = {path.name for path in folder.iterdir()}
    except OSError as error:
        raise DrawsError(f"{folder} cannot be read: {error.strerror}") from None
    count = 0
    while f"{count}.pkl" in names:
        count += 1
    if count < 2:
        raise DrawsError(f"{folder} has no {count}.pkl; allowed: a folder with the draws 0.pkl, 1.pkl and so on")
    return count


def read(folder: Path, count: int, done: Callable[[int], None] = lambda _: None) -> Floats:
    """Read shares of nominal capacity from the first `count` files of a folder, [count, links].

    `done` is called with the number of files read so far. Raises DrawsError for a file that cannot be read, is not such
    a pickle, has other links than the authors' fabric, or has a capacity that is not a number above zero.
    """
    capacity_gbps = np.empty((count, len(LINKS)))
    layout: _Layout | None = None
    for number, content in enumerate(_contents(folder, count)):
        if number % _PROGRESS_EVERY == 0:
            done(number)
        path = folder / f"{number}.pkl"
        values = None if layout is None else layout.values(content)
        if values is None:
            values, layout = _capacities(path, content)
        wrong = values[~((values > 0) & (values <= _MAX_GBPS))]
        if wrong.size:
            raise DrawsError(f"{path} has a capacity of {wrong[0]:g} Gbit/s; allowed: above 0 to {_MAX_GBPS:,} Gbit/s")
        capacity_gbps[number] = values
    done(count)
    return capacity_gbps / NOMINAL_GBPS


def _contents(folder: Path, count: int) -> Iterator[bytes]:
    for number in range(count):
        path = folder / f"{number}.pkl"
        try:
            # Open without blocking and check the file type before reading: a pipe or a device could block for ever.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
                content = file.read(_MAX_BYTES + 1) if is_regular else b""
        except OSError as error:
            raise DrawsError(f"{path} cannot be read: {error.strerror}") from None
        if not is_regular:
            raise DrawsError(f"{path} is not a regular file; allowed: a draw of the authors' simulator")
        if len(content) > _MAX_BYTES:
            raise DrawsError(f"{path} has more than {_MAX_BYTES:,} bytes; allowed: a draw of a few thousand bytes")
        yield content


class _Bytes(NamedTuple):
    """A byte string in a pickle, and its offset in the file."""

    value: bytes
    position: int


@dataclass(eq=False)
class _Object:
    """An object that a pickle would construct: the name of its class, the arguments and the state passed to it."""

    name: str
    arguments: Any = ()
    state: Any = None


@dataclass(frozen=True)
class _Layout:
    """The byte layout of a file, by which files that differ only in the eight bytes of each capacity are read quickly.

    `fixed` are the bytes outside the capacities, and `positions` the offset of each capacity, [links].
    """

    fixed: bytes
    positions: npt.NDArray[np.int64]
    is_capacity: npt.NDArray[np.bool_] = field(repr=False)

    @classmethod
    def of(cls, content: bytes, positions: list[int]) -> "_Layout":
        offsets = np.array(positions)
        is_capacity = np.zeros(len(content), np.bool_)
        is_capacity[(offsets[:, None] + np.arange(8)).ravel()] = True
        return cls(np.frombuffer(content, np.uint8)[~is_capacity].tobytes(), offsets, is_capacity)

    def values(self, content: bytes) -> Floats | None:
        """Return the capacities in Gbit/s, [links], or None if the file has another layout."""
        if len(content) != len(self.is_capacity):
            return None
        data = np.frombuffer(content, np.uint8)
        if data[~self.is_capacity].tobytes() != self.fixed:
            return None
        return np.frombuffer(data[self.positions[:, None] + np.arange(8)].tobytes(), "<f8")


def _capacities(path: Path, content: bytes) -> tuple[Floats, _Layout | None]:
    """Return the capacities in Gbit/s, [links], and the layout of the file, None unless each link has a NumPy scalar of
    its own; raises DrawsError."""
    try:
        graph = _interpret(content)
    except (ValueError, IndexError, KeyError, TypeError):
        raise DrawsError(f"{path} is not a pickle of plain data; allowed: a draw of the authors' simulator") from None
    state = graph.state if isinstance(graph, _Object) else None
    neighbours = state.get("_adj") if isinstance(state, dict) else None
    if not isinstance(neighbours, dict) or not all(isinstance(links, dict) for links in neighbours.values()):
        raise DrawsError(f"{path} holds no graph of NetworkX; allowed: a draw of the authors' simulator")
    directed = {(a, b): link for a, others in neighbours.items() for b, link in others.items()}
    known = {*LINKS, *((b, a) for a, b in LINKS)}
    for pair in (*(known - set(directed)), *(set(directed) - known)):
        problem = "has no" if pair in known else "has a"
        raise DrawsError(
            f"{path} {problem} link {format_value(pair)}; allowed: the {len(LINKS)} of the authors' fabric"
        )
    values, positions = np.empty(len(LINKS)), []
    for index, (a, b) in enumerate(LINKS):
        values[index], position = _capacity(path, directed[a, b])
        if values[index] != _capacity(path, directed[b, a])[0]:
            raise DrawsError(f"{path} has two capacities between {a} and {b}; allowed: one for both directions")
        if position is not None:
            positions.append(position)
    return values, _Layout.of(content, positions) if len(set(positions)) == len(LINKS) else None


def _capacity(path: Path, link: Any) -> tuple[float, int | None]:
    """Return a link's capacity (a float or a NumPy scalar) and the offset of its eight bytes, None for a float."""
    match link.get("capacity") if isinstance(link, dict) else None:
        case float() as value:
            return value, None
        case _Object(
            name="numpy._core.multiarray.scalar" | "numpy.core.multiarray.scalar",
            arguments=(_Object(name="numpy.dtype", arguments=("f8", *_), state=(_, "<", *_)), _Bytes(value, position)),
        ) if len(value) == 8:
            return struct.unpack("<d", value)[0], position
    raise DrawsError(f"{path} has a link without a capacity; allowed: a 64-bit number for each link")


_IGNORED = frozenset(("PROTO", "FRAME", "STOP"))
_CONTAINERS: Mapping[str, Callable[[], Any]] = MappingProxyType({"EMPTY_DICT": dict, "EMPTY_TUPLE": tuple})
_CONSTANTS = MappingProxyType({"NONE": None, "NEWTRUE": True, "NEWFALSE": False})
_LITERALS = frozenset(("BININT", "BININT1", "BININT2", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE"))
_OPERANDS = MappingProxyType(
    {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "SETITEM": 2, "STACK_GLOBAL": 2, "NEWOBJ": 2, "REDUCE": 2, "BUILD": 1}
)
"""How many values an opcode pops from the stack; TUPLE and SETITEMS pop all values above the last mark."""


def _interpret(content: bytes) -> Any:
    """Interpret a pickle and return its value, with an `_Object` in place of each object.

    Raises ValueError, IndexError, KeyError or TypeError if the content is not a pickle, or if it has opcodes that a
    pickled graph does not need.
    """
    stack: list[Any] = []
    outer: list[list[Any]] = []
    memo: dict[Any, Any] = {}
    for code, argument, position in pickletools.genops(content):
        name = code.name
        if name in _IGNORED:
            continue
        if name == "MARK":
            outer.append(stack)
            stack = []
        elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "SHORT_BINBYTES" and isinstance(argument, bytes) and position is not None:
            stack.append(_Bytes(argument, position + 2))
        elif name in _CONTAINERS:
            stack.append(_CONTAINERS[name]())
        elif name in _LITERALS or name in _CONSTANTS:
            stack.append(_CONSTANTS.get(name, argument))
        elif name in _OPERANDS:
            if len(stack) < _OPERANDS[name]:
                raise IndexError("stack underflow")
            items = stack[-_OPERANDS[name] :]
            del stack[-_OPERANDS[name] :]
            _execute(name, items, stack)
        elif name in ("TUPLE", "SETITEMS"):
            items, stack = stack, outer.pop()
            _execute(name, items, stack)
        else:
            raise ValueError(f"{name} is not plain data")
    (value,) = stack
    return value


def _execute(name: str, items: list[Any], stack: list[Any]) -> None:
    """Execute an opcode on `items`, which have been popped from `stack`, and update the stack."""
    match name, items:
        case ("SETITEM" | "SETITEMS", _):
            # Only text and integers are accepted as keys: hashing a deeply nested tuple could take forever.
            if not (isinstance(stack[-1], dict) and all(isinstance(key, str | int) for key in items[::2])):
                raise TypeError("expected a dictionary with text or integer keys")
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
        case ("STACK_GLOBAL", [str() as module, str() as attribute]):
            stack.append(_Object(f"{module}.{attribute}"))
        case ("NEWOBJ" | "REDUCE", [_Object() as constructor, arguments]):
            stack.append(_Object(constructor.name, arguments))
        case ("BUILD", [state]) if isinstance(stack[-1], _Object):
            stack[-1].state = state
        case ("TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3", _):
            stack.append(tuple(items))
        case _:
            raise TypeError(f"{name} with unexpected operands")
