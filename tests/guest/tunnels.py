"""Runs inside the VM: `tunnels.py SCENARIO FROM_S UNTIL_S` runs two collectives over tunnels; prints one JSON object.

Of the first collective, between the two instants: the bytes that each tunnel in use `sent` at its first port, and those
that its rate allows, `wanted`, in whole frames; and the most bytes ever `queued` at each later WAN port. During the
second all tunnels change: `moved` is the number of `flows` whose path changed. `drops` has both collectives' packets
dropped.
"""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from scenarios.policies.policy import MODES
from scenarios.spec.load import load_scenario
from scenarios.testbed.point_run import PointRun
from scenarios.testbed.testbed import Testbed
from tests.guest.testbed import wan_ports

LOOKS = 20


def queues(interface: str, key: str) -> "dict[str, int]":
    """Return the statistic `key` of each fair queue of a port, by interface and class."""
    shown = subprocess.run(
        ["tc", "-s", "-j", "qdisc", "show", "dev", interface], check=True, capture_output=True, text=True
    ).stdout
    return {f"{interface} {one['parent']}": one[key] for one in json.loads(shown) if one["kind"] == "fq"}


class At:
    """Calls a function at instants of a collective, in s since its beginning, in a separate thread."""

    def __init__(self, instants: Sequence[float], action: Callable[[], Any]) -> None:
        self._instants, self._action, self.found = instants, action, list[Any]()

    def begin(self, start_ns: int) -> None:
        self._start_ns, self.thread = start_ns, threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        for instant in self._instants:
            time.sleep(max(0.0, (self._start_ns - time.monotonic_ns()) / 1e9 + instant))
            self.found.append((time.monotonic_ns(), self._action()))


def seen(scenario: str, from_s: float, until_s: float) -> dict[str, Any]:
    setting = load_scenario(scenario)
    mode = MODES[setting.run.modes[0]]
    with Testbed(setting, fair_links=setting.fair_links(mode.name)) as testbed:
        shaping, count = testbed._shaper.shaping, len(testbed._rates_bps)
        tunnels = {one.key: one.link - count for one in shaping.classes if one.link >= count}
        edges = {interface for interface, _ in tunnels}

        def look() -> "tuple[dict[str, int], dict[str, int]]":
            sent = {name: found for edge in sorted(edges) for name, found in queues(edge, "bytes").items()}
            return sent, {
                port: sum(queues(port, "backlog").values()) for port in wan_ports(testbed) if port not in edges
            }

        looks = At(np.linspace(from_s, until_s, LOOKS).tolist(), look)
        point = PointRun(testbed, mode)
        first = point.collective(0, partial(point.player.decide, 0), on_start=looks.begin)
        point.player.learn(first)
        looks.thread.join()
        (begin_ns, (begin, _)), (end_ns, (end, _)) = looks.found[0], looks.found[-1]
        queued = Counter[str]()
        for _, (_, waits) in looks.found:
            queued |= Counter(waits)
        limits_bps, wanted = testbed.limits_bps, shaping.wanted(testbed._rates_with_tunnels_bps)
        assert limits_bps is not None
        used = {f"{name} 1:{minor:x}": wanted[name, minor] for (name, minor), n in tunnels.items() if limits_bps[n]}
        before = testbed.status()["flows"]
        others_bps = testbed.conditions.rates_bps(2, 1)[0]
        change = At([(from_s + until_s) / 2], lambda: testbed.route(mode, others_bps, best=False))
        second = point.collective(1, partial(point.player.decide, 1), on_start=change.begin)
        change.thread.join()
        paths = [{tuple(flow[:3]): flow[3] for flow in flows} for flows in (before, testbed.status()["flows"])]
        return {
            "sent": {name: end[name] - begin[name] for name in used},
            "wanted": {name: rate * (end_ns - begin_ns) / 1e9 for name, rate in used.items()},
            "queued": queued,
            "drops": [first.record.drops, second.record.drops],
            "moved": sum(paths[0][key] != paths[1][key] for key in paths[0]),
            "flows": len(paths[0]),
        }


if __name__ == "__main__":
    print(json.dumps(seen(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))))
