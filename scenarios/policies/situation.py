"""What a policy sees before a collective, and what it may choose: placements and paths, each computed when first used.

A choice that nobody looks at costs nothing: rules that depend on rates alone never compute the placement that they
replace, and the testbed leaves paths to the controller, which chooses them under the same rates.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from controller.routing.network import Network
from scenarios.policies.arrays import Anew, Work
from topologies.fabric.fabric import Fabric, LogicalLink

Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int16]

NO_PATHS: Mapping[tuple[int, int], int] = MappingProxyType({})
"""No path is given for any crossing, a pair of ranks."""

_AHEAD = 16  # collectives for which options with a placement in force are computed: it is often replaced sooner


class Choices(Protocol):
    """Chooses placements and paths and predicts times: for collectives (`decide.Chooser`), or for a program."""

    def placements(self, rates_bps: Floats) -> Ranks:
        """Return the placement chosen under each row of rates [K, links]: [K, n]."""

    def paths(self, placement: Ranks, rates_bps: Floats, *, chosen: bool) -> Ranks:
        """Return the path of every flow, [K, F]: the ones chosen under these rates, or the fixed ones."""

    def seconds(self, placement: Ranks, path: Ranks, rates_bps: Floats) -> Floats:
        """Return the predicted completion times with this placement and these paths under these rates, [K] seconds."""

    @property
    def arrays(self) -> tuple[Network, Work] | None:
        """What a compiled loop needs to predict these times; None if it cannot."""

    @property
    def in_order(self) -> Ranks:
        """The default placement, [n], used until one is chosen."""

    @property
    def fabric(self) -> Fabric:
        """The fabric of the placements and paths."""

    @property
    def delays_s(self) -> Floats:
        """The delays of the logical links, [links] s."""

    def crossings(self, placement: Ranks) -> dict[tuple[int, int], int]:
        """Return the pairs of ranks in two sites between which a placement [n] sends, each with one of its flows."""

    def placed(self, ranks: Sequence[int]) -> Ranks:
        """Return a placement that a user's policy gives, [n]; raises ValueError with what is allowed instead."""

    def routed(self, placement: Ranks, given: Mapping[tuple[int, int], int], rates_bps: Floats) -> Ranks:
        """Return the best paths, [F], of a placement [n] under rates [links], with those that a user's policy gives in
        their place; raises ValueError with what is allowed instead."""


@dataclass(frozen=True, eq=False)
class Placement:
    """A placement, chosen before collective `number` under the believed rates `rates_bps`, [links]; -1: not chosen."""

    number: int
    rates_bps: Floats | None
    choose: Callable[[], Ranks]

    @cached_property
    def ranks(self) -> Ranks:
        """The rank at each place of the schedule, [n]; raises ValueError if there is no placement."""
        return self.choose()


@dataclass(frozen=True, eq=False)
class Routing:
    """Paths for a placement, chosen before collective `number` under the believed rates `rates_bps`, [links]. They are
    the best ones, except for crossings, pairs of ranks, whose path is `given`."""

    number: int
    rates_bps: Floats
    choose: Callable[[], Ranks]
    given: Mapping[tuple[int, int], int] = field(default_factory=lambda: NO_PATHS)

    @cached_property
    def path(self) -> Ranks:
        """The path of every flow, [F]; raises NoPathError for a flow without one."""
        return self.choose()


class Action(NamedTuple):
    """What a policy chooses before a collective; None leaves the placement, or the paths, as they are."""

    placement: Placement | None = None
    routing: Routing | None = None


class Changed(NamedTuple):
    """The event that the conditions have changed while a collective runs, `at_ns` after the first ones of the run."""

    at_ns: int


class InForce(NamedTuple):
    """The placement and the paths in force; without a routing, the flows take the fixed paths."""

    placement: Placement
    routing: Routing | None = None

    def after(self, action: Action) -> "InForce":
        """Return what is in force once an action is carried out."""
        if action.placement is None and action.routing is None:
            return self
        return InForce(action.placement or self.placement, action.routing or self.routing)


