"""Traces of requests to a language model, such as public ones: CSV files with times and numbers of tokens."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from analysis.model.serving import Request
from topologies.errors import format_value

_MOST_S = 1e12
_COLUMNS = {
    "time": ("time", "timestamp", "arrival", "arrived_at"),
    "input tokens": ("input", "input_tokens", "contexttokens", "context_tokens", "num_prefill_tokens", "input_length"),
    "output tokens": ("output", "output_tokens", "generatedtokens", "num_decode_tokens", "output_length"),
}
"""Names of the columns of a trace, in lower case; those of Azure's public traces are TIMESTAMP, ContextTokens and
GeneratedTokens."""


def read(path: Path) -> list[Request]:
    """Return the requests of a CSV file, from its first one on, in the order of their times (s, or ISO 8601, which is
    UTC without a zone), to 1 ns; raises ValueError, whose text begins with the path."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    rows = csv.reader(io.StringIO(text, newline=""))
    requests, kinds = list[Request](), set[bool]()
    try:
        places = _places(path, [name.strip().lower() for name in next(rows, [])])
        for row in filter(None, rows):
            at = f"{path}, line {rows.line_num}"
            time, *tokens = (row[place].strip() if place < len(row) else "" for place in places)
            for token in tokens:
                if not (token.isascii() and token.isdecimal() and 0 < len(token.lstrip("0")) < 10):
                    raise ValueError(
                        f"{at}: {format_value(token)} is not a number of tokens; allowed: 1 to 999,999,999"
                    )
            instant_s, is_date = _instant_s(time, at)
            kinds.add(is_date)
            if len(kinds) > 1:
                raise ValueError(f"{at}: {format_value(time)} is not a time of the lines above; allowed: either kind")
            requests.append(Request(instant_s, *map(int, tokens)))
    except csv.Error as error:
        raise ValueError(f"{path}, line {rows.line_num} is not CSV: {error}") from None
    if not requests:
        raise ValueError(f"{path} has no requests; allowed: a line for each, below the columns' names")
    first_s = min(request.arrival_s for request in requests)
    since = (replace(one, arrival_s=round(one.arrival_s - first_s, 9)) for one in requests)
    return sorted(since, key=lambda one: one.arrival_s)


def _places(path: Path, names: Sequence[str]) -> list[int]:
    """Return which columns have the time, the input and the output tokens; raises ValueError."""
    places = list[int]()
    for what, allowed in _COLUMNS.items():
        name = next((one for one in allowed if one in names), None)
        if name is None:
            raise ValueError(f"{path} has no column of the {what}; allowed: one called {', '.join(allowed)}")
        if names.count(name) > 1:
            raise ValueError(f"{path} has {names.count(name)} columns called {name}; allowed: one")
        places.append(names.index(name))
    return places


def _instant_s(text: str, at: str) -> tuple[float, bool]:
    """Return a time in s, and whether it is a date; one without a zone is UTC, whatever the zone of this machine."""
    is_date = False
    try:
        value = float(text)
    except ValueError:
        try:
            date = datetime.fromisoformat(text)
            value, is_date = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp(), True
        except ValueError:
            value = math.nan
    if not abs(value) <= _MOST_S:  # nor is NaN
        allowed = f"seconds, or a date and time in ISO 8601; at most {_MOST_S:,.0f} s"
        raise ValueError(f"{at}: {format_value(text)} is not a time; allowed: {allowed}")
    return value, is_date
