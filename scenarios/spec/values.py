"""Kinds of values that the keys of a scenario can have, and the reading of [[tables]]. Pure.

A kind has the types, the range and the unit of a value, and functions that read and write it. A value that is not
allowed raises ValueError with a sentence that names the value and what is allowed.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from pathlib import Path
from types import MappingProxyType
from typing import Any

from topologies import units
from topologies.errors import Mistake, SpecError, did_you_mean, elements, format_value

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
"""The names of jobs, classes and policies."""

NAME_SIGNS = "letters, digits, '-', '_' and '.', the first a letter or digit"

_TYPES = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list", dict: "a table"}
_TYPES |= dict.fromkeys((date, datetime, time), "a date or a time")


@dataclass(frozen=True)
class Kind:
    """A kind of values: its TOML types, and `convert`, which checks a value and turns it into the stored one.

    `write` is the inverse of `read`. `ends` are the least and the greatest value, as written in TOML, of a kind of
    numbers or quantities. `is_object` is true for values of a class, which runs store as `write` returns them.
    """

    allowed: str
    types: tuple[type, ...]
    convert: Callable[[Any], Any] = lambda value: value
    write: Callable[[Any], Any] = lambda value: value
    unit: str = ""
    is_object: bool = False
    ends: tuple[Any, ...] = ()

    def read(self, value: object) -> Any:
        """Return the value that a scenario holds for this TOML value; raises ValueError."""
        if isinstance(value, float) and value.is_integer() and int in self.types and float not in self.types:
            value = int(value)  # TOML writes 100000 as 1e5, too
        if type(value) not in self.types:  # not isinstance: true and false are integers, too
            what = self._mismatch(value)
            if self.unit and type(value) in (int, float) and self.types == (str,):
                what = "has no unit"
            if isinstance(value, str) and list in self.types:
                elements(value, value.strip("[] ").split(","))
            raise ValueError(f"{format_value(value)} {what}; allowed: {self.allowed}{self._meant(value)}")
        return self.convert(value)

    def _mismatch(self, value: object) -> str:
        """Return what is wrong with the type of a value, in words of a user."""
        if type(value) is float and {*self.types} & {int, list} and float not in self.types:
            return "is not a whole number"
        if isinstance(value, str) and {*self.types} & {int, float} and str not in self.types:
            return "is not a number"
        return f"is {_TYPES.get(type(value), f'of the type {type(value).__name__}')}"

    def _meant(self, value: object) -> str:
        """Return a hint at the value that a value of another type was probably meant to be; "" without any."""
        meant: object = None
        if isinstance(value, str) and {*self.types} & {int, float}:
            plain = re.sub(r"(?<=\d)[,_' ](?=\d{3}\b)", "", value.strip())  # thousands
            meant = float(plain) if re.fullmatch(r"[+-]?\d{1,20}(\.\d{1,20})?([eE][+-]?\d{1,2})?", plain) else None
            meant = int(meant) if isinstance(meant, float) and meant.is_integer() and int in self.types else meant
        elif isinstance(value, float) and int in self.types and value.is_integer():
            meant = int(value)
        elif isinstance(value, str) and list in self.types:
            meant = [part.strip() for part in value.strip("[] ").split(",")]
        elif isinstance(value, list) and len(value) == 1 and type(value[0]) in self.types:
            meant = value[0]
        try:
            if type(meant) in self.types:
                self.convert(meant)
                words = ", without quotes" if isinstance(value, str) and not isinstance(meant, list) else ""
                if isinstance(value, str) and value.startswith("["):
                    words = ", which a shell needs in single quotes"
                return f" (did you mean {format_value(meant)}{words}?)"
        except ValueError:
            pass
        return ""


def fitting(
    allowed: str,
    types: tuple[type, ...],
    fits: Callable[[Any], object],
    to_value: Callable[[Any], Any] = lambda value: value,
    write: Callable[[Any], Any] = lambda value: value,
    *,
    near: Collection[str] = (),
    is_object: bool = False,
) -> Kind:
    """Return the kind of values for which `fits` is true, converted by `to_value`; messages suggest texts of `near`."""

    def convert(value: Any) -> Any:
        if not fits(value):
            why, hint = ("not known", did_you_mean(value, near)) if near else ("not allowed", "")
            raise ValueError(f"{format_value(value)} is {why}; allowed: {allowed}{hint}")
        return to_value(value)

    return Kind(allowed, types, convert, write, is_object=is_object)


def texts(
    allowed: str, fits: Callable[[str], object], to_value: Callable[[str], Any] = str, near: Collection[str] = ()
) -> Kind:
    """Return the kind of texts for which `fits` is true."""
    return fitting(allowed, (str,), fits, to_value, str, near=near, is_object=to_value is not str)


def one_of(*names: str) -> Kind:
    """Return the kind of these texts."""
    return texts(", ".join(names), names.__contains__, near=names)


def numbers(types: tuple[type, ...], least: float, most: float, unit: str = "", *, or_zero: bool = False) -> Kind:
    """Return the kind of numbers in this range, which are read as floats unless the only type is int."""
    is_whole = types == (int,)
    allowed = f"a {'whole ' if is_whole else ''}number from {least:,} to {most:,}"
    if or_zero:
        allowed = f"0, or {allowed}"

    def convert(value: float) -> float:
        if least <= value <= most or (or_zero and value == 0):
            return value if is_whole else float(value)
        why = "not finite"
        if value < least:
            why = "too small"
        elif value > most:
            why = "too large"
        raise ValueError(f"{format_value(value)} is {why}; allowed: {allowed}")

    return Kind(allowed, types, convert, unit=unit, ends=(least, most))


def whole(least: int, most: int, unit: str = "") -> Kind:
    """Return the kind of whole numbers in this range."""
    return numbers((int,), least, most, unit)


_WRITE: Mapping[str, Callable[[Any], str]] = {
    "rate": units.format_rate,
    "size": units.format_size,
    "delay": units.format_delay,
    "time": units.format_delay,
}
"""Functions that write a quantity, by its noun."""


def quantity(of: units.Quantity, example: str = "", within: tuple[float, float] | None = None, words: str = "") -> Kind:
    """Return the kind of texts with a unit. `within` gives the least and the greatest value if they are not those of
    the unit; `words` explains the least."""
    write = _WRITE[of.noun]
    least, most = (of.least, of.most) if within is None else map(write, within)
    of = of._replace(least=least, most=most, example=example or of.example)
    allowed = f'text with a unit, {least}{words} to {most}, such as "{of.example}"'
    return Kind(
        allowed, (str,), lambda given: units.parse(given, of), write, unit=", ".join(of.units), ends=(of.least, of.most)
    )


TRUTH = Kind("true or false", (bool,))
RATE, SIZE, DELAY = quantity(units.RATE), quantity(units.SIZE), quantity(units.DELAY)
LINK_DELAY = quantity(units.LINK_DELAY)
RATES = replace(
    RATE,
    allowed=f'{quantity(units.RATE, "20-200 Gbit/s").allowed} or "{units.RATE.example}"',
    convert=units.parse_rate_range_bps,
    write=units.format_rate_range,
)
SCHEDULE_FILE = texts(
    "the path of a GOAL, MSCCL XML or TE-CCL JSON file, or of Chakra's with * for the rank, in printable text",
    lambda given: given and given.isprintable(),
    Path,
)


def unique(values: Iterable[Any], given: object) -> tuple[Any, ...]:
    """Return these values as a tuple; raises ValueError if there are none or if one occurs twice."""
    items = tuple(values)
    if not items:
        raise ValueError("the list is empty; allowed: one value at least")
    if any(value in items[:index] for index, value in enumerate(items)):
        raise ValueError(f"{format_value(given)} lists a value twice: each may be listed once")
    return items


def name_of(what: str) -> Kind:
    """Return the kind of names of what a [[table]] declares."""
    return texts(f"1 to 32 {NAME_SIGNS}, another for each {what}", NAME.fullmatch)


def read_tables(
    name: str,
    tables: Sequence[object],
    kinds: Mapping[str, Kind],
    *,
    most: int,
    required: Collection[str] = (),
    instead: Mapping[str, str] = MappingProxyType({}),
    check: Callable[[dict[str, Any], dict[str, Any]], Iterable[tuple[str, str]]] = lambda table, values: (),
) -> list[dict[str, Any]]:
    """Return the values of each of a scenario's [[name]] tables by key; `kinds` are the kinds of the keys.

    `instead` has what is allowed in place of some unknown keys. `check` takes the known keys of a table and those of
    its values that are valid, and yields further mistakes, each with its location in the table. Raises SpecError with
    every mistake, located as "job[1].start".
    """
    if len(tables) > most:
        raise SpecError([Mistake(name, f"{len(tables)} tables are too many; allowed: {most}")])
    mistakes, all_values = list[Mistake](), list[dict[str, Any]]()
    for number, table in enumerate(tables, 1):
        values = dict[str, Any]()
        if isinstance(table, dict):
            allowed = f"allowed: {', '.join(kinds)}"
            wrong = [
                (f".{key}", instead.get(key) or f"unknown key of a {name}, {allowed}{did_you_mean(key, kinds)}")
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
            wrong = [("", f"{format_value(table)} is not a table; allowed: the keys {', '.join(kinds)}")]
        mistakes += [Mistake(f"{name}[{number}]{where}", sentence) for where, sentence in wrong]
        all_values.append(values)
    if mistakes:
        raise SpecError(mistakes)
    return all_values


def check_unique(name: str, declared: Sequence[Any], field: str, kind: Kind) -> None:
    """Raise SpecError if two of the objects that [[name]] tables declare have the same value in this field."""
    values = [getattr(each, field) for each in declared]
    for index, value in enumerate(values):
        if value in values[:index]:
            sentence = f"{format_value(value)} is that of another {name}; allowed: {kind.allowed}"
            raise SpecError([Mistake(f"{name}[{index + 1}].{field}", sentence)])
