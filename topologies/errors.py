"""What is wrong with a declaration: every mistake at once, each with the scenario key it belongs to."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


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

    @property
    def key(self) -> str:
        """The scenario key of the first mistake."""
        return self.mistakes[0].key


class FabricError(SpecError):
    """A fabric that cannot be built."""


class ConditionsError(SpecError):
    """Conditions that cannot be sampled."""


def first_of(names: Sequence[str], most: int) -> str:
    """The first of some names as a message can list them: "a, b, c and 5 more"."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
