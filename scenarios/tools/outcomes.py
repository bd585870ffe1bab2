"""What came of the faults of a campaign, and the table that counts it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scenarios.spec.faults import KINDS

OUTCOMES = ("recovered", "ridden out", "aborted", "hung", "wrong data", "left something", "VM lost")
GOOD = ("recovered", "ridden out", "aborted")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one fault: of OUTCOMES, the sentence where there is one, and how many collectives were lost."""

    what: str
    outcome: str
    sentence: str
    lost: int = 0


def table(outcomes: Sequence[Outcome]) -> str:
    """How often what came of which kind of fault."""
    kinds = [_kind(outcome.what) for outcome in outcomes]
    counted = Counter((kind, outcome.outcome) for kind, outcome in zip(kinds, outcomes, strict=True))
    lost = Counter[str]()
    for kind, outcome in zip(kinds, outcomes, strict=True):
        lost[kind] += outcome.lost
    shown = [name for name in OUTCOMES if name in GOOD or any(o.outcome == name for o in outcomes)]
    shown = [*shown, *(name for name in ("hung", "wrong data") if name not in shown)]
    lines = ["| fault | " + " | ".join([*shown, "collectives lost"]) + " |", "| --- " * (len(shown) + 2) + "|"]
    for kind in [*sorted(set(kinds)), "all"]:
        numbers = [sum(n for (k, o), n in counted.items() if o == name and kind in (k, "all")) for name in shown]
        total = sum(lost.values()) if kind == "all" else lost[kind]
        lines.append("| " + " | ".join([kind, *map(str, numbers), str(total)]) + " |")
    return "\n".join(lines)


def _kind(what: str) -> str:
    return next((kind for kind in KINDS if all(word in what.split() for word in kind.split())), "not declared")
