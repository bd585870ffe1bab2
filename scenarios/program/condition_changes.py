"""The conditions and the WAN paths of a program's run over time: when they change, and which paths are chosen then."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from controller.routing.wan_path_choice import Router
from scenarios.policies.conditions import conditions_of
from scenarios.policies.play import Given, Player, Timeline, periodic
from scenarios.policies.policy import NEVER, Mode, When
from scenarios.spec.collective import CollectiveSpec
from scenarios.spec.scenario import Scenario
from scenarios.testbed.testbed import Testbed
from topologies.fabric.fabric import Fabric

Floats = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int16]


def rows_as_collectives(config: Scenario) -> Scenario:
    """Return a configuration in which every row of conditions stands for a collective, if conditions change over time.

    A program has no collectives, so policies count rows of conditions instead: `every TIME` becomes a number of rows.
    Messages have the program's size, and its ranks are never re-embedded.
    """
    policies = tuple(replace(policy, reembed=NEVER) for policy in config.policies)
    every = config.collective.reembed_every
    messages = CollectiveSpec(chunk_bytes=config.program.message_bytes, reembed_every=every)
    config = replace(config, policies=policies, collective=messages)
    every_s = config.conditions.every_s
    if every_s is None:
        return config
    policies = tuple(_by_rows(policy, every_s) for policy in policies)
    conditions = replace(config.conditions, interval_s=every_s, trace_step_s=every_s)
    return replace(config, policies=policies, conditions=conditions)


def _by_rows(policy: Mode, every_s: float) -> Mode:
    """Return the policy with `every TIME` replaced by a number of rows that are `every_s` apart."""
    within_s = policy.reroute.within_s
    return policy if within_s is None else replace(policy, reroute=When("every", round(within_s / every_s)))


class Exchange:
    """The choices of a policy for a program (`situation.Choices`): the paths between every two GPUs in two sites.

    A choice is rated by the time of an exchange: every GPU sends each GPU of another site a message, all at once.
    """

    def __init__(self, router: Router, message_bytes: int) -> None:
        sites = router.fabric.gpu_sites
        self._router, self._message_bytes = router, message_bytes
        self._src, self._dst = np.nonzero(sites[:, None] != sites)
        self.in_order: Ranks = np.arange(len(sites), dtype=np.int16)

    @property
    def fabric(self) -> Fabric:
        """The fabric of the paths."""
        return self._router.fabric

    def crossings(self, placement: Ranks) -> dict[tuple[int, int], int]:
        """Return every two GPUs in two sites, with the index of their flow."""
        return {pair: flow for flow, pair in enumerate(zip(self._src.tolist(), self._dst.tolist(), strict=True))}

    def placed(self, ranks: Sequence[int]) -> Ranks:
        """Raise ValueError: the ranks of a program do not move."""
        raise ValueError("True or False for the placement, as the ranks of a program do not move")

    def routed(self, placement: Ranks, given: Mapping[tuple[int, int], int], rates_bps: Floats) -> Ranks:
        """Raise ValueError: the paths of a program cannot be given."""
        raise ValueError("True or False for the paths of a program")

    def placements(self, rates_bps: Floats) -> Ranks:
        """Return ranks in order, [K, n], as ranks do not move."""
        return np.tile(self.in_order, (len(rates_bps), 1))

    def paths(self, placement: Ranks, rates_bps: Floats, *, chosen: bool) -> Ranks:
        """Return the path between every two GPUs in two sites, [K, F]: chosen under these rates, or the fixed one."""
        src, dst = (np.tile(ends, (len(rates_bps), 1)) for ends in (self._src, self._dst))
        if chosen:
            routes = self._router.choose_jointly(rates_bps, src, dst, chunk_bytes=self._message_bytes)
        else:
            routes = self._router.fixed(rates_bps, src, dst)
        return routes.path.astype(np.int16)

    def seconds(self, placement: Ranks, path: Ranks, rates_bps: Floats) -> Floats:
        """Return the time until the last message has arrived, [K] s; messages that share a link get equal parts."""
        times_s = self._router.shared_times_s(rates_bps, self._src, self._dst, path, chunk_bytes=self._message_bytes)
        latest_s: Floats = times_s.max(axis=1)
        return latest_s


class ProgramTimeline:
    """Applies the conditions and the WAN paths of a program's run; `config` is from `rows_as_collectives`.

    The constructor puts the first paths into force. `count` is how often a rate has changed since, `rerouted` how often
    a path has, and `messages` the number of OpenFlow messages in all. Raises the errors of `Failure`.
    """

    def __init__(self, testbed: Testbed, config: Scenario) -> None:
        self._testbed, self._config = testbed, config
        self._mode: Mode = config.mode(config.run.modes[0])
        self._conditions = conditions_of(config)
        self._believed = self._conditions.believed(self._mode.knowledge)
        self._every_ns = None if config.conditions.every_s is None else round(config.conditions.every_s * 1e9)
        self._timeline: Timeline | None = None
        if not self._mode.is_periodic:
            exchange = Exchange(
                Router(self._conditions.fabric, self._conditions.delays_s), config.program.message_bytes
            )
            self._timeline = Timeline(
                Player(self._mode, exchange, Given(self._believed), reembed_every=config.collective.reembed_every)
            )
        self._row = self.count = self.rerouted = 0
        self.rates_bps = self._conditions.shaped_bps(0, ())
        self.messages = testbed.route_all(self._believed.known_bps(0, ()), best=self._routed_row() == 0)
        testbed.settle()

    @property
    def changes_paths(self) -> bool:
        """Whether paths may change during the run."""
        return self._every_ns is not None and self._mode.reroutes

    @property
    def next_ns(self) -> int | None:
        """The instant of the next change of conditions, in ns since the ranks' start; None if there is none."""
        last = self._conditions.limit is not None and self._row + 1 >= self._conditions.limit
        return None if self._every_ns is None or last else (self._row + 1) * self._every_ns

    def advance(self, now_ns: int) -> None:
        """Put the rates of an instant into force, and new paths if the mode chooses any under these rates."""
        assert self._every_ns is not None
        before, self._row = self._row, now_ns // self._every_ns
        if self._conditions.limit is not None:
            self._row = min(self._row, self._conditions.limit - 1)
        rates_bps = self._conditions.shaped_bps(self._row, ())
        self.count += bool((rates_bps != self.rates_bps).any())
        self.rates_bps = rates_bps
        self._testbed.change(rates_bps)
        if self._routed_row() > before:
            messages = self._testbed.route_all(self._believed.known_bps(self._row, ()), best=True)
            self.messages += messages
            self.rerouted += messages > 0

    def _routed_row(self) -> int:
        """Return the row of conditions under which the paths in force were chosen, -1 for the fixed paths."""
        if self._timeline is None:
            moments = periodic(self._mode, self._config.collective.reembed_every, self._row, 1)
        else:
            moments = self._timeline.moments(self._row, 1)
        return int(moments.routed[0])
