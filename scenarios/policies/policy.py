"""Policies: when a mode chooses its ring and its WAN paths anew, and what it knows then. Pure.

The built-in ones are `MODES`; a scenario declares others in [[policy]] tables.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from hosts.embedding.ring import OBJECTIVES
from scenarios.policies import knowledge as knowing
from scenarios.policies import own
from scenarios.policies.knowledge import ORACLE, PORTS, PROBED, Knowledge
from scenarios.spec.values import NAME, Kind, check_unique, name_of, quantity, read_tables, texts, whole
from topologies import units
from topologies.errors import shown

MAX_POLICIES = 100
MAX_NUMBER = 10_000_000

MEASURE_EVERY_S = 1e-3
"""The time between two readings of counters, if not given."""
_LEAST_EVERY_S = 100e-6

_WHEN = (
    f"never, every, every K (1 to {MAX_NUMBER:,} collectives), drift SHARE or gain SHARE (a number from 0 up, or inf)"
)
_OR_TIME = _WHEN.replace("drift", "every TIME (with conditions.every), drift")


@dataclass(frozen=True)
class When:
    """When something is chosen anew, before a collective is run.

    `every K`: before those whose number is a multiple of K; without K (None), of the scenario's
    `collective.reembed_every`. `every TIME`, K = 1 with `within_s`: before each, and while it runs at those instants at
    which conditions change that are multiples of so many seconds. `drift SHARE`: where the believed rates are on
    average at least that share away from those of its last choice, and before the first. `gain SHARE`: where the
    predicted gain is worth it (`timing`).
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
        """Whether anything is ever chosen."""
        return self.kind != "never"

    @property
    def is_periodic(self) -> bool:
        """Whether it depends on the number of the collective alone."""
        return self.kind in ("never", "every")

    def period(self, reembed_every: int) -> int:
        """How many collectives in a row keep one choice, of what is periodic."""
        return reembed_every if self.number is None else int(self.number)

    def at(self, number: Any, reembed_every: int) -> Any:
        """Whether it is before this collective, of what is periodic: a bool, or an array for an array of numbers."""
        return self.ever & (number % self.period(reembed_every) == 0)


NEVER, ALWAYS, OWN = When(), When("every", 1), When("own")


