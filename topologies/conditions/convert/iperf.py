"""The JSON of iperf3 (`iperf3 --json`): the rate of each interval. Pure."""

import json
from pathlib import Path
from typing import Any, NoReturn

from topologies.conditions.convert.readings import ConvertError, Reading, counted
from topologies.conditions.convert.tables import Table
from topologies.errors import format_value, one_line
from topologies.units import UnitError, parse_number

_ALLOWED = "the output of iperf3 --json, with intervals[].sum.start and .bits_per_second"


def read_iperf(path: Path, text: str, link: str) -> Table:
    """Read the rates of `link` that iperf3 measured; times are those since 1970, or since the test's start if the file
    does not tell it. Raises ConvertError."""
    shown, document = one_line(str(path)), _document(path, text)
    if isinstance(document, dict) and "intervals" not in document and isinstance(document.get("error"), str):
        raise ConvertError(f"{shown}: iperf3 failed: {format_value(document['error'])}; allowed: {_ALLOWED}")
    intervals = document.get("intervals") if isinstance(document, dict) else None
    if not isinstance(intervals, list) or not intervals:
        raise ConvertError(f"{shown}: it has no intervals; allowed: {_ALLOWED}")
    table, omitted = Table(), 0
    begun = _get(document, "start", "timestamp", "timesecs")
    for number, interval in enumerate(intervals):
        where = f"{shown}: intervals[{number}].sum"
        total = _get(interval, "sum")
        if not isinstance(total, dict):
            raise ConvertError(f"{where} is missing; allowed: {_ALLOWED}")
        if total.get("omitted") is True:
            omitted += 1
            continue
        table.readings.append(_reading(total, begun, link, where))
    if not table.readings:
        raise ConvertError(f"{shown}: all of its {omitted:,} intervals are omitted ones; allowed: one or more measured")
    if omitted:
        table.notes.append(f"{shown}: {counted(omitted, 'omitted interval')} at its beginning not used")
    if begun is None:
        table.notes.append(f"{shown}: it has no timestamp; its times are those since the test's start")
    if isinstance(document.get("error"), str):
        table.notes.append(f"{shown}: iperf3 ended with the error {format_value(document['error'])}")
    return table


def _reading(total: dict[str, Any], begun: object, link: str, where: str) -> Reading:
    values = {}
    for key, value in (("start", total.get("start")), ("bits_per_second", total.get("bits_per_second"))):
        if not isinstance(value, _Number):
            raise ConvertError(f"{where}.{key} is {format_value(value)}; allowed: a number")
        values[key] = value
    try:
        time = parse_number(values["start"])
        if begun is not None:
            time += parse_number(begun if isinstance(begun, _Number) else format_value(begun))
    except UnitError as error:
        raise ConvertError(f"{where}.start: {error}") from None
    return Reading(f"{time:f}", (link,), str(values["bits_per_second"]), "bit/s", f"{where}.bits_per_second")


class _Number(str):
    """A number of the JSON, as it is written."""

    __slots__ = ()


def _document(path: Path, text: str) -> Any:
    try:
        return json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        shown = f"{one_line(str(path))}:{error.lineno}"
        raise ConvertError(f"{shown}: it is not valid JSON: {error.msg}; allowed: {_ALLOWED}") from None
    except _ConstantError as error:
        raise ConvertError(f"{one_line(str(path))}: {error} is not a number; allowed: {_ALLOWED}") from None
    except RecursionError:
        raise ConvertError(f"{one_line(str(path))}: it is nested too deeply; allowed: {_ALLOWED}") from None


class _ConstantError(Exception):
    """Raised for NaN and Infinity, which JSON does not have."""


def _refuse(name: str) -> NoReturn:
    raise _ConstantError(name)


def _get(value: object, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
