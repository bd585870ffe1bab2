"""The network at hand and what the prompt does to it: conditions, ring, paths and collectives, one step at a time.

A testbed whose collectives a person runs. Conditions stay until they are changed. What is typed is read by `grammar`,
what is said of it is `words`'.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hosts.communicator import CollectiveError
from scenarios.ground import Ground
from scenarios.plan import MODES, choose_rings
from scenarios.prompt import forecast
from scenarios.prompt.commands import PromptError
from scenarios.prompt.forecast import Outcome
from scenarios.prompt.room import check_size
from scenarios.spec import Scenario
from scenarios.testbed import Failure, Testbed
from topologies.conditions import sampler
from topologies.errors import SpecError
from topologies.shaping import TELLING

STEADY_LATE_S = 20e-3
"""How late timers may be while a single flow is measured: a busy machine then shows less."""

_LONGEST_S = 50.0  # the agents wait a little longer for one another


class Bench(Testbed):
    """The testbed at the prompt.

    `mode` is in force, `rates_bps` and `delays_s` are the conditions, in the scenario's units; `last_bytes` and
    `all_bytes` are what collectives have put on each WAN link, by its index, as carried. Every method raises the
    errors of `Failure` and PromptError, and can be called again then.
    """

    def __init__(self, setting: Scenario, *, ground: Ground, tell: Callable[[str], object]) -> None:
        super().__init__(setting, ground=ground, tell=tell)
        self.mode = MODES["base"]
        self.rates_bps = self._conditions.rates_bps(0, 1)[0]
        self.last_bytes: dict[int, int] = {}
        self.all_bytes: dict[int, int] = {}
        self._drawn = self._since = 0
        self._broken = False
        self._wan_ports: Mapping[int, Path] = {}

    def __enter__(self) -> "Bench":
        super().__enter__()
        try:
            kinds = [link.kind for link in self.fabric.links]
            statistics = "/sys/class/net/{}/statistics/tx_bytes"
            lanes = [lane for lane in self._shaper.shaping.lanes if kinds[lane.link] == "wan"]
            self._wan_ports = {lane.link: Path(statistics.format(lane.interface)) for lane in lanes}
            self.set_mode("base")
        except BaseException:
            self.__exit__()
            raise
        return self

    @property
    def ring(self) -> tuple[int, ...]:
        """The ring, from rank to rank."""
        return self._ring

    @property
    def paths(self) -> tuple[int, ...]:
        """The WAN path of each of the ring's edges now, by its index, -1 within a site."""
        return forecast.paths_now(self.fabric, forecast.edges(self._ring), self._controller.status())

    @property
    def delays_s(self) -> "forecast.Floats":
        """Every link's delay."""
        return self._delays_s

    def resample(self, seed: int | None) -> str:
        """Draw the next conditions, or the first of another seed; return which they are."""
        setting, drawn = self.setting, self._drawn + 1
        if seed is not None:
            setting, drawn = replace(setting, run=replace(setting.run, seed=seed)), 0
        try:
            conditions = sampler(self.fabric, setting.conditions, seed=setting.run.seed)
            rates_bps = conditions.rates_bps(drawn, 1)[0]
        except SpecError as error:
            raise PromptError(str(error)) from None
        self._change(rates_bps)
        self.setting, self._drawn, self._conditions = setting, drawn, conditions
        return f"the conditions of collective {drawn} of seed {setting.run.seed}"

    def rate(self, link: int, rate_bps: int) -> None:
        """Give a link another rate."""
        rates_bps = self.rates_bps.copy()
        rates_bps[link] = rate_bps
        self._change(rates_bps)

    def delay(self, link: int, delay_s: float) -> None:
        """Give a link another delay: its queues are made anew."""
        before = self._delays_s
        self._delays_s = before.copy()
        self._delays_s[link] = delay_s
        try:
            self.reshape()
        except Failure:
            self._delays_s = before
            self.reshape()
            raise
        self._router = type(self._router)(self.fabric, self._delays_s)

    @property
    def least_delay_s(self) -> float:
        """What is shorter is left out, as timers in real time are too late to tell it from nothing."""
        return self.ground.late_s / TELLING

    def reshape(self) -> None:
        """Shape the links anew, without what is in the queues."""
        self._unshape()
        self._shaper = self._shape(self.rates_bps)

    def set_mode(self, name: str) -> None:
        """Put a mode in force: ring and paths are as it chooses them under the conditions there are."""
        self._whole(self.setting.collective.chunk_bytes)
        with self._risking():
            self._embed(MODES[name], self.rates_bps)
            self._route(MODES[name], self.rates_bps)
        self.mode, self._since = MODES[name], 0

    def set_ring(self, order: str | tuple[int, ...]) -> None:
        """Make this ring, the best one under the conditions there are ("best"), or the rank order ("rank")."""
        self._whole(self.setting.collective.chunk_bytes)
        self._since = 1  # a mode that re-embeds has just done so, as it were
        with self._risking():
            if order == "rank":
                self._embed(MODES["base"], self.rates_bps)
            else:
                self._make(self._best() if order == "best" else tuple(int(rank) for rank in order))
            self._route(self.mode, self.rates_bps)

    def predict_s(self, chunk_bytes: int) -> float:
        """What the model says of an AllGather now: of the chunk that is carried, should it not divide by the scale."""
        scale = self.ground.scale
        return forecast.predicted_s(
            self.fabric,
            self._ring,
            self.paths,
            rates_bps=self.rates_bps,
            delays_s=self._delays_s,
            chunk_bytes=scale.chunk_bytes(chunk_bytes) * scale.divisor,
        )

    def allgather(self, chunk_bytes: int) -> Outcome:
        """Run one AllGather as the mode has it; whatever ends it early, KeyboardInterrupt too, ends the agents."""
        self._whole(chunk_bytes)
        with self._risking():
            due = self._since % self.setting.collective.reembed_every == 0
            if self.mode.reembeds and due:
                self._embed(self.mode, self.rates_bps)
            if self.mode.reroutes or (self.mode.reembeds and due):
                self._route(self.mode, self.rates_bps)
            predicted_s = self.predict_s(chunk_bytes)
            if predicted_s > _LONGEST_S:
                raise PromptError(
                    f"the model predicts {predicted_s:.0f} s, and agents wait {_LONGEST_S:.0f} s for one another: "
                    "allowed is a smaller chunk, or higher rates"
                )
            before, _, _ = self._sent(), self._drops.drops(), self._late()
            result = self._communicator.allgather()
            late = self._late()
        self._since += 1
        self.last_bytes = {link: sent - before[link] for link, sent in self._sent().items()}
        self.all_bytes = {link: self.all_bytes.get(link, 0) + sent for link, sent in self.last_bytes.items()}
        if result.faults:
            fault = result.faults[0]
            raise CollectiveError(f"wrong data arrived: GPU {fault.rank}, step {fault.step}: {fault.text}")
        return Outcome(
            measured_s=result.completion_s,
            predicted_s=predicted_s,
            drops=sum(self._drops.drops().values()),
            late=late,
        )

    def cable(self, a: str, b: str, *, up: bool) -> None:
        """Bring a cable up or down."""
        self.network.net.configLinkStatus(a, b, "up" if up else "down")
        if any(gpu.name in (a, b) for gpu in self.fabric.gpus):
            self._broken = True  # a host forgets its routes with its interface

    def path_between(self, src: int, dst: int) -> int:
        """The WAN path that packets from rank to rank take now, -1 within a site."""
        return forecast.paths_now(self.fabric, [(src, dst)], self._controller.status())[0]

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Let classes save up what late timers would lose a single flow, for the time of the context."""
        shaping = self._shaper.shaping
        self._shaper.shaping = replace(shaping, late_s=STEADY_LATE_S)
        try:
            self._change(self.rates_bps)
            yield
        finally:
            self._shaper.shaping = shaping
            self._change(self.rates_bps)

    def _change(self, rates_bps: "forecast.Floats") -> None:
        self._shaper.change(self.ground.scale.rates_bps(rates_bps))
        self.rates_bps = rates_bps

    def _best(self) -> tuple[int, ...]:
        rates_bps, chunk_bytes = self.rates_bps[None], self.setting.collective.chunk_bytes
        chosen = choose_rings(self._router, rates_bps, chunk_bytes=chunk_bytes, reroutes=self.mode.reroutes)[0]
        return tuple(int(rank) for rank in chosen)

    def _make(self, ring: Sequence[int]) -> None:
        self._ring = tuple(ring)
        self.join()

    def _whole(self, chunk_bytes: int) -> None:
        """See to it that there are agents, for chunks of this size, and in the ring there was."""
        if not self._broken and chunk_bytes == self.setting.collective.chunk_bytes:
            return
        check_size(chunk_bytes, gpus=len(self.fabric.gpus), scale=self.ground.scale)
        if self._broken:  # what others have left in the queues would be in the way
            self.reshape()
        with self._risking():
            self._communicator.close()
            self._communicator = self._communicate(chunk_bytes, epoch=self._communicator.epoch)
            self.setting = replace(self.setting, collective=replace(self.setting.collective, chunk_bytes=chunk_bytes))
            self.part()
            if self._ring:
                self.join()
        self._broken = False

    @contextmanager
    def _risking(self) -> Iterator[None]:
        """Have the agents started anew the next time, should what follows be interrupted or fail."""
        try:
            yield
        except PromptError:
            raise
        except ValueError as error:
            raise PromptError(str(error)) from None
        except BaseException:
            self._broken = True
            self._communicator.kill()
            raise

    def _sent(self) -> dict[int, int]:
        """Bytes sent on each WAN link since it is there."""
        return {link: int(path.read_text()) for link, path in self._wan_ports.items()}
