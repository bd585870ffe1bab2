"""What is wrong with a declaration: every mistake with its scenario key; and how messages show values."""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

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


def beside(key: str, text: str, others: Mapping[str, object]) -> Iterator[Mistake]:
    """A mistake for each of these others that is there: what `text` says stands beside it."""
    for other, is_there in others.items():
        if is_there:
            yield Mistake(key, f"{text} beside {other}; allowed: one of the two")


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
