"""The testbed at the prompt: conditions, mode, placement, paths and collectives, changed by one command at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hosts.collectives.kinds import Workload
from hosts.collectives.schedule import ScheduleError
from scenarios.policies.conditions import conditions_of
from scenarios.policies.decide import traffic
from scenarios.policies.policy import ALWAYS, NEVER, Mode
from scenarios.program.inside import Run, fair_links, set_transport
from scenarios.prompt import text
from scenarios.prompt.arguments import PromptError
from scenarios.prompt.state import State, dead_cables, pairs
from scenarios.spec import admission
from scenarios.spec.collective import CollectiveSpec, carried, routed, workload_of
from scenarios.spec.faults import Fault
from scenarios.spec.jobs import JobSpec
from scenarios.spec.program import check
from scenarios.spec.scenario import Scenario
from scenarios.testbed.testbed import NOTICED_S, CollectiveRecord, Failure, Testbed
from topologies.conditions.links import LinkConditions
from topologies.errors import SpecError
from topologies.fabric.failures import around, cable, cut_off
from topologies.fabric.ports import shared_by
from topologies.shaping.classes import TELLING, classes_of
from topologies.shaping.rate_scale import ScaleError
from topologies.units import format_delay, format_size

Floats = npt.NDArray[np.float64]

_STEADY_LATE_S = 20e-3  # how late timers may be while a single flow is measured: a busy machine then shows less
_LONGEST_S = 50.0  # the agents wait a little longer for one another
_COPIES = 4  # of a buffer over all GPUs: what arrives, what is kept, and TCP's on either side


class InteractiveTestbed:
    """Commands on a testbed that is up; conditions stay until they are changed.

    `mode` is in force, `set_bps`, [links or ports], are the rates that these were given, in the scenario's units;
    `requests` are the transfers that a round asks for; `last_bytes` and `all_bytes` are the bytes that collectives have
    put on each WAN link, by its index, as carried.
    Every method raises the errors of `Failure` and PromptError, and can be called again after them.
    """

    def __init__(self, testbed: Testbed, requests: Sequence[JobSpec] = ()) -> None:
        self.testbed, self.fabric, self.scale = testbed, testbed.fabric, testbed.platform.scale
        self.mode = testbed.setting.mode("base")
        self._given = self.collective  # the scenario's
        self.requests = tuple(requests)
        self.last_bytes: dict[int, int] = {}
        self.all_bytes: dict[int, int] = {}
        self.collectives = 0
        self._since = 0  # collectives since the mode or the placement was set
        self._broken = False  # new agents are needed
        kinds = [link.kind for link in shared_by(self.fabric).all]
        self._sent_files = {
            one.link: Path("/sys/class/net", one.interface, "statistics", "tx_bytes")
            for one in classes_of(self.fabric)
            if kinds[one.link] == "wan"
        }
        self._seed, self._drawn = testbed.setting.run.seed, -1
        self.resample(None)
        self.set_mode("base")

    @property
    def collective(self) -> CollectiveSpec:
        """The last collective, or the scenario's."""
        return self.testbed.setting.collective

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The ranks that each flow of that collective leads from and to."""
        return pairs(self.testbed.setting.workload.schedule, self.testbed.placement)

    @property
    def reembed_every(self) -> int:
        """After how many collectives a mode that re-embeds chooses the placement again."""
        return self.testbed.setting.collective.reembed_every

    def state(self) -> State:
        """The links and routes as they are now."""
        delays_s, status = self.testbed.delays_s, self.testbed.status()
        return State(fabric=self.fabric, set_bps=self.set_bps, delays_s=delays_s, status=status)

    def longest_s(self) -> float:
        """Longer than any round trip without queues takes."""
        return 4 * float(np.sort(self.testbed.delays_s)[-4:].sum())

    def resample(self, seed: int | None) -> str:
        """Draw the next conditions, or the first of another seed; return which they are."""
        seed, drawn = (self._seed, self._drawn + 1) if seed is None else (seed, 0)
        try:
            rates_bps = conditions_of(self.testbed.setting, seed=seed).shaped_bps(drawn, ())
        except SpecError as error:
            raise PromptError(str(error)) from None
        self._change(rates_bps)
        self._seed, self._drawn = seed, drawn
        return f"the conditions of collective {drawn} of seed {seed}"

    def set_rate(self, link: int, rate_bps: int) -> None:
        """Give a link another rate."""
        rates_bps = self.set_bps.copy()
        rates_bps[link] = rate_bps
        self._change(rates_bps)

    def set_delay(self, link: int, delay_s: float) -> float:
        """Give a link another delay; return the least delay that is not left out, s.

        In real time timers are too late to distinguish a shorter one from none.
        """
        before = self.testbed.delays_s
        delays_s = before.copy()
        delays_s[link] = delay_s
        try:
            self.testbed.reshape(self.set_bps, delays_s=delays_s)
        except Failure:
            self.testbed.reshape(self.set_bps, delays_s=before)
            raise
        return self.testbed.platform.late_s / TELLING

    def set_mode(self, name: str) -> None:
        """Put a mode in force, and choose placement and paths by it under the conditions there are."""
        mode = self.testbed.setting.mode(name)
        self._arrange(mode, "best" if mode.reembeds else "rank", self.collective)
        self.mode, self._since = mode, 0

    def set_ring(self, order: str | Sequence[int]) -> None:
        """Use this ring, the "best" one under the conditions there are, or the one in "rank" order."""
        self._arrange(self.mode, order, self.collective)
        self._since = 1  # a mode that re-embeds keeps it until its next time

    def scenario(self) -> Scenario:
        """The mode, the rates and delays of links and the last collective as they are now, as a scenario."""
        setting = self.testbed.setting
        links = []
        for link in shared_by(self.fabric).all:
            rate_bps, delay_s = round(self.set_bps[link.index]), float(self.testbed.delays_s[link.index])
            links.append(LinkConditions(links=link.name, rate_bps=(rate_bps, rate_bps), delay_s=delay_s))
        conditions = replace(setting.conditions, sampler="uniform", trace=None, every_s=None, links=tuple(links))
        return replace(setting, conditions=conditions, run=replace(setting.run, modes=(self.mode.name,)))

    def run(self, kind: str, chunk_bytes: int, algorithm: str | None = None) -> tuple[CollectiveRecord, float]:
        """Run one collective in the mode that is in force; return its record and the model's prediction, s.

        `algorithm` None is the scenario's, or the first of another kind. If it ends early, by KeyboardInterrupt too, so
        do the agents. Raises PromptError at once where a flow has no path.
        """
        sized = replace(self._given, chunk_bytes=chunk_bytes, size_bytes=None)
        if kind != sized.kind or algorithm not in (None, sized.algorithm):
            sized = replace(sized, kind=kind, algorithm=algorithm, schedule=None, channels=1)
        order = self._order(sized)
        routes = self.mode.routes_at(self._since, self.reembed_every) or sized != self.collective
        routes = routes or self.fabric.spec.routing == "te"  # rates may be others by now
        self._arrange(self.mode, order, sized, route=routes)
        with self._risking():
            # Of the slots that are carried, should they not divide by the scale.
            slot_bytes = carried(self.testbed.setting.workload, self.scale).slot_bytes * self.scale.divisor
            workload = self.testbed.setting.workload
            predicted_s = self.state().predicted_s(
                workload.schedule, self.testbed.placement, slot_bytes=slot_bytes, traffic=traffic(workload)
            )
            if predicted_s > _LONGEST_S:
                raise PromptError(
                    f"the model predicts {predicted_s:.0f} s, and agents wait {_LONGEST_S:.0f} s for one another; "
                    "allowed: a smaller size, or higher rates"
                )
            before = self._sent()
            self.testbed.drops()
            row = self.testbed.measure(self.collectives + 1)
        self.collectives += 1
        self._since += 1
        self.last_bytes = {link: sent - before[link] for link, sent in self._sent().items()}
        self.all_bytes = {link: self.all_bytes.get(link, 0) + sent for link, sent in self.last_bytes.items()}
        return row, predicted_s

    def asking(self, more: Sequence[JobSpec] = ()) -> Scenario:
        """The round of the transfers that are asked for, and these, over the links as they are; raises PromptError."""
        faults = [
            Fault(collective=0, kind="link down", target="-".join(sorted(ends))) for ends in sorted(self.state().dead)
        ]
        setting = replace(self.scenario(), jobs=(*self.requests, *more), faults=tuple(faults))
        setting = replace(setting, run=replace(setting.run, modes=("base",)))
        try:
            found = admission.check(setting) if setting.jobs else ()
            mistakes = [one.text if one.key.startswith("job") else f"{one.key}: {one.text}" for one in found]
            late_s = max((one.due_s for one in setting.transfers), default=0.0) if not mistakes else 0.0
        except ScheduleError as error:
            raise PromptError(str(error)) from None
        if late_s > _LONGEST_S:
            mistakes = [f"{format_delay(late_s)} is when a transfer would end; allowed: up to {_LONGEST_S:.0f} s"]
        if mistakes:
            raise PromptError("; ".join(mistakes))
        return setting

    def deliver(self, setting: Scenario) -> dict[str, float]:
        """Carry out the transfers that such a round promises; when each was all there, s after its beginning, by name.

        If it ends early, so do the agents; the next collective has new ones in any case.
        """
        bed, before, placement = self.testbed, self.testbed.setting, self.testbed.placement
        with self._risking():
            bed.setting, bed.placement = setting, tuple(range(setting.gpus))
            try:
                bed.share(setting.fair_links("base"), self.set_bps)
                bed.renew()
                bed.route(setting.mode("base"), shared_by(self.fabric).slowest_bps(self.set_bps), best=False)
                record = bed.measure(self.collectives + 1)
            finally:
                bed.setting, bed.placement, self._broken = before, placement, True
        spans = setting.workload.jobs
        return {one.name: max(record.arrived_ns[one.transfers.start : one.transfers.stop]) / 1e9 for one in spans}

    def run_program(
        self, command: str, ranks: Sequence[int], request: Mapping[str, Any], say: Callable[..., Any]
    ) -> None:
        """Run a program on the GPUs' hosts over the network as it is; the next collective has new agents.

        `request` and `say` are as for `program.inside.Run`. When it is left by KeyboardInterrupt, so is the program.
        """
        bed = self.testbed
        program = replace(bed.setting.program, command=command, ranks=tuple(ranks), capture=())
        for mistake in check(program, self.mode, self.fabric):
            raise PromptError(f"{mistake.key}: {mistake.text}")
        self._broken = True
        if not bed.setting.run.is_real:
            bed.stays = False
            bed.share(fair_links(bed.setting), self.set_bps)
        bed.set_queues()
        set_transport(bed, self.set_bps)
        Path("/proc/sys/vm/panic_on_oom").write_text("0")
        with Run(bed, program, request, course=None, say=say) as run:
            run.wait()
            say(over=run.end())

    def _order(self, wanted: CollectiveSpec) -> str | tuple[int, ...]:
        """What places are to be given by: the mode, or the placement that there is where it suits the collective."""
        if self.mode.reembeds_at(self._since, self.reembed_every):
            return "best"
        same = (wanted.kind, wanted.algorithm) == (self.collective.kind, self.collective.algorithm)
        return self.testbed.placement if same else "best" if self.mode.reembeds else "rank"

    def set_cable(self, a: str, b: str, *, up: bool) -> None:
        """Bring a cable up or down."""
        self.testbed.network.configLinkStatus(a, b, "up" if up else "down")
        if any(gpu.name in (a, b) for gpu in self.fabric.gpus):
            self._broken = True  # a host forgets its routes with its interface

    def await_cable(self, a: str, b: str, *, up: bool) -> None:
        """Return once the controller has noticed that a cable went down or came up, and routes around the failures."""
        self._await(
            f"{a} - {b} for {'down' if up else 'up'}",
            lambda status: (
                (cable(a, b) not in dead_cables(status)) == up or (up and not {a, b}.isdisjoint(status["not_ready"]))
            ),
        )
        self._heed_failures()

    def await_switch(self, name: str, *, up: bool) -> None:
        """Shape the ports of a switch that was stopped or started, and return once the controller has noticed it.

        A switch all of whose cables are down counts as stopped.
        """
        self.testbed.reshape(self.set_bps)
        cables = around(self.fabric, name)
        self._await(
            f"{name} for {'stopped' if up else 'running'}",
            lambda status: (name not in status["not_ready"]) == up and (cables <= dead_cables(status)) != up,
        )
        self._heed_failures()

    def _heed_failures(self) -> None:
        """Delay packets where they are, whatever their paths, once cables have failed."""
        if self.testbed.stays and self.state().dead:
            self.testbed.stays = False
            self.testbed.reshape(self.set_bps)

    def _await(self, what: str, noticed: Callable[[Mapping[str, Any]], bool]) -> None:
        if not self.testbed.await_status(noticed):
            raise PromptError(f"after {NOTICED_S:.0f} s the controller still takes {what}")

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Within the context, let HTB classes save the bursts that late timers would cost a single flow."""
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

    def _arrange(self, mode: Mode, order: str | Sequence[int], wanted: CollectiveSpec, *, route: bool = True) -> None:
        """Connect the GPUs for this collective, placed so, by "rank", or "best", and have the mode choose the paths.

        Raises PromptError, and changes nothing, where the failed cables leave a flow without a path, or no placement.
        """
        state = self.state()
        try:
            workload = routed(workload_of(wanted, self.fabric.gpus_per_site), self.fabric.spec)
        except ScheduleError as error:
            raise PromptError(str(error)) from None
        placement = self._placement(state, mode, order, workload)
        flows = pairs(workload.schedule, placement)
        reason = text.unreachable(self.fabric, flows, state.dead)
        if reason:
            raise PromptError(reason)
        # Acknowledgements have no routes of their own, and the fixed path is a site's: a GPU may not reach it.
        back = [(dst, src) for src, dst in flows if (dst, src) not in flows]
        if route:
            _check_ways(replace(state, status={**state.status, "routes": []}), back)
        else:
            _check_ways(state, flows + back)
        fair_links = replace(self.testbed.setting, collective=wanted).fair_links(mode.name)
        renews = self._broken or wanted != self.collective or fair_links != self.testbed.fair_links
        if renews:
            self._check_size(workload)
        if self._broken:  # the packets that ended agents have left in the queues would delay it
            self.testbed.reshape(self.set_bps)
        with self._risking():
            self.testbed.placement = placement
            if (fair_links, not state.dead) != (self.testbed.fair_links, self.testbed.stays):
                self.testbed.stays = not state.dead
                self.testbed.share(fair_links, self.set_bps)
            if renews:
                self.testbed.renew(wanted)
                self._broken = False
            self.testbed.join()
            if route or self.testbed.has_lost_ways(mode):
                rates_bps = shared_by(self.fabric).slowest_bps(self.set_bps)
                self.testbed.route(mode, rates_bps, best=mode.reroutes)

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
        """Raise PromptError where a scaled slot is empty, or the buffers are larger than the memory allows."""
        try:
            needs = carried(workload, self.scale).slot_bytes * workload.schedule.slots
        except ScaleError as error:
            raise PromptError(str(error)) from None
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        room = int(fields["MemAvailable"].split()[0]) * 1024
        if needs * _COPIES > room:
            text_size = format_size(needs * self.scale.divisor)
            most = format_size(room // _COPIES * self.scale.divisor // 10**6 * 10**6)
            raise PromptError(f"buffers of {text_size} do not fit the memory there is; allowed: up to {most}")

    @contextmanager
    def _risking(self) -> Iterator[None]:
        """End the agents, and start new ones the next time, if the context is interrupted or fails."""
        try:
            yield
        except PromptError:
            raise
        except ValueError as error:
            raise PromptError(str(error)) from None
        except BaseException:
            self._broken = True
            self.testbed.kill_agents()
            raise

    def _sent(self) -> dict[int, int]:
        """Bytes sent on each WAN link since its port exists."""
        return {link: int(file.read_text()) for link, file in self._sent_files.items()}


def _check_ways(state: State, pairs: Sequence[tuple[int, int]]) -> None:
    """Raise PromptError where the controller routes packets between a pair of ranks over a failed cable."""
    for src, dst in pairs:
        way = state.way(src, dst)
        if way.rate_bps == 0:
            names = ", ".join(state.shared.all[link].name for link in way.links)
            route = f"packets from g{src} to g{dst} are routed over {names}, of which a part is down"
            raise PromptError(f"{route}: {text.cables(state.dead)}")
