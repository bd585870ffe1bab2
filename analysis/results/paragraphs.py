"""What the command says of a run: paragraphs of sentences, which it prints and stores, and which the report shows."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class About(StrEnum):
    """What a paragraph is about. `NOTES` are told before the run, `EMPTY` is why cells of the table have no number,
    `BLOCKS` which intervals rest on few blocks of collectives, `POOLED` the means over seeds, `OPENING` how long
    connections took to open, `LACKING` what failed or was not measured, and `ECMP` what that alone would gain."""

    NOTES = "notes"
    ANSWER = "answer"
    FIDELITY = "fidelity"
    EMPTY = "empty cells"
    BLOCKS = "few blocks"
    POOLED = "means over seeds"
    BOUNDS = "bounds"
    OPENING = "opening"
    CHOICES = "choices"
    JOBS = "jobs"
    TRANSFERS = "transfers"
    FAULTS = "faults"
    TRAINING = "training"
    ORDERS = "orders"
    CLAIMS = "claims"
    ECMP = "ecmp"
    LACKING = "lacking"


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """Lines on one matter, which may have a heading; a line that begins with blanks belongs to the one above."""

    about: About
    lines: tuple[str, ...]
    heading: str = ""

    def __str__(self) -> str:
        return "\n".join([*[self.heading] * bool(self.heading), *self.lines])


def paragraph_of(value: object) -> Paragraph:
    """Return a paragraph from the fields that are stored of it; raises ValueError for anything else."""
    match value:
        case {"about": str() as about, "heading": str() as heading, "lines": list() as lines} if about in [
            *About
        ] and all(isinstance(line, str) for line in lines):
            return Paragraph(about=About(about), lines=tuple(lines), heading=heading)
    raise ValueError("it is not a list of paragraphs")


def those_about(paragraphs: Iterable[Paragraph], *matters: About) -> tuple[Paragraph, ...]:
    """Return the paragraphs on some matters that have lines."""
    return tuple(one for one in paragraphs if one.about in matters and one.lines)