class Options:
    """What could be chosen before collectives under the rates believed before them, and the predicted times with it.

    `believed(number)` returns the rates of logical links believed before a collective and, as far as they are known,
    before those that follow it: [K, links], K at least 1. Options are asked for one collective after the other, but
    computed for several, because the cost of a call is nearly the same. The caller hands on what `believed` returned
    then: paths may be computed later, when a belief has learnt or the rates at a prompt have changed. `count` is how
    many collectives there are, None if nobody knows.
    """

    def __init__(
        self, choices: Choices, believed: Callable[[int], Floats], *, reroutes: bool, count: int | None = None
    ) -> None:
        self.believed, self.count = believed, count
        self._choices, self._reroutes = choices, reroutes
        self._rows: dict[str, _Rows] = {}

    @property
    def fabric(self) -> Fabric:
        """The fabric of the placements and paths."""
        return self._choices.fabric

    @property
    def delays_s(self) -> Floats:
        """The delays of the logical links, [links] s."""
        return self._choices.delays_s

    def crossings(self, in_force: InForce, path: Ranks) -> dict[tuple[int, int], int]:
        """Return the path of every crossing, a pair of ranks in two sites, of the paths [F] of a placement in force."""
        return {pair: int(path[flow]) for pair, flow in self._choices.crossings(in_force.placement.ranks).items()}

    def placed(self, number: int, believed: Floats, ranks: Sequence[int]) -> Placement:
        """Return a placement that a user's policy gives; raises ValueError with what is allowed instead."""
        found = self._choices.placed(ranks)
        return Placement(number, believed[0], lambda: found)

    def routed(
        self, number: int, believed: Floats, placement: Placement, given: Mapping[tuple[int, int], int]
    ) -> Routing:
        """Return the paths for a placement, of which a user's policy gives some; raises ValueError as `placed` does."""
        rates_bps = believed[0]
        path = self._choices.routed(placement.ranks, given, rates_bps)
        return Routing(number, rates_bps, lambda: path, MappingProxyType(dict(given)))

    def anew(self, number: int, believed: Floats) -> "_Row":
        """Return the best placement with the best paths for it, or the fixed paths if the policy never re-routes."""
        return self._row("anew", number, None, lambda: _Rows(self._choices, believed, best=self._reroutes))

    def anew_of(self, number: int, believed: Floats) -> Anew:
        """Return the best placement, its paths and its time under each row of believed rates."""
        row = self.anew(number, believed)
        rows = slice(row.at, row.at + len(believed))
        return Anew(row.rows.ranks[rows], row.rows.path[rows], row.rows.seconds[rows])

    def rerouted(self, number: int, believed: Floats, placement: Placement) -> "_Row":
        """Return this placement with the best paths for it."""
        return self._row(
            "rerouted",
            number,
            placement,
            lambda: _Rows(self._choices, believed[:_AHEAD], placement, best=True),
        )

    def kept(self, number: int, believed: Floats, in_force: InForce) -> "_Row":
        """Return the placement and the paths in force."""
        placement, routing = in_force
        return self._row(
            "kept",
            number,
            in_force,
            lambda: _Rows(self._choices, believed[:_AHEAD], placement, routing, best=False),
        )

    def _row(self, name: str, number: int, of: object, compute: Callable[[], "_Rows"]) -> "_Row":
        rows = self._rows.get(name)
        if rows is None or rows.of is not of or not rows.first <= number < rows.first + len(rows.rates_bps):
            rows = compute()
            rows.first, rows.of = number, of
            if len(rows.rates_bps) > 1:  # a single row is only for this attempt: in the next, other faults are in force
                self._rows[name] = rows
        return _Row(rows, number - rows.first)


