"""Policies (modes): when placement and WAN paths are re-chosen, and which link rates are known then.

The built-in policies are `MODES`; a scenario declares its own in [[policy]] tables.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from hosts.embedding.ring import OBJECTIVES
from scenarios.policies import knowledge as knowing
from scenarios.policies import user_policy
from scenarios.policies.knowledge import ORACLE, PORTS, Knowledge
from scenarios.spec.values import NAME, Kind, check_unique, name_of, quantity, read_tables, texts, whole
from topologies import units
from topologies.errors import format_value

MAX_POLICIES = 100
MAX_NUMBER = 10_000_000

MEASURE_EVERY_S = 1e-3
"""Default of `measure_every`: the seconds between two readings of the port counters."""
_MIN_EVERY_S = 100e-6

_WHEN = (
    f"never, every, every K (1 to {MAX_NUMBER:,} collectives), drift SHARE or gain SHARE (a number from 0 up, or inf)"
)
_OR_TIME = _WHEN.replace("drift", "every TIME (with conditions.every), drift")


@dataclass(frozen=True)
class When:
    """The rule by which a policy decides, before each collective, whether to choose again.

    `every K`: before every collective whose index is a multiple of K; without K (`number` is None), of the scenario's
    `collective.reembed_every`. `every TIME`, stored as K = 1 with `within_s`: before every collective, and also while
    it runs, whenever conditions change at a multiple of `within_s` seconds. `drift SHARE`: before the first collective,
    and whenever the believed rates differ on average by at least SHARE from those of the last choice. `gain SHARE`:
    whenever the predicted gain outweighs the cost (`rules.is_due`). `own`: a user's function decides.
    """

    kind: str = "never"
    number: float | None = None
    within_s: float | None = None

    def __str__(self) -> str:
        if self.within_s is not None:
            return f"{self.kind} {units.format_delay(self.within_s)}"
        return self.kind if self.number is None else f"{self.kind} {self.number!r}".removesuffix(".0")

    @property
    def ever(self) -> bool:
        """Whether this rule ever triggers."""
        return self.kind != "never"

    @property
    def is_periodic(self) -> bool:
        """Whether the rule depends on the collective's index only."""
        return self.kind in ("never", "every")

    def period(self, reembed_every: int) -> int:
        """Return for how many collectives a periodic rule keeps one choice."""
        return reembed_every if self.number is None else int(self.number)

    def at(self, number: Any, reembed_every: int) -> Any:
        """Return whether a periodic rule triggers before collective `number`: a bool, or an array for an array."""
        return self.ever & (number % self.period(reembed_every) == 0)


NEVER, ALWAYS, OWN = When(), When("every", 1), When("own")


def when(text: str, words: str = _WHEN) -> When:
    """Parse a rule such as "every 10"; raises ValueError whose message describes the allowed rules by `words`."""
    kind, _, parameter = map(str.strip, text.strip().partition(" "))
    needs_parameter = {"never": False, "every": bool(parameter), "drift": True, "gain": True}
    if needs_parameter.get(kind) != bool(parameter):
        raise ValueError(f"is not known; allowed: {words}")
    if not parameter:
        return When(kind)
    if kind == "every" and words == _OR_TIME and not re.fullmatch(r"[-+\d_.]*", parameter):
        try:
            return When(kind, 1, units.parse_delay_s(parameter))
        except units.UnitError as error:
            raise ValueError(f"has no such time: {error}") from None
    try:
        number = int(parameter) if kind == "every" else float(parameter)
    except ValueError:
        raise ValueError(f"has no such number; allowed: {words}") from None
    least, most = (1, MAX_NUMBER) if kind == "every" else (0, math.inf)
    if not least <= number <= most:
        raise ValueError(f"is out of range; allowed: {words}")
    return NEVER if number == math.inf else When(kind, number)


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A policy: when WAN paths (`reroute`) and the placement (`reembed`) are re-chosen, with which knowledge of rates.

    A new placement implies new paths in any policy that re-routes. `horizon` is the number of collectives over which
    `gain` weighs a choice against its cost; None means `collective.reembed_every`. `measure_every_s` is the interval
    between readings of the port counters, for knowledge from ports. `ring` is the objective that its rings minimise;
    None means `collective.ring`. `function`, "FILE:NAME", makes the decisions where both rules are OWN. A mode without
    knowledge of its own `inherits` that of `control.knowledge` (`informed`).
    """

    name: str
    reroute: When = NEVER
    reembed: When = NEVER
    knowledge: Knowledge = ORACLE
    measure_every_s: float | None = None
    ring: str | None = None
    horizon: int | None = None
    function: str | None = None
    inherits: bool = False

    def informed(self, knowledge: Knowledge) -> "Mode":
        """Return this mode with the knowledge that modes have by default, if it has none of its own."""
        if not self.inherits or knowledge == ORACLE:
            return self
        every_s = MEASURE_EVERY_S if knowledge.kind == PORTS else None
        return replace(self, knowledge=knowledge, measure_every_s=every_s)

    @property
    def reroutes(self) -> bool:
        """Whether this policy ever chooses WAN paths."""
        return self.reroute.ever

    @property
    def reembeds(self) -> bool:
        """Whether this policy ever chooses the placement."""
        return self.reembed.ever

    @property
    def is_periodic(self) -> bool:
        """Whether a collective's index determines what is re-chosen before it."""
        return self.reroute.is_periodic and self.reembed.is_periodic

    @property
    def keeps_paths(self) -> bool:
        """Whether chosen paths may still be in force after conditions have changed."""
        return self.reroutes and self.reroute != ALWAYS

    def may_choose_at(self, number: Any, every: int) -> Any:
        """Return whether a choice is, or may be, due before collective `number`: a bool, or an array for an array."""
        return not self.is_periodic or self.reroute.at(number, every) | self.reembed.at(number, every)

    def written(self) -> dict[str, Any]:
        """Return the [[policy]] table that declares this policy."""
        table: dict[str, Any] = {"name": self.name}
        if self.function is None:
            table |= {"reroute": str(self.reroute), "reembed": str(self.reembed)}
        else:
            table["function"] = self.function
        if not self.inherits:
            table["knowledge"] = str(self.knowledge)
        if self.measure_every_s is not None:
            table["measure_every"] = units.format_delay(self.measure_every_s)
        optional = {"ring": self.ring, "horizon": self.horizon}
        return table | {key: value for key, value in optional.items() if value is not None}


