"""Errors of declarations, each mistake with its scenario key, and helpers that write values into messages."""

import difflib
import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_MAX_LINE = 500  # most characters of a text that `one_line` puts into a message
_MAX_SHOWN = 60  # most characters of a value that `format_value` puts into a message


class Mistake(NamedTuple):
    """One mistake: the scenario key at fault, and a sentence with the offending value and what is allowed."""

    key: str
    text: str


class SpecError(ValueError):
    """Raised for an invalid declaration; `mistakes` holds every mistake in the order in which keys are checked."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(f"{mistake.key}: {mistake.text}" for mistake in self.mistakes))

    def __reduce__(self) -> tuple[type["SpecError"], tuple[tuple[Mistake, ...]]]:
        return type(self), (self.mistakes,)  # the default would rebuild it from its message, without the mistakes


class FabricError(SpecError):
    """Raised for a fabric that cannot be built."""


class ConditionsError(SpecError):
    """Raised for conditions that cannot be sampled."""


def list_first(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """List the first `most` names for a message: "a, b, c and 5 more"."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def list_all(names: Sequence[str]) -> str:
    """List all of one or more names for a message: "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def elements(text: str, parts: Sequence[str]) -> list[str]:
    """Return the elements `parts` of a list that a user typed as `text`; ValueError if one of several is empty."""
    given = [part.strip() for part in parts]
    if len(given) > 1 and "" in given:
        allowed = ",".join(part for part in given if part) or "one value at least"
        raise ValueError(
            f"element {given.index('') + 1} of the list {format_value(text)} is empty; allowed: {one_line(allowed)}"
        )
    return given


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return `` (did you mean …?)`` with the known word closest in spelling, or "" if no word is close.

    Words that differ in their capitals only are the same. `cutoff` is the least similarity, 0 to 1.
    """
    if len(word) > _MAX_SHOWN:
        return ""  # comparing a long text takes time and finds no close word
    known = list(known)
    nearest = [name for name in known if name.casefold() == word.casefold()]
    nearest += difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return f" (did you mean {nearest[0]}?)" if nearest else ""


def format_value(value: object) -> str:
    """Write a value for a message: as TOML spells it, on one line, and cut if it is long."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"  # Python refuses to convert very large ones to text
    if isinstance(value, str):
        text = json.dumps(value[: _MAX_SHOWN + 1], ensure_ascii=not value.isprintable())
    elif isinstance(value, list):
        text = f"[{', '.join(format_value(item) for item in value[:8])}{', …' if len(value) > 8 else ''}]"
    elif isinstance(value, dict):
        items = [f"{one_line(str(key))} = {format_value(item)}" for key, item in [*value.items()][:8]]
        text = f"{{{', '.join(items)}{', …' if len(value) > 8 else ''}}}"
    else:
        text = str(value).lower() if isinstance(value, bool | float) else str(value)
    return text if len(text) <= _MAX_SHOWN + 2 else f"{text[:_MAX_SHOWN]}…"


def one_line(text: str) -> str:
    """Write a user's text for a message: printable, on one line, and cut if it is very long."""
    if len(text) > _MAX_LINE:
        text = text[:_MAX_LINE] + "…"
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