def when(text: str, words: str = _WHEN) -> When:
    """The moments of these words, of which `words` says what is allowed; raises ValueError with a sentence."""
    kind, _, rest = text.strip().partition(" ")
    if kind not in ("never", "every", "drift", "gain") or (kind != "every" and bool(rest) != (kind != "never")):
        raise ValueError(f"is not known; allowed: {words}")
    if not rest:
        return When(kind)
    if kind == "every" and words == _OR_TIME and not re.fullmatch(r"[-+\d_.]*", rest):
        try:
            return When(kind, 1, units.parse_delay_s(rest))
        except units.UnitError as error:
            raise ValueError(f"has no such time: {error}") from None
    try:
        number = int(rest) if kind == "every" else float(rest)
    except ValueError:
        raise ValueError(f"has no such number; allowed: {words}") from None
    if not (1 <= number <= MAX_NUMBER if kind == "every" else number >= 0):
        raise ValueError(f"is out of range; allowed: {words}")
    return NEVER if number == math.inf else When(kind, number)


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A policy: when WAN paths and the placement are chosen anew, under what is known of conditions.

    With a new placement, paths are chosen too if they ever are. `horizon` is how many collectives a choice is taken to
    serve where its gain is weighed against its cost; None is `collective.reembed_every`. `measure_every_s` is the time
    between two readings of ports' counters, where knowledge is of those. `ring` is what its rings have the least of,
    None: as `collective.ring` has it. `function`, "FILE:NAME", says what is chosen when both are OWN.
    """

    name: str
    reroute: When = NEVER
    reembed: When = NEVER
    knowledge: Knowledge = ORACLE
    measure_every_s: float | None = None
    ring: str | None = None
    horizon: int | None = None
    function: str | None = None

    @property
    def reroutes(self) -> bool:
        """Whether it ever chooses WAN paths."""
        return self.reroute.ever

    @property
    def reembeds(self) -> bool:
        """Whether it ever chooses the placement."""
        return self.reembed.ever

    @property
    def is_periodic(self) -> bool:
        """Whether the number of a collective says what is chosen anew before it."""
        return self.reroute.is_periodic and self.reembed.is_periodic

    @property
    def keeps_paths(self) -> bool:
        """Whether paths that were chosen may be in force under other conditions."""
        return self.reroutes and self.reroute != ALWAYS

    def kept(self, reembed_every: int) -> int:
        """How many collectives in a row keep what was chosen before the first of them; 1 where conditions decide it."""
        periods = [one.period(reembed_every) for one in (self.reroute, self.reembed) if one.kind == "every"]
        return math.lcm(*periods)

    def reembeds_at(self, number: Any, every: int) -> Any:
        """Whether the placement is chosen anew before this collective: a bool, or an array for an array of numbers."""
        return self.reembed.at(number, every)

    def reroutes_at(self, number: Any, every: int) -> Any:
        """Whether paths are chosen anew before it."""
        return self.reroute.at(number, every) | (self.reroutes & self.reembeds_at(number, every))

    def routes_at(self, number: Any, every: int) -> Any:
        """Whether its paths are installed, chosen or fixed: others may cross the WAN after a new placement."""
        return self.reroutes_at(number, every) | self.reembeds_at(number, every)

    def probes_at(self, number: Any, every: int) -> Any:
        """Whether candidate paths are probed before this collective: where something is chosen, or may be."""
        may = not self.is_periodic or self.reembeds_at(number, every) | self.reroutes_at(number, every)
        return (self.knowledge.kind == PROBED) & may

    def written(self) -> dict[str, Any]:
        """The table that declares it."""
        found: dict[str, Any] = {"name": self.name}
        if self.function is None:
            found |= {"reroute": str(self.reroute), "reembed": str(self.reembed)}
        else:
            found |= {"function": self.function}
        found["knowledge"] = str(self.knowledge)
        if self.measure_every_s is not None:
            found["measure_every"] = units.format_delay(self.measure_every_s)
        if self.ring is not None:
            found["ring"] = self.ring
        return found | ({} if self.horizon is None else {"horizon": self.horizon})


MODES = {
    mode.name: mode
    for mode in (
        Mode(name="base"),
        Mode(name="ccl", reembed=When("every")),
        Mode(name="wan", reroute=ALWAYS),
        Mode(name="joint", reroute=ALWAYS, reembed=When("every")),
    )
}
"""The built-in policies."""


def _said(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """As a kind of value wants it, of a function whose errors are sentences without the value."""

    def convert(value: str) -> Any:
        try:
            return read(value)
        except ValueError as error:
            raise ValueError(f"{shown(value)} {error}") from None

    return convert


def _function(value: str) -> str:
    own.function(value)
    return value


_PERIOD = quantity(units.DELAY, "1 ms", (_LEAST_EVERY_S, 1000.0))

KINDS = {
    "name": texts(
        f"{name_of('policy').allowed} and none of {', '.join(MODES)}",
        lambda name: NAME.fullmatch(name) is not None and name not in MODES,
    ),
    "reroute": Kind(_OR_TIME, (str,), _said(lambda value: when(value, _OR_TIME))),
    "reembed": Kind(_WHEN, (str,), _said(when)),
    "knowledge": Kind(knowing.WORDS, (str,), _said(knowing.parse)),
    "measure_every": replace(_PERIOD, allowed=f"with measured ports: {_PERIOD.allowed} (the default)"),
    "ring": texts(
        f"with one that re-embeds: {', '.join(OBJECTIVES)}; that of collective.ring if not given",
        OBJECTIVES.__contains__,
        near=OBJECTIVES,
    ),
    "function": Kind(
        "FILE:NAME, a Python function in place of reroute and reembed; relative to the scenario's file",
        (str,),
        _said(_function),
    ),
    "horizon": whole(1, MAX_NUMBER, "collectives"),
}
"""The keys of a [[policy]] table, each with what it allows."""


def read(tables: list[object]) -> tuple[Mode, ...]:
    """The policies that a scenario's list of tables declares; raises SpecError with mistakes, as "policy[1].name"."""
    values = read_tables("policy", tables, KINDS, most=MAX_POLICIES, required=("name",), check=_check)
    found = tuple(Mode(**one) for one in values)
    check_unique("policy", found, "name", KINDS["name"])
    return found


def _check(table: dict[str, Any], values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """As `read_tables` wants it; the values become the fields of a mode."""
    if "function" in values:
        values |= {"reroute": OWN, "reembed": OWN}
    every_s = values.pop("measure_every", MEASURE_EVERY_S)
    if values.get("knowledge", ORACLE).kind == PORTS:
        values["measure_every_s"] = every_s
    if "measure_every" in table and str(table.get("knowledge")).strip() != PORTS:
        yield ".measure_every", f"is given beside other knowledge; allowed: {KINDS['measure_every'].allowed}"
    if "ring" in table and "function" not in table and str(table.get("reembed", NEVER)).strip() == str(NEVER):
        yield ".ring", f"is given beside reembed {NEVER}; allowed: {KINDS['ring'].allowed}"
    for key in ("reroute", "reembed", "horizon"):
        if key in table and "function" in table:
            yield f".{key}", "is given beside function; allowed: one of the two"
