"""The testbed at the prompt: changes conditions, mode, placement and paths, and runs collectives, one at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from controller.routing.wan_path_choice import Router
from hosts.collectives.kinds import Workload, blocks
from hosts.collectives.schedule import ScheduleError
from scenarios.policies.conditions import conditions_of
from scenarios.policies.decide import Chooser, traffic, ways_of
from scenarios.policies.play import Given, Player
from scenarios.policies.policy import ALWAYS, NEVER, Mode
from scenarios.policies.situation import NO_PATHS
from scenarios.program.guest import Run, fair_links
from scenarios.program.sockets import set_up_sockets
from scenarios.prompt import text
from scenarios.prompt.arguments import MAX_SECONDS, PromptError
from scenarios.prompt.state import State, dead_cables, pairs
from scenarios.spec import admission_checks
from scenarios.spec.collective import CollectiveSpec, routed, scaled_workload, workload_of
from scenarios.spec.exclusions import exclusions
from scenarios.spec.faults import Fault
from scenarios.spec.jobs import JobSpec
from scenarios.spec.pieces import chosen_pieces
from scenarios.spec.program import check
from scenarios.spec.scenario import Scenario
from scenarios.testbed.record import CollectiveRecord
from scenarios.testbed.testbed import NOTICED_S, Failure, Testbed
from topologies.conditions.link_overrides import LinkConditions
from topologies.errors import SpecError
from topologies.fabric.addressing import Cable
from topologies.fabric.failures import cable, cables_of, cut_off
from topologies.fabric.ports import links_in_grain
from topologies.shaping.classes import NEGLIGIBLE_DELAY_RATIO, classes_of
from topologies.shaping.rate_scale import ScaleError
from topologies.units import format_size

Floats = npt.NDArray[np.float64]

_STEADY_LATE_S = 20e-3  # allowed timer overrun while a single flow is measured, or a busy machine lowers its rate
_PATIENT = 1.2  # agents wait for one another this many times the predicted time
_COPIES = 4  # of each buffer, over all GPUs: the received data, the kept data, and TCP's buffers at both ends


class RatesNow:
    """A `Sampler` of the rates of the logical links as they are now, `now_bps` [links], whatever the collective."""

    limit = None

    def __init__(self, now_bps: Floats) -> None:
        self.now_bps = now_bps

    @property
    def mean_bps(self) -> Floats:
        """The rates as they are now, [links] bit/s."""
        return self.now_bps

    def rates_bps(self, start: int, count: int) -> Floats:
        """Return these rates for `count` collectives, [count, links] bit/s."""
        return np.tile(self.now_bps, (count, 1))


class _Ended(NamedTuple):
    """A collective that has ended, as `situation.Ended`."""

    number: int
    arrived_s: Floats


class InteractiveTestbed:
    """Executes commands on a testbed that is up; conditions stay until a command changes them.

    `mode` is the mode in force. `set_bps`, [links or ports], are the configured rates, in the scenario's units.
    `requests` are the transfers requested for the next round, `jobs` the others of the scenario, and `own` its
    collective if that has no size, as training or messages. `last_bytes` and `all_bytes` are the bytes that the last
    collective or round and all of them have sent on each WAN link, by link index, after rate scaling.
    Every method raises the errors of `Failure` and PromptError, and can be called again afterwards.
    """

    def __init__(
        self,
        testbed: Testbed,
        requests: Sequence[JobSpec] = (),
        jobs: Sequence[JobSpec] = (),
        own: CollectiveSpec | None = None,
    ) -> None:
        self.testbed, self.fabric, self.scale = testbed, testbed.fabric, testbed.platform.scale
        self.mode = testbed.config.mode("base")
        self._scenario_collective = self.collective  # the one of the scenario
        self.requests, self.jobs, self.own = tuple(requests), tuple(jobs), own
        self._rounds = 0  # of the jobs so far, of which each has its own draw of background traffic
        self.last_bytes: dict[int, int] = {}
        self.all_bytes: dict[int, int] = {}
        self.collectives = 0
        self._since = 0  # collectives since the mode or the placement was set
        self._player: Player | None = None  # of the mode in force, once a collective has run in it
        self._begun = 0  # its first collective, in the numbers of `_since`
        self._rates = RatesNow(np.zeros(0))  # that it believes
        self._needs_agents = False  # whether the next collective needs new agents
        self._programs_bps: Floats | None = None  # the rates for which hosts are set up for programs, not for agents
        kinds = [link.kind for link in links_in_grain(self.fabric).all]
        self._counters = {
            port.link: Path("/sys/class/net", port.interface, "statistics", "tx_bytes")
            for port in classes_of(self.fabric)
            if kinds[port.link] == "wan"
        }
        self._seed, self._drawn = testbed.config.run.seed, -1
        self.resample(None)
        self.set_mode("base")

    @property
    def collective(self) -> CollectiveSpec:
        """The specification of the last collective; before the first, the scenario's."""
        return self.testbed.config.collective

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The source and destination rank of each flow of that collective."""
        return pairs(self.testbed.config.workload.schedule, self.testbed.placement)

    @property
    def reembed_every(self) -> int:
        """The number of collectives after which a mode that re-embeds chooses the placement again."""
        return self.testbed.config.collective.reembed_every

    def state(self) -> State:
        """Return a snapshot of the links and routes."""
        delays_s, status = self.testbed.delays_s, self.testbed.status()
        return State(fabric=self.fabric, set_bps=self.set_bps, delays_s=delays_s, status=status)

    def longest_s(self) -> float:
        """Return an upper bound on round-trip times without queueing, in s."""
        return 4 * float(np.sort(self.testbed.delays_s)[-4:].sum())

    def resample(self, seed: int | None) -> str:
        """Draw the next conditions, or the first ones of another seed; return a phrase that names them."""
        seed, drawn = (self._seed, self._drawn + 1) if seed is None else (seed, 0)
        try:
            rates_bps = conditions_of(self.testbed.config, seed=seed).shaped_bps(drawn, ())
        except SpecError as error:
            raise PromptError(str(error)) from None
        self._change(rates_bps)
        self._seed, self._drawn = seed, drawn
        return f"the conditions of collective {drawn} of seed {seed}"

    def set_rate(self, link: int, rate_bps: int) -> None:
        """Set the rate of a link or port."""
        rates_bps = self.set_bps.copy()
        rates_bps[link] = rate_bps
        self._change(rates_bps)

    def set_delay(self, link: int, delay_s: float) -> float:
        """Set the delay of a link or port; return the smallest delay that is emulated, in s.

        In real time, timers are too late to tell a smaller delay from none.
        """
        before = self.testbed.delays_s
        delays_s = before.copy()
        delays_s[link] = delay_s
        try:
            self.testbed.reshape(self.set_bps, delays_s=delays_s)
        except Failure:
            self.testbed.reshape(self.set_bps, delays_s=before)
            raise
        self._player = self._programs_bps = None
        return self.testbed.platform.late_s / NEGLIGIBLE_DELAY_RATIO

    def set_mode(self, name: str) -> None:
        """Put a mode in force, and have it choose placement and paths under the current conditions.

        A condition-dependent mode begins with ranks in order and the fixed paths.
        """
        mode = self.testbed.config.mode(name)
        chooses = mode.is_periodic  # a condition-dependent mode chooses before the next collective
        order = "best" if chooses and mode.reembeds else "rank"
        self._arrange(mode, order, self.collective, best=chooses and mode.reroutes)
        self.mode, self._since, self._player = mode, 0, None

    def set_ring(self, order: str | Sequence[int]) -> None:
        """Use this ring, the "best" one under the current conditions, or the one in "rank" order."""
        self._arrange(self.mode, order, self.collective, best=self.mode.is_periodic and self.mode.reroutes)
        self._player = None
        self._since = 1  # a mode that re-embeds keeps this placement until it is due again

    def scenario(self) -> Scenario:
        """Return a scenario of the mode, the links as they are, the last collective and the requested transfers.

        Raises PromptError if the failed cables leave a flow of that collective without a path.
        """
        config = self.testbed.config
        self._check_reach(self.state(), pairs(config.workload.schedule, self._first_placement()))
        links = []
        for link in links_in_grain(self.fabric).all:
            rate_bps, delay_s = round(self.set_bps[link.index]), float(self.testbed.delays_s[link.index])
            links.append(LinkConditions(links=link.name, rate_bps=(rate_bps, rate_bps), delay_s=delay_s))
        conditions = replace(config.conditions, sampler="uniform", trace=None, every_s=None, links=tuple(links))
        dead = sorted("-".join(sorted(ends)) for ends in self.state().dead)
        faults = tuple(Fault(collective=0, kind="link down", target=ends) for ends in dead)
        run = replace(config.run, modes=(self.mode.name,))
        return replace(config, conditions=conditions, run=run, jobs=self.requests, faults=faults)

    def has_other_placement(self) -> bool:
        """Return whether the placement differs from the one with which the mode begins under the links as they are."""
        return self.testbed.placement != self._first_placement()

    def _first_placement(self) -> Sequence[int]:
        """Return the placement with which the mode in force begins under the links as they are."""
        order = "best" if self.mode.is_periodic and self.mode.reembeds else "rank"
        return self._placement(self.state(), self.mode, order, self.testbed.config.workload)

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return len(self.fabric.gpus)

    def run(
        self, kind: str, size_bytes: int, algorithm: str | None = None, *, is_chunk: bool = False
    ) -> tuple[CollectiveRecord, float]:
        """Run one collective in the mode in force; return its record and the model's prediction in s.

        The size is that of the buffer or, if it `is_chunk`, of a block. `collective` then has the collective.
        If `algorithm` is None, it is the scenario's for the scenario's kind, and the default one for another kind. If
        the collective is cut short, also by KeyboardInterrupt, its agents are ended. Raises PromptError before it
        starts if a flow has no path.
        """
        chunk = size_bytes if is_chunk else -(-size_bytes // blocks(kind, self.gpus))
        given = None if is_chunk else size_bytes
        sized = replace(self._scenario_collective, chunk_bytes=chunk, size_bytes=given)
        if kind != sized.kind or algorithm not in (None, sized.algorithm):
            sized = replace(sized, kind=kind, algorithm=algorithm, schedule=None, channels=1)
        if sized.chooses:
            config = self.testbed.config
            sized = replace(sized, pieces=chosen_pieces(sized, self.fabric.spec, config.conditions, self.scale))
        with self._dropping_player_on_failure():
            return self._run(sized)

    def _run(self, sized: CollectiveSpec) -> tuple[CollectiveRecord, float]:
        order, best, given = self._choose(sized)
        self._arrange(self.mode, order, sized, best=best, given=given)
        with self._killing_agents_on_failure():
            # The prediction is for the slots as carried: scaling may round their size.
            slot_bytes = scaled_workload(self.testbed.config.workload, self.scale).slot_bytes * self.scale.divisor
            workload = self.testbed.config.workload
            predicted_s = self.state().predicted_s(
                workload.schedule, self.testbed.placement, slot_bytes=slot_bytes, traffic=traffic(workload)
            )
            self._wait_for(predicted_s)
            self.testbed.drops()
            row = self._counted(partial(self.testbed.measure, self.collectives + 1))
        if self._player is not None:
            self._player.ended(_Ended(self._since - self._begun, np.array(row.arrived_ns) / 1e9))
        self.collectives += 1
        self._since += 1
        return row, predicted_s

    def _counted(self, measure: Callable[[], CollectiveRecord]) -> CollectiveRecord:
        """Measure, and note what the WAN's ports have sent meanwhile."""
        before = self._sent_bytes()
        record = measure()
        self.last_bytes = {link: sent - before[link] for link, sent in self._sent_bytes().items()}
        self.all_bytes = {link: self.all_bytes.get(link, 0) + sent for link, sent in self.last_bytes.items()}
        return record

    def requested_round(self, more: Sequence[JobSpec] = ()) -> Scenario:
        """Return the round of all requested transfers and `more`, over the links as they are; raises PromptError."""
        config = self.scenario()
        config = replace(config, jobs=(*config.jobs, *more), run=replace(config.run, modes=("base",)))
        try:
            mistakes = [*exclusions(config), *admission_checks.check(config)] if config.jobs else []
            if config.jobs and not mistakes:
                _ = config.transfers  # plans the transfers, which may fail
        except ScheduleError as error:
            raise PromptError(str(error)) from None
        if mistakes:
            texts = [m.text if m.key.startswith("job") else f"{m.key}: {m.text}" for m in mistakes]
            raise PromptError("; ".join(texts))
        return config

    def deliver(self, config: Scenario) -> dict[str, float]:
        """Run the transfers of a `requested_round`; return each one's completion in s after the start, by name.

        If the round is cut short, its agents are ended. The next collective starts new agents either way.
        """
        record = self._run_jobs(config, "base", longest_s=max(transfer.due_s for transfer in config.transfers))
        spans = config.workload.jobs
        return {one.name: max(record.arrived_ns[one.transfers.start : one.transfers.stop]) / 1e9 for one in spans}

    def run_round(self) -> dict[str, tuple[float, float]]:
        """Run the scenario's jobs together, or what it repeats instead, over the links as they are, and over the best
        paths if the mode in force chooses any; return the measured and the predicted time of each in s, by name.

        Raises PromptError if there are none, or a flow has no path; as `deliver` does if it is cut short.
        """
        from scenarios.engines.prediction import Plan, decisions_of  # which takes half a second to import
        from scenarios.engines.timing import job_times

        if not self.jobs and self.own is None:
            allowed = "a scenario with [[job]] tables, training, or a schedule of messages"
            raise PromptError(f"the scenario has nothing of its own to run; allowed: {allowed}")
        name = "wan" if self.mode.reroutes else "base"
        number, self._rounds = self._rounds, self._rounds + 1
        config = replace(self.scenario(), jobs=self.jobs)
        with_room = number + 1  # agents are made for this round, too
        rounds = replace(self.own or config.collective, count=with_room, emulated=with_room)
        config = replace(config, run=replace(config.run, modes=(name,)), collective=rounds)
        self._check_reach(self.state(), pairs(config.workload.schedule, range(config.gpus)))
        conditions = conditions_of(config)
        decisions = decisions_of(config, name, conditions, start=number, count=1)
        (all_s,), of_jobs = Plan(config, name, decisions, conditions, number).with_jobs()
        config = config.of_round(number)
        latest_s = max((span.start_s for span in config.workload.jobs), default=0.0)
        longest_s = float(np.max(all_s if of_jobs is None else of_jobs.completion_s)) + latest_s
        record = self._run_jobs(config, name, longest_s=longest_s)
        if of_jobs is None:
            return {config.collective.kind: (record.completion_s, float(all_s))}
        (predicted_s,) = of_jobs.completion_s
        (measured_s,) = job_times(config.workload.jobs, np.array(record.arrived_ns)[:, None] / 1e9).completion_s
        spans = config.workload.jobs
        return {
            span.name: (float(took_s), float(planned_s))
            for span, took_s, planned_s in zip(spans, measured_s, predicted_s, strict=True)
        }

    def _run_jobs(self, config: Scenario, mode: str, *, longest_s: float) -> CollectiveRecord:
        """Run a round of a configuration's jobs in a mode, with new agents; the next collective starts others, too.

        Raises PromptError before it starts if its predicted time is above MAX_SECONDS, or its buffers do not fit.
        """
        _check_time(longest_s)
        self._check_size(config.workload)
        bed, before, placement = self.testbed, self.testbed.config, self.testbed.placement
        with self._killing_agents_on_failure():
            bed.config, bed.placement = config, tuple(range(config.gpus))
            try:
                bed.set_fair_links(config.fair_links(mode), self.set_bps)
                bed.deadline_s = max(bed.deadline_s, _PATIENT * longest_s)
                self._programs_bps = None
                bed.renew()
                chosen_by, slowest_bps = config.mode(mode), links_in_grain(self.fabric).slowest_bps(self.set_bps)
                bed.route(chosen_by, slowest_bps, best=chosen_by.reroutes)
                return self._counted(partial(bed.measure, self.collectives + 1))
            finally:
                bed.config, bed.placement, self._needs_agents, self._player = before, placement, True, None

    def run_program(
        self, command: str, ranks: Sequence[int], request: Mapping[str, Any], emit: Callable[..., Any]
    ) -> None:
        """Run a program on the GPUs' hosts over the network as it is; the next collective starts new agents.

        `request` and `emit` are as for `program.guest.Run`. KeyboardInterrupt ends the program too.
        """
        bed = self.testbed
        program = replace(bed.config.program, command=command, roles=(), ranks=tuple(ranks), capture=())
        for mistake in check(program, self.fabric):
            raise PromptError(f"{mistake.key}: {mistake.text}")
        if not bed.config.run.is_real:
            bed.keeps_fixed_paths = False
            bed.set_fair_links(fair_links(bed.config), self.set_bps)
            self._programs_bps = None  # with other queues
        routing = ways_of(self.fabric, self.mode)
        if routing is not None and not routing.engineers:  # which spreads the program's connections
            slowest_bps = links_in_grain(self.fabric).slowest_bps(self.set_bps)
            bed.route_all(self.mode, slowest_bps, best=self.mode.reroutes, dead=self.state().dead)
            bed.settle()
        self.set_transport()
        Path("/proc/sys/vm/panic_on_oom").write_text("0")
        with bed.host_ports(self.set_bps), Run(bed, program, request, timeline=None, emit=emit) as run:
            run.wait()
            emit(over=run.end())

    def set_transport(self) -> None:
        """Set up TCP on the hosts for programs over the links as they are; the next collective starts new agents."""
        if self._programs_bps is not None and np.array_equal(self._programs_bps, self.set_bps):
            return
        self._needs_agents = True
        self.testbed.set_queues()
        set_up_sockets(self.testbed, self.set_bps)
        self._programs_bps = self.set_bps

    def _fits_placement(self, wanted: CollectiveSpec) -> bool:
        """Return whether the current placement is for a collective of this kind and algorithm."""
        return (wanted.kind, wanted.algorithm) == (self.collective.kind, self.collective.algorithm)

    def _choose(self, wanted: CollectiveSpec) -> tuple[str | Sequence[int], bool | None, Mapping[tuple[int, int], int]]:
        """Return `order`, `best` and `given` for `_arrange`, as the mode in force decides before its next collective.

        Its player begins with the current placement, if that fits the collective, and with the fixed paths. For another
        collective a condition-dependent mode begins anew; a periodic one goes on counting, and chooses for it at once.
        """
        mode, fits, changed = self.mode, self._fits_placement(wanted), wanted != self.collective
        begins = self._player is None or changed
        if begins:
            delays_s = links_in_grain(self.fabric).delays_s(self.testbed.delays_s)
            chooser = Chooser(Router(self.fabric, delays_s), mode, self._workload(wanted), self.collective.ring)
            placement = np.array(self.testbed.placement, np.int16) if fits else None
            belief, every = Given(self._rates), self.reembed_every
            self._player = Player(mode, chooser, belief, reembed_every=every, placement=placement)
            self._begun = 0 if mode.is_periodic else self._since
        assert self._player is not None
        # A failed link counts as 1 bit/s, so that predicted times are finite.
        self._rates.now_bps = np.maximum(self.state().logical_bps, 1.0)
        action = self._player.decide(self._since - self._begun)
        self._player.take(action)
        order: str | Sequence[int] = self.testbed.placement
        if action.placement is not None or (not fits and mode.is_periodic and mode.reembeds):
            order = "best"
            if action.placement is not None and mode.function is not None:  # which may have given a placement
                order = tuple(action.placement.ranks.tolist())
        elif not fits:
            order = "rank"
        again = mode.is_periodic and (changed or self.fabric.spec.routing == "te")  # whose rates may have changed
        if action.routing is not None or (again and mode.reroutes):
            return order, True, action.routing.given if action.routing is not None else NO_PATHS
        anew = action.placement is not None or again or (begins and not mode.is_periodic)
        return order, False if anew else None, NO_PATHS

    @contextmanager
    def _dropping_player_on_failure(self) -> Iterator[None]:
        """Drop the player of the mode if the context fails: its choices may not be in force."""
        try:
            yield
        except BaseException:
            self._player = None
            raise

    def set_cable(self, one: Cable, *, up: bool) -> None:
        """Bring a cable up or down."""
        self.testbed.network.set_cable(one, up=up)
        if up:
            self.testbed.restore_links()
        if any(gpu.name in (one.a, one.b) for gpu in self.fabric.gpus):
            self._needs_agents = True  # a host loses its routes when its interface goes down
            self._programs_bps = None

    def await_cable(self, one: Cable, *, up: bool) -> None:
        """Wait until the controller has detected that a cable went down or came up, and packets take the paths around
        the failures."""

        def is_noticed(status: Mapping[str, Any]) -> bool:
            is_up = cable(*one.directions[0]) not in dead_cables(status)
            ends_stopped = not {one.a, one.b}.isdisjoint(status["not_ready"])  # then the cable stays down
            return is_up == up or (up and ends_stopped)

        self._await(f"{one.name} {'down' if up else 'up'}", is_noticed)
        self._move_delays()

    def await_switch(self, name: str, *, up: bool) -> None:
        """Shape the ports of a switch that was stopped or started, and wait until the controller has detected it.

        A switch counts as stopped if all of its cables are down.
        """
        self.testbed.reshape(self.set_bps)
        cables = cables_of(self.fabric, name)
        self._await(
            f"{name} {'stopped' if up else 'running'}",
            lambda status: (name not in status["not_ready"]) == up and (cables <= dead_cables(status)) != up,
        )
        self._move_delays()

    def _move_delays(self) -> None:
        """Once cables have failed, apply WAN delays after each link instead of at the receiver: paths may change."""
        if self.testbed.keeps_fixed_paths and self.state().dead:
            self.testbed.keeps_fixed_paths = False
            self.testbed.reshape(self.set_bps)

    def _await(self, what: str, noticed: Callable[[Mapping[str, Any]], bool]) -> None:
        if not self.testbed.await_status(noticed):
            raise PromptError(f"the controller still considers {what} after {NOTICED_S:.0f} s")
        self.testbed.settle()  # the switches have confirmed the new rules, but still follow cached decisions

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Within the context, allow HTB classes larger bursts, so that late timers cost a single flow no throughput."""
        self.testbed.allow_late(_STEADY_LATE_S)
        try:
            self._change(self.set_bps)
            yield
        finally:
            self.testbed.allow_late(self.testbed.platform.late_s)
            self._change(self.set_bps)

    def _change(self, rates_bps: Floats) -> None:
        self.testbed.change(rates_bps)
        self.set_bps = rates_bps

    def _check_reach(self, state: State, flows: Sequence[tuple[int, int]]) -> None:
        """Raise PromptError if the failed cables leave a flow without a path."""
        if reason := text.unreachable(self.fabric, flows, state.dead):
            raise PromptError(reason)

    def _arrange(
        self,
        mode: Mode,
        order: str | Sequence[int],
        wanted: CollectiveSpec,
        *,
        best: bool | None,
        given: Mapping[tuple[int, int], int] = NO_PATHS,
    ) -> None:
        """Place and connect the GPUs for the collective `wanted`.

        `order` is the placement, or "rank" for ranks in order, or "best" for the mode's best one. `best` selects the
        best paths (True), the fixed ones (False), or those in force (None); `given` are the paths of some crossings.

        Raises PromptError, and changes nothing, if the failed cables leave a flow without a path, or no placement.
        """
        state, workload = self.state(), self._workload(wanted)
        placement = self._placement(state, mode, order, workload)
        flows = pairs(workload.schedule, placement)
        self._check_reach(state, flows)
        # Acknowledgements take the fixed path of their sites, from which a failed cable may cut off a single GPU.
        back = [(dst, src) for src, dst in flows if (dst, src) not in flows]
        if best is not None:
            _check_routes(replace(state, status={**state.status, "routes": []}), back)
        else:
            _check_routes(state, flows + back)
        fair_links = replace(self.testbed.config, collective=wanted).fair_links(mode.name)
        renews = self._needs_agents or wanted != self.collective or fair_links != self.testbed.fair_links
        if renews:
            self._check_size(workload)
        if self._needs_agents:  # packets of the ended agents are still in the queues, and would delay the collective
            self.testbed.reshape(self.set_bps)
        with self._killing_agents_on_failure():
            self.testbed.placement = placement
            if (fair_links, not state.dead) != (self.testbed.fair_links, self.testbed.keeps_fixed_paths):
                self.testbed.keeps_fixed_paths = not state.dead
                self.testbed.set_fair_links(fair_links, self.set_bps)
            if renews:
                self._programs_bps = None
                self.testbed.renew(wanted)
                self._needs_agents = False
            self.testbed.connect()
            if best is not None or self.testbed.lacks_flow_paths(mode):
                self._route(mode, best=mode.reroutes if best is None else best, given=given)

    def _route(self, mode: Mode, *, best: bool, given: Mapping[tuple[int, int], int] = NO_PATHS) -> None:
        self.testbed.route(mode, links_in_grain(self.fabric).slowest_bps(self.set_bps), best=best, given=given)

    def _wait_for(self, seconds: float) -> None:
        """Raise the agents' deadline for a collective of so many seconds; raises PromptError above MAX_SECONDS."""
        _check_time(seconds)
        if _PATIENT * seconds > self.testbed.deadline_s:
            self.testbed.deadline_s = _PATIENT * seconds
            self._programs_bps = None
            self.testbed.renew()
            if self.testbed.lacks_flow_paths(self.mode):
                self._route(self.mode, best=self.mode.reroutes)

    def _workload(self, wanted: CollectiveSpec) -> Workload:
        try:
            return routed(workload_of(wanted, self.fabric.gpus_per_site), self.fabric.spec)
        except ScheduleError as error:
            raise PromptError(str(error)) from None

    def _placement(self, state: State, mode: Mode, order: str | Sequence[int], workload: Workload) -> tuple[int, ...]:
        if not isinstance(order, str):
            return tuple(order)
        groups = cut_off(self.fabric, state.dead) if order == "best" else ()
        if groups:
            raise PromptError(text.isolated(groups))
        try:
            arranging = replace(mode, reembed=ALWAYS if order == "best" else NEVER)
            return self.testbed.choose_placement(arranging, state.logical_bps, workload)
        except ValueError as error:
            raise PromptError(f"{error}; {text.cables(state.dead)}" if state.dead else str(error)) from None

    def _check_size(self, workload: Workload) -> None:
        """Raise PromptError if a scaled slot is empty, or the buffers do not fit into the available memory."""
        try:
            needed_bytes = scaled_workload(workload, self.scale).slot_bytes * workload.schedule.slots
        except ScaleError as error:
            raise PromptError(str(error)) from None
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free_bytes = int(fields["MemAvailable"].split()[0]) * 1024
        if needed_bytes * _COPIES > free_bytes:
            needed = format_size(needed_bytes * self.scale.divisor)
            most = format_size(free_bytes // _COPIES * self.scale.divisor // 10**6 * 10**6)
            raise PromptError(f"buffers of {needed} do not fit into memory; allowed: up to {most}")

    @contextmanager
    def _killing_agents_on_failure(self) -> Iterator[None]:
        """Kill the agents if the context is interrupted or fails, so that the next collective starts new ones."""
        try:
            yield
        except PromptError:
            raise
        except ValueError as error:
            raise PromptError(str(error)) from None
        except BaseException:
            self._needs_agents = True
            self.testbed.kill_agents()
            raise

    def _sent_bytes(self) -> dict[int, int]:
        """Return the bytes that each WAN link's port has sent since the port was made, by link index."""
        return {link: int(file.read_text()) for link, file in self._counters.items()}


def _check_time(seconds: float) -> None:
    """Raise PromptError if a collective or round of so many seconds is too long for the prompt."""
    if seconds > MAX_SECONDS:
        allowed = f"up to {MAX_SECONDS:,} s, so take a smaller size or higher rates"
        raise PromptError(f"the model predicts {seconds:.0f} s; allowed: {allowed}")


def _check_routes(state: State, pairs: Sequence[tuple[int, int]]) -> None:
    """Raise PromptError if the controller routes packets between a pair of ranks over a failed cable."""
    for src, dst in pairs:
        route = state.route(src, dst)
        if route.rate_bps == 0:
            names = ", ".join(state.shared.all[link].name for link in route.links)
            reason = f"packets from g{src} to g{dst} are routed over {names}, part of which is down"
            raise PromptError(f"{reason}: {text.cables(state.dead)}")
