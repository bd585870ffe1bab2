"""A program's run inside the VM, as root: ``python -m scenarios.program.inside REQUEST``.

REQUEST is JSON: the configuration (`to_json`), the run's folder, the working directory, the environment and the user
of the program. Brings the network up, starts the ranks, and prints lines of JSON as it goes: {"doing":
WORDS} while the network comes up; {"began": ...}; {"rank", "stream", "text" (base64)} for output; {"rank", "ended",
"at_ns"} for each rank; {"at_ns", "bytes"} for each look at the WAN's ports; at the end {"over": ...}. Times are in ns
since the ranks were started.
"""

import base64
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hosts.agent import transport
from hosts.agent.transport import limits
from scenarios.policies.conditions import conditions_of
from scenarios.program.ranks import FILES, MAX_PROCESSES, Rooms, User, started
from scenarios.signals import guarded
from scenarios.spec.scenario import Scenario, from_json
from scenarios.testbed.__main__ import tell
from scenarios.testbed.platform import VIRTUAL, Platform
from scenarios.testbed.testbed import Failure, Testbed
from topologies.fabric.ports import shared_by
from topologies.mininet_network import inside, netlink_of
from topologies.shaping.classes import classes_of

PORT = 29500
"""The port at which the first rank may listen: torch's own default."""

_GRACE_S = 2.0  # from SIGTERM to SIGKILL
_MOST_SAMPLES = 4096  # at one interval; then it doubles
_CHUNK = 65536
_TURNS = 3  # for the pumps that carry the output
_LEAST_WINDOW_BYTES = 16 << 20


def main(arguments: list[str]) -> int:
    """Run a program and print its lines; returns an exit status, 0 whatever the program's is."""
    request = json.loads(arguments[0])
    setting = from_json(request["setting"])
    platform = Platform.real(setting.run.scale, own_kernel=False) if setting.run.is_real else VIRTUAL
    Path("/proc/sys/vm/panic_on_oom").write_text("0")  # or the program's memory would be the VM's end
    fair = None if setting.run.is_real or setting.transport.queue == "fifo" else _all_links(setting)
    try:
        with Testbed(setting, platform=platform, tell=tell, fair_links=fair, has_agents=False) as testbed:
            tell("the controller's paths")
            conditions = conditions_of(setting)
            mode = setting.mode(setting.run.modes[0])
            messages = testbed.route_all(mode, conditions.known_bps(0, ()))
            _set_transport(testbed, setting)
            with Run(testbed, request, openflow_messages=messages) as run:
                run.wait()
                _say(over=run.end())
    except Failure as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"the program cannot be started: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


