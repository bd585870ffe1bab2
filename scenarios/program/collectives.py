"""What the collectives of a script get that uses the backend `longhaul`: a schedule, a placement and WAN paths.

They are chosen as those of the testbed's own collectives: by the same players, choosers and generators. A *group* is
what torch calls a process group. Collectives of a group that have the same kind and root share a player, whose
collective 0 is the first of them: they keep a placement until the policy chooses again. Pure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from controller.routing.wan_path_choice import NoPathError, Router
from hosts.collectives.kinds import ALGORITHMS, ROOTED, Workload, workload
from hosts.collectives.rank_programs import programs
from hosts.collectives.schedule import ScheduleError
from scenarios.policies.cost import default_delays_s
from scenarios.policies.decide import Chooser, channels, ways_of
from scenarios.policies.lone_collective import seconds_alone
from scenarios.policies.outcome import Outcome
from scenarios.policies.play import Player
from scenarios.policies.policy import MODES, Mode
from scenarios.policies.rules import Cost
from scenarios.policies.situation import Action, InForce
from scenarios.program.message_times import RankMessages, rates_shown
from scenarios.spec.collective import CollectiveSpec
from scenarios.spec.pieces import choose
from topologies.errors import SpecError
from topologies.fabric.fabric import Fabric
from topologies.fabric.failures import NO_CABLES, Cables
from topologies.fabric.groups import in_order_of_sites, part_of
from topologies.fabric.ports import links_in_grain

Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int16]

MAX_BYTES = 1 << 40
MAX_UNIT_BYTES = 64
CONNECTED_AT_ONCE = 16
"""Ranks of a group that are connected at its start; larger groups make their connections when they need them."""
_CHOSEN_FROM_BYTES = 64_000  # smaller collectives have one piece: they last as long as the delays


class CollectiveRefusedError(ValueError):
    """Raised for a collective that cannot be had; the message is one sentence with the offending value."""


@dataclass(frozen=True)
class Request:
    """What a script asks for: the kind of a collective, its size in bytes as nccl-tests counts it
    (`kinds.slots_in_size`), the bytes of an element, and the root as a rank of the group (0 if it has none)."""

    kind: str
    size_bytes: int
    unit_bytes: int
    root: int

    def __str__(self) -> str:
        of = f" from rank {self.root}" if self.kind in ROOTED else ""
        return f"{self.kind} of {self.size_bytes:,} bytes{of}"


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The network as it is now: `believed_bps` are the rates of logical links as the policy believes them and
    `true_bps` those of links or ports, both in bit/s; `dead` are the failed cables. `mean_bps`, [links or ports], are
    the long-run means of the rates, and `delays_s` the delays of logical links.

    `look` is called before each plan. Ranks wait for `install_s` until paths that are chosen anew are in force.

    A policy with measured ends has `learn`, which is called with the rates that messages have shown, [links or ports]
    bit/s, NaN for links that have shown none, and `shared_delays_s`, the delays of links or ports."""

    believed_bps: Callable[[], Floats]
    true_bps: Callable[[], Floats]
    dead: Callable[[], Cables]
    mean_bps: Floats
    delays_s: Floats
    look: Callable[[], None] = lambda: None
    install_s: float = 0.0
    learn: Callable[[Floats], None] | None = None
    shared_delays_s: Floats | None = None


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The plan of a collective, the policy's `number`: its workload, and `placement`, the group's rank at each place.

    `crossings` has the path of every two GPUs between which it sends over the WAN, by their numbers in the fabric;
    `is_directed` tells whether the policy has chosen these paths at all. `dead` are the cables that had failed when it
    was planned. `predicted_s` is the time of the collective
    alone under the present rates; None where the fabric's routing spreads connections by their ports, and where failed
    cables cut the group off.
    """

    number: int
    workload: Workload
    placement: tuple[int, ...]
    crossings: Mapping[tuple[int, int], int]
    is_directed: bool
    dead: Cables
    reembedded: bool
    rerouted: bool
    predicted_s: float | None


class _Now:
    """The belief in the present rates (`play.Belief`)."""

    def __init__(self, now: Surroundings) -> None:
        self._now, self._dead = now, NO_CABLES

    def before(self, number: int) -> Floats:
        """As `Belief.before`."""
        return self._now.believed_bps()

    def ahead(self, number: int) -> Floats:
        """As `Belief.ahead`: nothing is known of later collectives, which begin when the script wants them."""
        return self.before(number)[None]

    def cables_changed(self, number: int) -> bool:
        """As `Belief.cables_changed`, since this was last asked."""
        before, self._dead = self._dead, self._now.dead()
        return before != self._dead

    def observes(self, number: int) -> bool:
        """As `Belief.observes`: nothing is learnt."""
        return False

    def after(self, outcome: Outcome) -> None:
        """As `Belief.after`: nothing is learnt."""


@dataclass(frozen=True)
class _Completed:
    """A collective that has ended, for the policy (`situation.Ended`)."""

    number: int
    arrived_s: Floats


class _Family:
    """The collectives of a group that have one kind, one root and, within a factor of two, one size.

    A ring that was chosen for a barrier's four bytes would be a bad one for gradients, until it is chosen again.
    """

    def __init__(self, group: "Group", kind: str, root: int) -> None:
        self._group, self._kind, self._root = group, kind, root
        first = group.gpus[root] if kind in ROOTED else None
        self.gpus = in_order_of_sites(group.fabric, group.gpus, first=first)
        self._rank_of = {gpu: rank for rank, gpu in enumerate(group.gpus)}
        self._router = group.router(self.gpus)
        self._player: Player | None = None
        self._count = 0
        self._workload = lru_cache(maxsize=256)(self._sized)

    def plan(self, request: Request) -> Planned:
        """Decide before a collective; raises CollectiveRefusedError.

        While failed cables cut the group off, nothing can be chosen: the collective waits on what is in force, as any
        program does.
        """
        group = self._group
        try:
            wanted = self._workload(request.size_bytes, request.unit_bytes)
            chooser = self._chooser(wanted, group.mode)
            player = self._facing(chooser)
            try:
                action = player.decide(self._count)
                placement, path = self._chosen(player.in_force.after(action), chooser)
                predicted_s = self._predicted_s(chooser, placement, path)
            except (NoPathError, ValueError):
                if not group.now.dead():
                    raise
                action, placement, path, predicted_s = Action(), _kept(player, chooser), None, None
        except (NoPathError, ScheduleError, ValueError, SpecError) as error:
            raise CollectiveRefusedError(f"{request} of {len(self.gpus)} ranks is not possible: {error}") from None
        player.take(action)
        self._count += 1
        crossings = dict[tuple[int, int], int]()
        if path is not None:
            pairs = chooser.crossings(placement)
            crossings = {(self.gpus[a], self.gpus[b]): int(path[flow]) for (a, b), flow in pairs.items()}
        return Planned(
            number=self._count - 1,
            workload=wanted,
            placement=tuple(self._rank_of[self.gpus[rank]] for rank in placement.tolist()),
            crossings=crossings,
            is_directed=path is not None and player.in_force.routing is not None,
            dead=group.now.dead(),
            reembedded=action.placement is not None,
            rerouted=action.routing is not None,
            predicted_s=predicted_s,
        )

    def _facing(self, chooser: Chooser) -> Player:
        """Return the player of this family, which decides about these choices next."""
        if self._player is None:
            every = self._group.spec.reembed_every
            now = self._group.now
            self._player = Player(
                self._group.mode, chooser, _Now(now), reembed_every=every, cost_s=self._cost_s(chooser)
            )
        self._player.face(chooser)
        return self._player

    def _cost_s(self, chooser: Chooser) -> Cost:
        """Return the cost of choices in s, for the rule `gain`: what the ranks would wait for them.

        New paths take the controller's round trip. A new ring takes a handshake, all at once and over the default
        paths, unless all ranks are connected.
        """
        install_s, connecting_s = self._group.now.install_s, 0.0
        if not self._group.connects or channels(chooser.workload).any():
            delay_s = default_delays_s(self._router)
            connecting_s = float((delay_s + delay_s.T).max())
        return lambda embeds, routes: embeds * connecting_s + routes * install_s

    def _chosen(self, in_force: InForce, chooser: Chooser) -> tuple[Ranks, Ranks]:
        """Return the placement and the paths of what is in force; raises as `Player.decide` does."""
        placement = in_force.placement.ranks
        if in_force.routing is not None:
            return placement, in_force.routing.path
        (path,) = chooser.paths(placement[None], self._group.now.believed_bps()[None], chosen=False)
        return placement, path

    def ended(self, number: int, seconds: float) -> None:
        """Show the policy how long a collective took. The next one may have been planned already."""
        if self._player is not None:
            self._player.ended(_Completed(number, np.array([seconds])))

    def _sized(self, size_bytes: int, unit_bytes: int) -> Workload:
        """Return the workload of a size, with slots of whole elements."""
        spec, sites = self._group.spec, self._router.fabric.gpus_per_site
        algorithm = spec.algorithm if spec.algorithm in ALGORITHMS[self._kind] else ALGORITHMS[self._kind][0]
        channels = spec.channels if algorithm == "ring" else 1

        def cut(pieces: int) -> Workload:
            whole = workload(
                self._kind, algorithm, sites=sites, size_bytes=size_bytes, channels=channels, pieces=pieces
            )
            return replace(whole, slot_bytes=-(-whole.slot_bytes // unit_bytes) * unit_bytes)

        if spec.pieces is not None:
            return cut(spec.pieces)
        once = cut(1)
        if once.largest_message_bytes < _CHOSEN_FROM_BYTES:
            return once
        shared, mean_bps = links_in_grain(self._group.fabric), self._group.now.mean_bps

        def seconds(pieces: int) -> float:
            chooser = self._chooser(cut(pieces), MODES["base"])
            (path,) = chooser.paths(chooser.in_order[None], shared.slowest_bps(mean_bps[None]), chosen=False)
            return seconds_alone(chooser, chooser.in_order, path, shared, mean_bps, gpus=self.gpus)

        chosen = choose(
            seconds, transfers=len(once.schedule.transfers), message_bytes=once.largest_message_bytes // unit_bytes
        )
        return cut(chosen.pieces)

    def _chooser(self, wanted: Workload, mode: Mode) -> Chooser:
        return Chooser(self._router, mode, wanted, self._group.spec.ring)

    def _predicted_s(self, chooser: Chooser, placement: Ranks, path: Ranks) -> float | None:
        group = self._group
        if ways_of(group.fabric, group.mode) is not None:
            return None
        shared = links_in_grain(group.fabric, group.now.dead())
        return seconds_alone(chooser, placement, path, shared, group.now.true_bps(), gpus=self.gpus)


def _kept(player: Player, chooser: Chooser) -> Ranks:
    """Return the placement that is in force, or ranks in order."""
    try:
        return player.in_force.placement.ranks
    except ValueError:  # it was to be chosen when it is first used, and there is none
        return chooser.in_order


class Group:
    """The collectives of a process group over these GPUs, the group's rank 0 first."""

    def __init__(
        self, fabric: Fabric, now: Surroundings, *, mode: Mode, spec: CollectiveSpec, gpus: Sequence[int]
    ) -> None:
        self.fabric, self.now, self.mode, self.spec, self.gpus = fabric, now, mode, spec, tuple(gpus)
        self._families = dict[tuple[str, int, int], _Family]()
        self._routers = dict[tuple[int, ...], Router]()

    def plan(self, request: Request) -> Planned:
        """Decide before the next collective; raises CollectiveRefusedError."""
        self.now.look()
        return self._family(request).plan(request)

    @property
    def connects(self) -> bool:
        """Whether all ranks are connected at the start, by the connections of one channel."""
        return len(self.gpus) <= CONNECTED_AT_ONCE

    @property
    def learns(self) -> bool:
        """Whether the policy measures links by the times of messages."""
        return self.now.learn is not None

    def ended(self, request: Request, planned: Planned, seconds: float) -> None:
        """Show the policy how long a collective took."""
        self._family(request).ended(planned.number, seconds)

    def observed(self, planned: Planned, told: Sequence[RankMessages]) -> None:
        """Have the policy learn from a collective that took the planned paths; `told` has what each rank has told of
        its messages. Raises CollectiveRefusedError if a message is missing.

        It learns nothing if cables have failed or come back meanwhile, as some messages then took other paths.
        """
        now = self.now
        if now.learn is None or now.shared_delays_s is None or planned.dead != now.dead():
            return
        places = [self.gpus[rank] for rank in planned.placement]
        shared = links_in_grain(self.fabric, planned.dead)
        try:
            seen = rates_shown(
                planned.workload,
                places,
                planned.crossings,
                told,
                shared=shared,
                shared_delays_s=now.shared_delays_s,
            )
        except ValueError as error:
            raise CollectiveRefusedError(str(error)) from None
        now.learn(seen)

    def _family(self, request: Request) -> _Family:
        root = request.root if request.kind in ROOTED else 0
        key = request.kind, root, request.size_bytes.bit_length()
        if key not in self._families:
            self._families[key] = _Family(self, request.kind, root)
        return self._families[key]

    def router(self, gpus: Sequence[int]) -> Router:
        """Return the paths between these GPUs of the group, in this order."""
        key = tuple(gpus)
        if key not in self._routers:
            self._routers[key] = Router(part_of(self.fabric, key), self.now.delays_s)
        return self._routers[key]


def content_of(planned: Planned, rank: int) -> dict[str, Any]:
    """Return what a rank of the group needs to know of a plan, as JSON."""
    schedule, of = planned.workload.schedule, planned.workload
    program = _programs(of, planned.placement)[rank]
    return {
        "kind": of.kind,
        "algorithm": of.algorithm,
        "places": schedule.places,
        "slots": schedule.slots,
        "slot_bytes": of.slot_bytes,
        "placement": planned.placement,
        "program": {
            "sends": [
                [peer, channel, [{"task": one.task, "slots": one.slots, "after": one.after} for one in sends]]
                for peer, channel, sends in program.sends
            ],
            "receives": [
                [peer, channel, [{"task": one.task, "slots": one.slots, "adds": one.adds} for one in receives]]
                for peer, channel, receives in program.receives
            ],
        },
    }


@lru_cache(maxsize=64)
def _programs(of: Workload, placement: tuple[int, ...]) -> Any:
    return programs(of, placement)
