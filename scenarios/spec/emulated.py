"""Which collectives the emulation measures: the first ones, a range of numbers, or every so-many-th."""

import re
from dataclasses import dataclass

MAX_NUMBER = 10_000_000
ALLOWED = f'a number of collectives from 1 to {MAX_NUMBER:,}, the first and the last one ("98-103"), or "every 50th"'

_RANGE = re.compile(r"([0-9]{1,8})\s*-\s*([0-9]{1,8})")
_PERIOD = re.compile(r"every ([0-9]{1,8})(?:st|nd|rd|th)?")


@dataclass(frozen=True)
class Emulated:
    """The collectives from number `first` to `last` (None: to the end), every `step`-th of them; they are numbered from
    0."""

    first: int = 0
    last: int | None = None
    step: int = 1

    def __str__(self) -> str:
        if self.step > 1 or self.last is None:
            return f"every {self.step}{_ending(self.step)}"
        return f"{self.first}-{self.last}"

    def numbers(self, count: int) -> range:
        """Return the numbers of these collectives, if a run has `count` collectives; perhaps none."""
        return range(self.first, count if self.last is None else min(count, self.last + 1), self.step)


def parse(text: str) -> Emulated:
    """Parse "98-103" or "every 50th"; raises ValueError whose message continues a sentence about the value."""
    if match := _RANGE.fullmatch(text.strip()):
        first, last = map(int, match.groups())
        if first > last:
            raise ValueError(f"ends before it begins; allowed: {ALLOWED}")
        return Emulated(first, last)
    if match := _PERIOD.fullmatch(text.strip()):
        step = int(match[1])
        if not 1 <= step <= MAX_NUMBER:
            raise ValueError(f"is not a period; allowed: {ALLOWED}")
        return Emulated(step=step)
    raise ValueError(f"is not understood; allowed: {ALLOWED}")


def numbers_of(emulated: "int | Emulated", count: int) -> range:
    """Return the numbers of the collectives that the emulation measures, if the model computes `count`."""
    return range(min(emulated, count)) if isinstance(emulated, int) else emulated.numbers(count)


def _ending(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
