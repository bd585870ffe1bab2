"""What a paper is here: its reference, what had to be assumed, and what computes its figure and judges its claims."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scenarios.studies.harness import Column, Show, Table

if TYPE_CHECKING:
    from analysis.figures.output import Picture

SAME_SIZE, SAME_DIRECTION, DIFFERS = "same size", "same direction", "differs"
NOT_CLAIMED = "not the paper's"
"""The verdict on what is asked here beside the paper's claims."""
TOLERANCE = 0.1
"""How far an effect may be from the published one, as a share of that, to have the same size."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a paper says, and what was found here, which `is_measured` or else predicted.

    `neutral` is the number without an effect: 0 for a gain, 1 for a ratio. `published` is the paper's number. Without
    one, `rises` tells whether the paper's effect is above `neutral`. `because` explains a result that has not the
    paper's size. What `is_ours` was not found in the paper: it is asked here, and there is nothing to compare it with.
    """

    says: str
    found: float
    published: float | None = None
    neutral: float = 0.0
    rises: bool = True
    unit: str = ""
    because: str = ""
    is_measured: bool = False
    is_ours: bool = False

    @property
    def verdict(self) -> str:
        """Whether the effect has the paper's size (within `TOLERANCE`) or at least its direction, or differs."""
        if self.is_ours:
            return NOT_CLAIMED
        effect = self.found - self.neutral
        if self.published is None:
            return SAME_DIRECTION if (effect > 0) is self.rises and effect else DIFFERS
        theirs = self.published - self.neutral
        if abs(effect - theirs) <= TOLERANCE * abs(theirs):
            return SAME_SIZE
        return SAME_DIRECTION if effect * theirs > 0 else DIFFERS

    @property
    def why(self) -> str:
        """The reason for a result that differs in size or direction; "" if it does not, or no size was published."""
        is_sized = self.published is not None
        has_reason = self.verdict == DIFFERS or (self.verdict == SAME_DIRECTION and is_sized)
        return self.because if has_reason else ""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a user may choose for each paper: whether some points are measured, how many processes or VMs run at a time,
    the seed of what is random, and the folder of published data, if there is one."""

    measures: bool
    jobs: int
    seed: int
    data: str | None = None


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """What a paper's figure is here: tables, the claims judged, the lines as JSON, and the picture."""

    tables: Sequence[Table[Any]]
    claims: Sequence[Claim]
    lines: Sequence[dict[str, Any]]
    picture: "Callable[[], Picture] | None"
    problems: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper: where it was published, which of its results is repeated, what is not public and was assumed, and the
    function that repeats it. It may read published data, if a user has them."""

    reference: str
    result: str
    assumed: Sequence[str]
    repeat: Callable[[Settings, Show], Repeated]
    reads_data: bool = False


def claims_table(claims: Sequence[Claim]) -> Table[Claim]:
    """Return the table of a paper's claims beside what was found."""

    def number(value: float | None, unit: str) -> str:
        return "" if value is None else f"{value:,.3g}{unit and f' {unit}'}"

    columns = [
        Column[Claim]("claim", lambda claim: claim.says, left=True),
        Column[Claim](
            "paper", lambda claim: number(claim.published, claim.unit), why="no number of the paper is known"
        ),
        Column[Claim]("here", lambda claim: number(claim.found, claim.unit)),
        Column[Claim]("", lambda claim: "measured" if claim.is_measured else "predicted", left=True),
        Column[Claim]("verdict", lambda claim: claim.verdict, left=True),
    ]
    reasons = [f"{claim.says}: {claim.verdict}, because {claim.why}" for claim in claims if claim.why]
    if claims and all(claim.published is None for claim in claims):
        reasons.insert(0, "No number of the paper is known here: the verdicts are about directions alone.")
    return Table(columns, claims, title=f"Claims (same size: within {TOLERANCE:.0%} of the effect)", notes=reasons)
