"""Runs inside the VM: the life of ``python -m controller`` over a fabric of Open vSwitch bridges.

Prints one JSON object.
"""

import json
import random
import signal
import sys
import time
from typing import Any

from controller.client import Controller
from controller.protocol import write_spec
from scenarios.vm import openvswitch
from tests.guest.openflow import (
    DECLARED,
    PORT,
    SOCKET,
    Stream,
    ask,
    build,
    carried,
    dump,
    ping,
    refusal,
    sh,
    start_controller,
)
from topologies.fabric import Fabric, FabricSpec, build_fabric
from topologies.wan import WanSpec


class Life:
    """The life of a controller: it comes up, changes routes under traffic, dies, comes back, loses a switch and is
    stopped. What is asked of it are the crossings of `pair` and of the last rank to the first.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric, self.chance = fabric, random.Random(1)
        self.pair = fabric.gpus_per_site[0] - 1, fabric.gpus_per_site[0]
        self.paths = [path.index for path in fabric.paths_between[0, 1]]
        self.process = start_controller()
        self.controller = Controller(SOCKET)
        self.controller.wait_ready(timeout_s=60, alive=lambda: self.process.poll() is None)

    def ask(self, path: int, *others: tuple[int, int]) -> list[int]:
        return ask(self.controller, self.fabric, path, [self.pair, *others], self.chance)

    def carried(self) -> Any:
        return carried(self.fabric, *self.pair, count=50)

    def rules(self) -> dict[str, Any]:
        return {switch.name: dump(switch.name) for switch in self.fabric.switches}

    def up(self) -> dict[str, object]:
        n = len(self.fabric.gpus)
        pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
        return {
            "standing": self.rules(),
            "pairs_lost": [(a, b) for a, b in pairs if ping(self.fabric, a, b, count=1) != 1],
            "default": self.carried(),
        }

    def changing(self) -> dict[str, object]:
        live, moved = Stream(self.fabric, *self.pair), []
        for _ in range(30):
            path = self.chance.choice(self.paths)
            moved.append((path, self.ask(path, (len(self.fabric.gpus) - 1, 0))))
            time.sleep(self.chance.choice([0, 0.0005, 0.003]))
        found: dict[str, object] = {"changes": moved, "live": live.end()}
        routed = {}
        for path in self.chance.sample(self.paths, min(len(self.paths), 6)):
            self.ask(path)
            routed[self.fabric.paths[path].name] = self.carried()
        return found | {"routed": routed}

    def killed(self, standing: object) -> dict[str, object]:
        last = self.paths[-1]
        assert self.fabric.border_routers[self.fabric.paths[last].src_br] != "s0b0"  # off the way of the answers
        self.ask(last)
        held = self.rules()
        self.process.kill()
        self.process.wait()
        time.sleep(30)
        found: dict[str, object] = {
            "routed_rules": held,
            "kept_when_dead": held == self.rules(),
            "routed_when_dead": self.carried(),
            "asked_when_dead": refusal(self.controller, self.fabric),
        }
        live = Stream(self.fabric, *self.pair)
        self.process = start_controller()
        self.controller.wait_ready(timeout_s=60, alive=lambda: self.process.poll() is None)
        return found | {"live_restart": live.end(), "standing_again": standing == self.rules()}

    def without_a_switch(self, standing: dict[str, Any]) -> dict[str, object]:
        last = self.paths[-1]
        self.ask(last)
        victim = self.fabric.paths[last].name.split(">")[0]
        sh(f"ovs-ofctl -O OpenFlow13 del-flows {victim}")
        sh(f"ovs-vsctl del-controller {victim}")
        time.sleep(1)
        (around,) = self.ask(last)
        found: dict[str, object] = {
            "asked_without_switch": self.fabric.paths[around].name,
            "routed_without_switch": self.carried(),
            "rules_without_controller": dump(victim),
        }
        sh(f"ovs-vsctl set-controller {victim} tcp:127.0.0.1:{PORT}")
        self.controller.wait_ready(timeout_s=60)
        found["reconnected"] = set(standing[victim]) <= set(dump(victim))
        self.ask(last)
        return found | {"routed_reconnected": self.carried()}

    def stopped(self) -> dict[str, object]:
        self.controller.close()
        found: dict[str, object] = {}
        for name, number in (("sigterm", signal.SIGTERM), ("sigint", signal.SIGINT)):
            self.process.send_signal(number)
            found[name] = (self.process.wait(timeout=30), SOCKET.exists())
            if name == "sigterm":
                self.process = start_controller()
                Controller(SOCKET).wait_ready(timeout_s=60)
        return found


def life(fabric: Fabric) -> dict[str, object]:
    """What was seen in each stage of a controller's life."""
    one = Life(fabric)
    found = one.up()
    standing: Any = found["standing"]
    return found | one.changing() | one.killed(standing) | one.without_a_switch(standing) | one.stopped()


FABRICS = {
    "mesh": FabricSpec(),
    "five-router": FabricSpec(gpus_per_site=(3, 5), wan=WanSpec(preset="five-router")),
}


def main(name: str) -> None:
    fabric = build_fabric(FABRICS[name])
    openvswitch.up()
    DECLARED.write_text(write_spec(FABRICS[name]))
    build(fabric)
    print(json.dumps(life(fabric)))


if __name__ == "__main__":
    main(sys.argv[1])
