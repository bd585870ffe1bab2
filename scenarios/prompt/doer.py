"""Does what was typed, and says what came of it: each command of `commands` to the bench and back to text."""

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from controller.ways import Ways
from scenarios.prompt import commands, flowwords, forecast, speed, words
from scenarios.prompt.bench import Bench
from scenarios.prompt.capture import Capture
from scenarios.prompt.commands import Command, PromptError
from topologies.shaping import lanes

_ASK_S, _PING_S = 30, 3


class Doer:
    """Does commands on a bench; `folder` is where captures go. `close` ends what is under way."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self._bench, self._folder, self._collectives = bench, folder, 0
        self._captures: list[Capture] = []
        self._doers: Mapping[type, Callable[[Any], None]] = {
            commands.Wan: self._wan,
            commands.Paths: self._paths,
            commands.Resample: self._resample,
            commands.Rate: self._rate,
            commands.Delay: self._delay,
            commands.Ring: self._ring,
            commands.SetMode: self._mode,
            commands.AllGather: self._allgather,
            commands.Flows: self._flows,
            commands.Capture: self._capture,
            commands.Iperf: self._iperf,
            commands.Cable: self._cable,
        }

    def do(self, command: Command) -> None:
        """Do it; raises PromptError and the errors of `Failure`."""
        self._doers[type(command)](command)

    def close(self) -> None:
        """End the captures under way."""
        captures, self._captures = self._captures, []
        for capture in captures:
            capture.stop()
            lost = f"; {capture.lost} more were lost" if capture.lost else ""
            print(f"{capture.link}: {capture.packets} packets in {capture.file}{lost}")

    def _wan(self, _: commands.Wan) -> None:
        bench = self._bench
        print(
            words.wan(
                bench.fabric,
                rates_bps=bench.rates_bps,
                delays_s=bench.delays_s,
                last_bytes=bench.last_bytes,
                all_bytes=bench.all_bytes,
                scale=bench.ground.scale,
            )
        )

    def _paths(self, _: commands.Paths) -> None:
        bench = self._bench
        print(
            words.paths(
                bench.fabric,
                bench.ring,
                bench.paths,
                rates_bps=bench.rates_bps,
                delays_s=bench.delays_s,
                chunk_bytes=bench.setting.collective.chunk_bytes,
                scale=bench.ground.scale,
            )
        )

    def _resample(self, command: commands.Resample) -> None:
        print(f"in force: {self._bench.resample(command.seed)}")

    def _rate(self, command: commands.Rate) -> None:
        self._bench.rate(command.link, command.rate_bps)
        print(words.rated(self._name(command.link), command.rate_bps, self._bench.ground.scale))

    def _delay(self, command: commands.Delay) -> None:
        self._bench.delay(command.link, command.delay_s)
        print(words.delayed(self._name(command.link), command.delay_s, self._bench.least_delay_s))

    def _ring(self, command: commands.Ring) -> None:
        if command.order is not None:
            self._bench.set_ring(command.order)
        fabric, ring = self._bench.fabric, self._bench.ring
        crossings = sum(forecast.crosses(fabric, a, b) for a, b in forecast.edges(ring))
        print(words.ring(ring, crossings, len(fabric.gpus_per_site)))

    def _mode(self, command: commands.SetMode) -> None:
        if command.name is not None:
            self._bench.set_mode(command.name)
        print(words.mode(self._bench.mode, self._bench.setting.collective.reembed_every))

    def _allgather(self, command: commands.AllGather) -> None:
        scale = self._bench.ground.scale
        try:
            for _ in range(command.count):
                outcome = self._bench.allgather(command.chunk_bytes)
                self._collectives += 1
                print(words.collective(self._collectives, outcome), flush=True)
        except KeyboardInterrupt:
            print("\naborted; the next AllGather has new agents")
            return
        if scale.divisor > 1:
            carried = words.size(scale.chunk_bytes(command.chunk_bytes))
            print(f"rate scale {scale}: chunks of {carried} were carried at {scale} of the rates; times are real")

    def _flows(self, command: commands.Flows) -> None:
        dump = ["ovs-ofctl", "-O", "OpenFlow13", "dump-flows", command.switch]
        ended = subprocess.run(dump, capture_output=True, text=True, check=False, timeout=_ASK_S)
        if ended.returncode != 0:
            raise PromptError(f"{command.switch} does not tell its rules: {ended.stderr.strip() or 'no reason given'}")
        print(flowwords.readable(ended.stdout, flowwords.names(Ways(self._bench.fabric), command.switch)))

    def _capture(self, command: commands.Capture) -> None:
        if command.link is None or command.file is None:
            if not self._captures:
                raise PromptError("no capture is under way: allowed is capture LINK FILE")
            self.close()
            return
        shaping = [lane for lane in lanes(self._bench.fabric) if lane.link == command.link]
        capture = Capture(self._name(command.link), shaping, self._folder / command.file)
        self._captures.append(capture)
        print(f"capturing {capture.link} into {capture.file} until `capture stop`, or the end")

    def _iperf(self, command: commands.Iperf) -> None:
        bench, src, dst = self._bench, command.src, command.dst
        path = bench.path_between(src, dst)
        way = forecast.way(bench.fabric, src, dst, path, rates_bps=bench.rates_bps, delays_s=bench.delays_s)
        self._check_reachable(src, dst)
        with bench.steady():
            carried_bps = speed.carried_bps(
                src_pid=bench.network.host_pids[src],
                dst_pid=bench.network.host_pids[dst],
                address=bench.fabric.gpus[dst].ip,
                seconds=command.seconds,
            )
        slowest = min(way.links, key=lambda link: float(bench.rates_bps[link]))
        print(
            words.iperf(
                src=src,
                dst=dst,
                carried_bps=carried_bps,
                slowest=self._name(slowest),
                rate_bps=way.rate_bps,
                scale=bench.ground.scale,
            )
        )

    def _check_reachable(self, src: int, dst: int) -> None:
        """Raise PromptError where no packet comes back: TCP would try for minutes."""
        bench = self._bench
        patience_s = _PING_S + int(4 * sum(sorted(bench.delays_s)[-4:]))
        said = bench.network.net.hosts[src].cmd(f"ping -c 3 -i 0.2 -w {patience_s} {bench.fabric.gpus[dst].ip}")
        if " 0 received" in said:
            raise PromptError(f"no answer comes back to g{src} from g{dst}, so TCP cannot either")

    def _cable(self, command: commands.Cable) -> None:
        self._bench.cable(command.a, command.b, up=command.up)
        print(f"{command.a} - {command.b} is {'up' if command.up else 'down'}")

    def _name(self, link: int) -> str:
        return self._bench.fabric.links[link].name
