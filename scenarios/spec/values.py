"""What the values of a scenario's keys may be: kinds of values, and how [[tables]] of them are read. Pure.

A kind has the types, the range and the unit of a value, and how it is read and written; what it does not allow is a
ValueError, a sentence with the value and what is allowed.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from topologies import units
from topologies.errors import Mistake, SpecError, did_you_mean, shown

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
"""The names of jobs, classes and policies."""

_TYPES = {bool: "a boolean", int: "an integer", float: "a float", str: "text", list: "a list", dict: "a table"}


@dataclass(frozen=True)
class Kind:
    """What the values of a key may be: in TOML of these types, and whatever `convert` takes.

    `write` is the inverse of `read`. `is_object`: values are of a class of their own, and stored as they are written.
    """

    allowed: str
    types: tuple[type, ...]
    convert: Callable[[Any], Any] = lambda value: value
    write: Callable[[Any], Any] = lambda value: value
    unit: str = ""
    is_object: bool = False

    def read(self, value: object) -> Any:
        """The value that a scenario holds; raises ValueError."""
        if type(value) not in self.types:  # not isinstance: true and false are integers, too
            what = _TYPES.get(type(value), "a date or a time")
            raise ValueError(f"{shown(value)} is {what}; allowed: {self.allowed}")
        return self.convert(value)


def fitting(
    allowed: str,
    types: tuple[type, ...],
    fits: Callable[[Any], object],
    kind: Callable[[Any], Any] = lambda value: value,
    write: Callable[[Any], Any] = lambda value: value,
    *,
    near: Collection[str] = (),
    is_object: bool = False,
) -> Kind:
    """Values that fit, made objects of a `kind`; `near` are the texts that there are, if they can be named."""

    def convert(value: Any) -> Any:
        if not fits(value):
            why = "not known" if near else "not allowed"
            raise ValueError(f"{shown(value)} is {why}; allowed: {allowed}{did_you_mean(value, near)}")
        return kind(value)

    return Kind(allowed, types, convert, write, is_object=is_object)


def texts(
    allowed: str, fits: Callable[[str], object], kind: Callable[[str], Any] = str, near: Collection[str] = ()
) -> Kind:
    """Text that fits."""
    return fitting(allowed, (str,), fits, kind, str, near=near, is_object=kind is not str)


def one_of(*names: str) -> Kind:
    """One of these texts."""
    return texts(", ".join(names), names.__contains__, near=names)


def numbers(types: tuple[type, ...], least: float, most: float, unit: str = "", *, or_zero: bool = False) -> Kind:
    """A number in this range, a float unless the only type is int."""
    allowed = f"{'0, or ' * or_zero}a {'whole ' if types == (int,) else ''}number from {least:,} to {most:,}"

    def convert(value: float) -> float:
        if not (least <= value <= most or (or_zero and value == 0)):
            why = "too small" if value < least else "too large" if value > most else "not finite"
            raise ValueError(f"{shown(value)} is {why}; allowed: {allowed}")
        return value if types == (int,) else float(value)

    return Kind(allowed, types, convert, unit=unit)


def whole(least: int, most: int, unit: str = "") -> Kind:
    """A whole number in this range."""
    return numbers((int,), least, most, unit)


_AS_TEXT: Mapping[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    "rate": (units.parse_rate_bps, units.format_rate),
    "size": (units.parse_size_bytes, units.format_size),
    "delay": (units.parse_delay_s, units.format_delay),
}
"""How quantities are read and written, by their nouns."""


def quantity(of: units.Quantity, example: str = "", within: tuple[float, float] | None = None, words: str = "") -> Kind:
    """Text with a unit; `within` are the least and the most where they are not the unit's own, and `words` are more
    about the least."""
    parse, write = _AS_TEXT[of.noun]
    least, most = (of.least, of.most) if within is None else map(write, within)
    allowed = f'text with a unit, {least}{words} to {most}, such as "{example or of.example}"'

    def convert(given: str) -> Any:
        found = parse(given)
        if within is not None and not within[0] <= found <= within[1]:
            why = "too small" if found < within[0] else "too large"
            raise ValueError(f"{shown(given)} is {why}; allowed: {allowed}")
        return found

    return Kind(allowed, (str,), convert, write, unit=", ".join(of.units))


TRUTH = Kind("true or false", (bool,))
RATE, SIZE, DELAY = quantity(units.RATE), quantity(units.SIZE), quantity(units.DELAY)
RATES = replace(
    quantity(units.RATE, "20-200 Gbit/s"), convert=units.parse_rate_range_bps, write=units.format_rate_range
)
SCHEDULE_FILE = texts(
    "the path of a GOAL, MSCCL XML or TE-CCL JSON file, or of Chakra's with * for the rank, in printable text",
    lambda given: given and given.isprintable(),
    Path,
)


def unique(values: Iterable[Any], given: object) -> tuple[Any, ...]:
    """These values, at least one and none of them twice; raises ValueError."""
    found = tuple(values)
    if not found:
        raise ValueError("the list is empty; allowed: one value at least")
    if any(value in found[:index] for index, value in enumerate(found)):
        raise ValueError(f"{shown(given)} lists a value twice: each may be listed once")
    return found


def name_of(what: str) -> Kind:
    """The name of what a [[table]] declares."""
    return texts(f"1 to 32 letters, digits, '-', '_' and '.', another for each {what}", NAME.fullmatch)


def read_tables(
    name: str,
    tables: Sequence[object],
    kinds: Mapping[str, Kind],
    *,
    most: int,
    required: Collection[str] = (),
    check: Callable[[dict[str, Any], dict[str, Any]], Iterator[tuple[str, str]]],
) -> list[dict[str, Any]]:
    """The values of what a scenario's [[name]] tables declare, by their keys, which are of these kinds.

    `check` takes the known keys of a table and those of its values that are right, and yields what else is wrong, each
    with its place in the table. Raises SpecError with every mistake, as "job[1].start".
    """
    if len(tables) > most:
        raise SpecError([Mistake(name, f"{len(tables)} tables are too many; allowed: {most}")])
    mistakes, found = list[Mistake](), list[dict[str, Any]]()
    for place, table in enumerate(tables, 1):
        values = dict[str, Any]()
        if isinstance(table, dict):
            allowed = f"allowed: {', '.join(kinds)}"
            wrong = [
                (f".{key}", f"unknown key of a {name}, {allowed}{did_you_mean(key, kinds)}")
                for key in table
                if key not in kinds
            ]
            for key, kind in kinds.items():
                try:
                    if key in table:
                        values[key] = kind.read(table[key])
                    elif key in required:
                        wrong.append((f".{key}", f"is missing; allowed: {kind.allowed}"))
                except ValueError as error:
                    wrong.append((f".{key}", str(error)))
            wrong += check({key: value for key, value in table.items() if key in kinds}, values)
        else:
            wrong = [("", f"{shown(table)} is not a table; allowed: the keys {', '.join(kinds)}")]
        mistakes += [Mistake(f"{name}[{place}]{where}", sentence) for where, sentence in wrong]
        found.append(values)
    if mistakes:
        raise SpecError(mistakes)
    return found


def check_unique(name: str, found: Sequence[Any], field: str, kind: Kind) -> None:
    """Raise SpecError where one of what [[name]] tables declare has the field of another."""
    values = [getattr(one, field) for one in found]
    for place, value in enumerate(values):
        if value in values[:place]:
            sentence = f"{shown(value)} is that of another {name}; allowed: {kind.allowed}"
            raise SpecError([Mistake(f"{name}[{place + 1}].{field}", sentence)])