class _Rows:
    """Placements, paths and predicted times under K rows of rates, each computed when first used. Without a placement
    each row has the best one; without a routing the paths are the best or the fixed ones."""

    def __init__(
        self,
        choices: Choices,
        rates_bps: Floats,
        placement: Placement | None = None,
        routing: Routing | None = None,
        *,
        best: bool,
    ) -> None:
        self._choices, self.rates_bps, self._best = choices, rates_bps, best
        self._placement, self._routing = placement, routing
        self.first, self.of = 0, object()  # the first row's collective, and what the rows were computed for

    @cached_property
    def ranks(self) -> Ranks:
        """The placements, [K, n]."""
        if self._placement is None:
            return self._choices.placements(self.rates_bps)
        return np.tile(self._placement.ranks, (len(self.rates_bps), 1))

    @cached_property
    def path(self) -> Ranks:
        """The paths, [K, F]."""
        if self._routing is None:
            return self._choices.paths(self.ranks, self.rates_bps, chosen=self._best)
        return np.tile(self._routing.path, (len(self.rates_bps), 1))

    @cached_property
    def seconds(self) -> Floats:
        """The predicted times, [K] seconds."""
        return self._choices.seconds(self.ranks, self.path, self.rates_bps)


class _Row(NamedTuple):
    """One row of `_Rows`."""

    rows: _Rows
    at: int

    @property
    def ranks(self) -> Ranks:
        """The placement, [n]."""
        return self.rows.ranks[self.at]  # type: ignore[no-any-return]

    @property
    def path(self) -> Ranks:
        """The paths, [F]."""
        return self.rows.path[self.at]  # type: ignore[no-any-return]

    @property
    def seconds(self) -> float:
        """The predicted time."""
        return float(self.rows.seconds[self.at])


class Link(NamedTuple):
    """A logical link as a policy sees it: its name "s0b0>s1b0", its kind ("intra" between GPUs of a site, "to_br" and
    "from_br" between a GPU and a border router, "wan"), its ends, its delay, and its believed rate, 0 if it is down."""

    name: str
    kind: str
    src: str
    dst: str
    delay_s: float
    rate_bps: float


class Ended(Protocol):
    """What a policy sees of a collective that has ended, as `outcome.Outcome` has it."""

    @property
    def number(self) -> int: ...
    @property
    def arrived_s(self) -> Floats: ...


class Last(NamedTuple):
    """The collective that ended last: its number, and its time from the first message's start to the last arrival, as
    the testbed measured it or, in the model, as predicted; without a reconfiguration before it."""

    number: int
    seconds: float


NAMES = (
    *("number", "count", "rates_bps", "embedded", "routed", "kept_s", "rerouted_s", "anew_s"),
    *("rate", "rate_when_routed", "links", "links_in_use", "paths_in_use", "ring", "last"),
    *("fabric", "placement", "paths"),
)
"""What a user's policy function may use of a situation, as docs/policies.md has it."""