class Run:
    """The ranks of a program from their start to their end; a context manager that leaves no process of theirs."""

    def __init__(self, testbed: Testbed, request: Mapping[str, Any], *, openflow_messages: int) -> None:
        setting = testbed.setting
        self._testbed, self._spec, self._folder = testbed, setting.program, Path(request["folder"])
        self._environment: Mapping[str, str] = request["environment"]
        self._user = User(**request["user"])
        self._gpus = self._spec.ranks_of(setting.gpus)
        shared = shared_by(testbed.fabric).all
        ports = {one.link: one.interface for one in classes_of(testbed.fabric) if shared[one.link].kind == "wan"}
        rates_bps = testbed.platform.scale.rates_bps(conditions_of(setting).shaped_bps(0, ()))
        self._messages = openflow_messages
        self._links = [
            {"name": shared[link].name, "interface": interface, "rate_bps": float(rates_bps[link])}
            for link, interface in ports.items()
        ]
        self._counters = [Path("/sys/class/net", port, "statistics/tx_bytes") for port in ports.values()]
        self._rooms = Rooms(
            testbed.platform.folder / "program",
            directory=Path(request["directory"]),
            user=self._user,
            ranks=len(self._gpus),
            size_bytes=self._spec.files_bytes,
            hosts={gpu.name: gpu.ip for gpu in testbed.fabric.gpus},
        )
        self._waiting = selectors.SelectSelector()  # others round a time up to a millisecond
        self._running: dict[int, Any] = {}
        self._streams = 0
        self._kept: dict[tuple[int, str], int] = {}
        self._discarded: dict[tuple[int, str], int] = {}
        self._before = [self._retransmitted(gpu) for gpu in self._gpus]
        self._sent_before = self._sent()
        self._beginning_ns = 0
        self._full = False

    def __enter__(self) -> "Run":
        testbed, count = self._testbed, len(self._gpus)
        testbed.drops()
        self._beginning_ns = time.monotonic_ns()
        _say(began=True, openflow_messages=self._messages, links=self._links)
        self._sample()
        for rank, gpu in enumerate(self._gpus):
            host = testbed.fabric.gpus[gpu]
            prepare = partial(
                self._rooms.prepare,
                rank,
                name=host.name,
                host_pid=testbed.network.host_pids[gpu],
                hidden=str(self._folder),
                limit=MAX_PROCESSES * count,
                memory_bytes=self._spec.memory_bytes,
            )
            command = self._spec.command or ""
            process = started(command, user=self._user, environment=self._variables(rank), prepare=prepare)
            self._running[rank] = process
            pidfd = os.pidfd_open(process.pid)
            self._waiting.register(pidfd, selectors.EVENT_READ, (rank, None))
            for name in ("stdout", "stderr"):
                self._waiting.register(getattr(process, name), selectors.EVENT_READ, (rank, name))
                self._streams += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._user.kill_all()

    def _variables(self, rank: int) -> dict[str, str]:
        """The environment of a rank: torch's names, and the interface for those who look for one by themselves."""
        gpus = self._testbed.fabric.gpus
        own, first = gpus[self._gpus[rank]], gpus[self._gpus[0]]
        interfaces = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), own.interface)
        return {
            **self._environment,
            "RANK": str(rank),
            "WORLD_SIZE": str(len(self._gpus)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(rank),
            "GROUP_WORLD_SIZE": str(len(self._gpus)),
            "MASTER_ADDR": first.ip,
            "MASTER_PORT": str(PORT),
            **interfaces,
            "LONGHAUL_GPU": own.name,
            "LONGHAUL_SITE": str(own.site),
            "LONGHAUL_ADDRESS": own.ip,
            "LONGHAUL_HOSTS": " ".join(gpus[gpu].ip for gpu in self._gpus),
            **dict(self._spec.env),
        }

    def wait(self) -> None:
        """Return once all ranks have ended, at the deadline by SIGTERM and then by SIGKILL."""
        interval_ns, samples = round(self._spec.sample_s * 1e9), 0
        next_ns, deadline_ns = interval_ns, round(self._spec.deadline_s * 1e9)
        signals = [signal.SIGTERM, signal.SIGKILL]
        while self._running:
            now_ns = self._now_ns()
            if now_ns >= deadline_ns and signals:
                self._end_all(signals.pop(0), now_ns)
                deadline_ns += round(_GRACE_S * 1e9)
            if now_ns >= next_ns:
                self._sample()
                samples += 1
                if samples % _MOST_SAMPLES == 0:
                    interval_ns *= 2
                next_ns = now_ns - now_ns % interval_ns + interval_ns
            until_ns = min(next_ns, deadline_ns) if signals else next_ns
            self._look(max(0, until_ns - self._now_ns()) / 1e9)

    def end(self) -> dict[str, Any]:
        """End what the ranks have left running, and return what is to be known at the end."""
        self._sample()
        at_ns, left = self._now_ns(), self._user.kill_all()
        while self._streams:
            self._look(None)
        full = self._full or self._rooms.is_full
        try:
            kept, lost = self._rooms.keep(self._folder / FILES, most_bytes=self._spec.files_bytes)
            unkept = ""
        except OSError as error:
            kept, lost, unkept = 0, 0, error.strerror or str(error)
        return {
            "at_ns": at_ns,
            "left_running": left,
            "drops": self._testbed.drops(),
            "retransmitted": [
                self._retransmitted(gpu) - before for gpu, before in zip(self._gpus, self._before, strict=True)
            ],
            "discarded": [[rank, name, count] for (rank, name), count in self._discarded.items()],
            "files": kept,
            "files_left_out": lost,
            "files_error": unkept,
            "full": full,
        }

    def _now_ns(self) -> int:
        return time.monotonic_ns() - self._beginning_ns

    def _end_all(self, number: signal.Signals, now_ns: int) -> None:
        _say(deadline_ns=now_ns, signal=number.name)
        if number == signal.SIGKILL:
            self._user.kill_all()
            return
        for process in self._running.values():
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:  # it ends just now
                continue

    def _look(self, wait_s: float | None) -> None:
        for key, _ in self._waiting.select(wait_s):
            rank, name = key.data
            if name is None:
                self._waiting.unregister(key.fileobj)
                os.close(key.fd)
                status = self._running.pop(rank).wait()
                _say(rank=rank, ended=status, at_ns=self._now_ns())
                self._full = self._full or self._rooms.is_full
                continue
            try:
                data = os.read(key.fd, _CHUNK)
            except BlockingIOError:
                continue
            if data:
                self._take(rank, name, data)
            else:
                self._waiting.unregister(key.fileobj)
                self._streams -= 1

    def _take(self, rank: int, name: str, data: bytes) -> None:
        """Pass on what a rank printed, as far as it is kept; the rest is read, so that nobody waits for it."""
        kept = self._kept.get((rank, name), 0)
        part = data[: max(0, self._spec.output_bytes - kept)]
        self._kept[rank, name] = kept + len(part)
        if len(part) < len(data):
            self._discarded[rank, name] = self._discarded.get((rank, name), 0) + len(data) - len(part)
        if part:
            _say(rank=rank, stream=name, text=base64.b64encode(part).decode())

    def _sample(self) -> None:
        sent = [now - before for now, before in zip(self._sent(), self._sent_before, strict=True)]
        _say(at_ns=self._now_ns(), bytes=sent)

    def _sent(self) -> list[int]:
        return [int(file.read_text()) for file in self._counters]

    def _retransmitted(self, gpu: int) -> int:
        """The segments that TCP of a GPU's host has sent again."""
        lines = Path(f"/proc/{self._testbed.network.host_pids[gpu]}/net/snmp").read_text().splitlines()
        names, values = (line.split() for line in lines if line.startswith("Tcp:"))
        return int(values[names.index("RetransSegs")])


def _all_links(setting: Scenario) -> tuple[str, ...]:
    """All links or ports, by name: a program's connections may share any."""
    return tuple(one.name for one in shared_by(conditions_of(setting).fabric).all)


def _set_transport(testbed: Testbed, setting: Scenario) -> None:
    """Give the GPUs' hosts the settings of [transport], with windows that fill the longest way."""
    fabric, wanted = testbed.fabric, setting.transport
    fastest_bps = float(conditions_of(setting).shaped_bps(0, ()).max())
    longest_s = float(sum(sorted(testbed.delays_s)[-4:]))
    window_bytes = max(_LEAST_WINDOW_BYTES, round(2 * longest_s * fastest_bps / 8))
    limit = limits(wanted, flow_bytes=min(window_bytes, transport.MAX_WINDOW_BYTES))
    transport.lift_memory_limit()
    for gpu, pid in zip(fabric.gpus, testbed.network.host_pids, strict=True):
        with inside(pid):
            transport.set_sysctls(wanted, limit)
            for name, text in (
                ("tcp_congestion_control", wanted.congestion_control),
                ("ping_group_range", "0 2147483647"),
            ):
                Path("/proc/sys/net/ipv4", name).write_text(text)
        if wanted.line_rate:
            with netlink_of(pid) as netlink:
                for other in fabric.gpus:
                    if other is not gpu:
                        netlink.set_route(gpu.interface, other.ip, initial_segments=limit.initial_segments)


def _say(**fields: object) -> None:
    """Print a line, and yield the processor so that it gets out even if the program spins next."""
    print(json.dumps(fields), flush=True)
    for _ in range(_TURNS):
        os.sched_yield()


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
