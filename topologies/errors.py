"""What is wrong with a declaration: every mistake with its scenario key; and how messages show values."""

import difflib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

_LINE = 500  # characters of a message's part, at most
_SHOWN = 60  # characters of a value that a message repeats


class Mistake(NamedTuple):
    """One thing wrong: the scenario key at fault and a sentence with the offending value and what is allowed."""

    key: str
    text: str


class SpecError(ValueError):
    """A declaration that cannot be built; carries all of its mistakes, in the order of the keys checked."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(f"{mistake.key}: {mistake.text}" for mistake in self.mistakes))

    def __reduce__(self) -> tuple[type["SpecError"], tuple[tuple[Mistake, ...]]]:
        return type(self), (self.mistakes,)  # an exception crosses process boundaries by its arguments


class FabricError(SpecError):
    """A fabric that cannot be built."""


class ConditionsError(SpecError):
    """Conditions that cannot be sampled."""


def read_tables(
    name: str,
    tables: Sequence[object],
    *,
    most: int,
    keys: Collection[str],
    read: Callable[[dict[str, Any], dict[str, Any]], Iterator[tuple[str, str]]],
) -> list[dict[str, Any]]:
    """The fields of what a scenario's [[name]] tables declare, which have these keys.

    `read` takes the known keys of a table and a dict that it adds fields to, and yields what is wrong, each with its
    place in the table. Raises SpecError with every mistake, as "job[1].start".
    """
    if len(tables) > most:
        raise SpecError([Mistake(name, f"{len(tables)} tables are too many; allowed: {most}")])
    mistakes, found = list[Mistake](), list[dict[str, Any]]()
    for number, table in enumerate(tables, 1):
        fields = dict[str, Any]()
        if isinstance(table, dict):
            lost, allowed = [key for key in table if key not in keys], f"allowed: {', '.join(keys)}"
            wrong = [(f".{key}", f"unknown key of a {name}, {allowed}{did_you_mean(key, keys)}") for key in lost]
            wrong += read({key: value for key, value in table.items() if key in keys}, fields)
        else:
            wrong = [("", f"{shown(table)} is not a table; allowed: the keys {', '.join(keys)}")]
        mistakes += [Mistake(f"{name}[{number}]{place}", text) for place, text in wrong]
        found.append(fields)
    if mistakes:
        raise SpecError(mistakes)
    return found


def check_unique(name: str, found: Sequence[Any], field: str, allowed: str) -> None:
    """Raise SpecError where one of what [[name]] tables declare has the field of another."""
    values = [getattr(one, field) for one in found]
    for number, value in enumerate(values):
        if value in values[:number]:
            text = f"{shown(value)} is that of another {name}; allowed: {allowed}"
            raise SpecError([Mistake(f"{name}[{number + 1}].{field}", text)])


def first_of(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first of some names as a message can list them: "a, b, c and 5 more"."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def listed(names: Sequence[str]) -> str:
    """All of some names, one or more: "a, b and c"."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`` (did you mean …?)`` with the known word nearest by spelling, or nothing where none is near."""
    if len(word) > _SHOWN:
        return ""  # a distance to a long text costs time and names nothing
    nearest = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {nearest[0]}?)" if nearest else ""


def shown(value: object) -> str:
    """A value as a message can repeat it: TOML's spelling, on one line, cut where it is long."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"  # Python refuses to write some of these out
    if isinstance(value, str):
        text = json.dumps(value[: _SHOWN + 1], ensure_ascii=not value.isprintable())
    elif isinstance(value, list):
        text = f"[{', '.join(shown(item) for item in value[:8])}{', …' if len(value) > 8 else ''}]"
    else:
        text = str(value).lower() if isinstance(value, bool | float) else str(value)
    return text if len(text) <= _SHOWN + 2 else f"{text[:_SHOWN]}…"


def one_line(text: str) -> str:
    """Text of the user's as a message can hold it: printable, on one line, cut where it is very long."""
    text = text[:_LINE] + "…" * (len(text) > _LINE)
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