class Situation:
    """The state before a collective, as a policy sees it; also the argument of a user's policy function.

    `number` is the index of the collective, from 0 on. `cables_changed`: the set of failed cables differs from that of
    the previous collective, so that a policy that re-routes chooses its paths again in any case.
    """

    def __init__(
        self,
        number: int,
        in_force: InForce,
        options: Options,
        *,
        cables_changed: bool = False,
        last: Ended | None = None,
    ) -> None:
        self.number, self.in_force, self.cables_changed = number, in_force, cables_changed
        self._options, self._last = options, last

    @property
    def count(self) -> int | None:
        """How many collectives the run has, `collective.count`; None for those of a program and at a prompt."""
        return self._options.count

    @property
    def believed_bps(self) -> Floats:
        """The believed rates of the logical links, [links] bit/s; 0 for a link that is down."""
        return self._believed[0]  # type: ignore[no-any-return]

    @property
    def rates_bps(self) -> Floats:
        """A copy of the believed rates, [links], which the caller may change."""
        return self.believed_bps.copy()

    @property
    def fabric(self) -> Fabric:
        """The fabric: `gpu_sites`, the `links` of `rates_bps`, and the candidate `paths_between` two sites."""
        return self._options.fabric

    @property
    def placement(self) -> list[int]:
        """The placement in force: the rank at each place of the schedule."""
        return self.in_force.placement.ranks.tolist()  # type: ignore[no-any-return]

    @property
    def paths(self) -> dict[tuple[int, int], int]:
        """The paths in force: by source and destination rank in two sites, the index in `fabric.paths`."""
        return self._options.crossings(self.in_force, self._kept.path)

    @property
    def rate(self) -> dict[str, float]:
        """The believed rate of every logical link by its name ("s0b0>s1b0"), in bit/s."""
        return self._by_name(self.believed_bps)

    @property
    def rate_when_routed(self) -> dict[str, float]:
        """The rates by name that were believed when the paths in force were chosen; empty if none were."""
        return {} if self.in_force.routing is None else self._by_name(self.in_force.routing.rates_bps)

    @property
    def links(self) -> dict[str, Link]:
        """Every logical link by its name."""
        return {link.name: link for link in map(self._link, self.fabric.links)}

    @property
    def links_in_use(self) -> list[Link]:
        """The WAN links of the paths in force, each once."""
        used = {link for index in self.paths.values() for link in self.fabric.paths[index].links}
        return [self._link(self.fabric.links[link]) for link in sorted(used)]

    @property
    def paths_in_use(self) -> dict[tuple[str, str], list[str]]:
        """The paths in force by name: by source and destination GPU in two sites, the names of the WAN links."""
        gpus, links, paths = self.fabric.gpus, self.fabric.links, self.fabric.paths
        return {
            (gpus[src].name, gpus[dst].name): [links[link].name for link in paths[index].links]
            for (src, dst), index in self.paths.items()
        }

    @property
    def ring(self) -> list[str]:
        """The names of the GPUs at the places of the schedule: the ring in use, if the collective has one."""
        return [self.fabric.gpus[rank].name for rank in self.placement]

    @property
    def last(self) -> Last | None:
        """The collective that ended last; None before the first one, and for a program."""
        return None if self._last is None else Last(self._last.number, float(self._last.arrived_s.max()))

    def _link(self, link: LogicalLink) -> Link:
        delay_s, rate_bps = float(self._options.delays_s[link.index]), float(self.believed_bps[link.index])
        return Link(link.name, link.kind, link.src, link.dst, delay_s, rate_bps)

    def _by_name(self, rates_bps: Floats) -> dict[str, float]:
        names = [link.name for link in self.fabric.links]
        return dict(zip(names, rates_bps.tolist(), strict=True))

    def place(self, ranks: Sequence[int]) -> Placement:
        """Return this placement as a choice; raises ValueError with what is allowed instead."""
        return self._options.placed(self.number, self._believed, ranks)

    def route(self, placement: Placement, paths: Mapping[tuple[int, int], int]) -> Routing:
        """Return the best paths for a placement as a choice, with these in their place; raises ValueError as above."""
        return self._options.routed(self.number, self._believed, placement, paths)

    @property
    def embedded(self) -> int:
        """The index of the collective before which the placement was last chosen; -1 for never."""
        return self.in_force.placement.number

    @property
    def routed(self) -> int:
        """The index of the collective before which the paths were last chosen; -1 for never."""
        return -1 if self.in_force.routing is None else self.in_force.routing.number

    @property
    def kept_s(self) -> float:
        """The predicted time of this collective with the placement and paths in force. If cables have changed, these
        are the best paths for a policy that re-routes."""
        return self._over.seconds if self.cables_changed else self._kept.seconds

    @property
    def rerouted_s(self) -> float:
        """The predicted time with the placement in force and the best paths for it."""
        return self._over.seconds

    @property
    def anew_s(self) -> float:
        """The predicted time with a new placement and the best paths for it."""
        return self._anew.seconds

    @property
    def rerouted(self) -> Routing:
        """The best paths for the placement in force."""
        return Routing(self.number, self.believed_bps, lambda: self._over.path)

    @property
    def placed(self) -> Placement:
        """The best placement."""
        return Placement(self.number, self.believed_bps, lambda: self._anew.ranks)

    @property
    def newly_routed(self) -> Routing:
        """The best paths for the best placement."""
        return Routing(self.number, self.believed_bps, lambda: self._anew.path)

    @cached_property
    def _believed(self) -> Floats:
        return self._options.believed(self.number)

    @cached_property
    def _kept(self) -> _Row:
        return self._options.kept(self.number, self._believed, self.in_force)

    @cached_property
    def _over(self) -> _Row:
        return self._options.rerouted(self.number, self._believed, self.in_force.placement)

    @cached_property
    def _anew(self) -> _Row:
        return self._options.anew(self.number, self._believed)