MODES = {
    mode.name: mode
    for mode in (
        Mode(name="base", inherits=True),
        Mode(name="ccl", reembed=When("every"), inherits=True),
        Mode(name="wan", reroute=ALWAYS, inherits=True),
        Mode(name="joint", reroute=ALWAYS, reembed=When("every"), inherits=True),
    )
}
"""The built-in policies."""


def _naming_value(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap a parser for use in a `Kind`: put the offending value in front of the message of its ValueError."""

    def convert(value: str) -> Any:
        try:
            return read(value)
        except ValueError as error:
            raise ValueError(f"{format_value(value)} {error}") from None

    return convert


def _loadable(value: str) -> str:
    user_policy.check(value)  # raises ValueError if it cannot be loaded
    return value


_PERIOD = quantity(units.DELAY, "1 ms", (_MIN_EVERY_S, 1000.0))

KNOWLEDGE = Kind(knowing.WORDS, (str,), _naming_value(knowing.parse), str, is_object=True)
"""The kind of a value that says what a mode knows of the links' rates."""

KINDS = {
    "name": texts(
        f"{name_of('policy').allowed} and none of {', '.join(MODES)}",
        lambda name: NAME.fullmatch(name) is not None and name not in MODES,
    ),
    "reroute": Kind(_OR_TIME, (str,), _naming_value(lambda value: when(value, _OR_TIME))),
    "reembed": Kind(_WHEN, (str,), _naming_value(when)),
    "knowledge": KNOWLEDGE,
    "measure_every": replace(_PERIOD, allowed=f"with measured ports: {_PERIOD.allowed} (the default)"),
    "ring": texts(
        f"if the policy re-embeds: {', '.join(OBJECTIVES)}; default: the value of collective.ring",
        OBJECTIVES.__contains__,
        near=OBJECTIVES,
    ),
    "function": Kind(
        "FILE:NAME, a Python function or class in place of reroute and reembed; relative to the scenario's file",
        (str,),
        _naming_value(_loadable),
    ),
    "horizon": whole(1, MAX_NUMBER, "collectives"),
}
"""The keys of a [[policy]] table and the values that each of them allows."""


def read(tables: list[object]) -> tuple[Mode, ...]:
    """Return the policies declared by a scenario's [[policy]] tables; raises SpecError naming e.g. policy[1].name."""
    values = read_tables("policy", tables, KINDS, most=MAX_POLICIES, required=("name",), check=_check)
    policies = tuple(Mode(**fields) for fields in values)
    check_unique("policy", policies, "name", KINDS["name"])
    return policies


def _check(table: dict[str, Any], values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Turn a table's `values` into the fields of a `Mode` and yield its mistakes, as the `check` of `read_tables`."""
    if "function" in values:
        values |= {"reroute": OWN, "reembed": OWN}
    values["inherits"] = "knowledge" not in table
    every_s = values.pop("measure_every", MEASURE_EVERY_S)
    if values.get("knowledge", ORACLE).kind == PORTS:
        values["measure_every_s"] = every_s
    for key in ("reroute", "reembed", "horizon"):
        if key in table and "function" in table:
            yield f".{key}", "cannot be combined with function; allowed: one of the two"
