"""The controller with real switches in the VM: default rules, route changes, restarts and reconnections."""

from itertools import pairwise

import pytest

from controller.forwarding import rules
from controller.forwarding.flow_mods import IN_PORT, Rule
from controller.routing.switch_paths import FabricPaths
from tests.conftest import VM
from tests.guest.openflow import FABRICS
from topologies.fabric.fabric import build_fabric


# The mesh differs by having no transit routers.
@pytest.mark.parametrize("name", ["five-router", pytest.param("mesh", marks=pytest.mark.slow)])
def test_routes_restarts_and_reconnections_work_with_real_switches(vm: VM, name: str) -> None:
    check_controller(vm, name)


def check_controller(vm: VM, name: str, **environment: str) -> None:
    found = vm.report("openflow", name, **environment)
    fabric = build_fabric(FABRICS[name])
    ways = FabricPaths(fabric)
    for switch in fabric.switches:
        wanted = [*rules.default_rules(ways, switch.name)]
        wanted += [rule for path in fabric.paths for rule in rules.tunnel_rules(ways, switch.name, path.index)]
        assert found["default_rules"][switch.name] == sorted(as_ovs(rule) for rule in wanted)
    assert found["pairs_lost"] == []
    there, back = fabric.paths_between[0, 1], fabric.paths_between[1, 0]
    answers = links_of(back[0].name)
    assert found["default"] == dict.fromkeys([*links_of(there[0].name), *answers], 50)

    # Routes change during a stream of datagrams, each time to the only path that the conditions make the best.
    assert len(found["changes"]) == 100 and len({asked for asked, _ in found["changes"]}) > 3
    assert all(paths[0] == asked for asked, paths in found["changes"])
    assert found["live"]["sent"] > 1000 and (found["live"]["lost"], found["live"]["duplicates"]) == (0, 0)
    # They also change during a TCP stream, each change with one message.
    loaded = found["loaded"]
    assert max(loaded["messages"]) == 1 and sum(loaded["messages"]) > 15
    assert loaded["received"] == loaded["sent"] > 10_000_000
    assert (loaded["dropped"], loaded["retransmitted"]) == (0, 0)
    # Soon after the reply, every packet takes the new path only.
    assert len(found["routed"]) >= 4
    for path, carried in found["routed"].items():
        assert carried == dict.fromkeys([*links_of(path), *answers], 50)

    last = there[-1]
    assert found["kept_when_dead"] is True
    assert found["routed_when_dead"] == dict.fromkeys([*links_of(last.name), *answers], 50)
    assert found["asked_when_dead"].endswith("controller.sock has ended")
    assert found["live_restart"]["sent"] > 1000 and found["live_restart"]["lost"] == 0
    assert found["default_rules_again"] is True

    victim = last.name.split(">")[0]
    assert victim not in found["asked_without_switch"]
    assert found["routed_without_switch"] == dict.fromkeys([*links_of(found["asked_without_switch"]), *answers], 50)
    assert found["rules_without_controller"] == []
    assert found["reconnected"] is True
    assert found["routed_reconnected"] == dict.fromkeys([*links_of(last.name), *answers], 50)
    assert found["sigterm"] == found["sigint"] == [0, False]


def links_of(path: str) -> list[str]:
    """Return a path's WAN links: "a>b" and "b>c" for "a>b>c"."""
    names = path.split(">")
    return [f"{a}>{b}" for a, b in pairwise(names)]


def as_ovs(rule: Rule) -> str:
    """Return a rule as ovs-ofctl prints it."""
    match = rule.match
    fields = {"in_port": match.in_port, "dl_dst": match.eth_dst, "nw_src": match.src, "nw_dst": match.dst}
    words = [
        *["ip"] * bool(match.src or match.dst),
        *(f"{field}={value}" for field, value in fields.items() if value is not None),
    ]
    rewrite = "".join(f"set_field:{mac}->{name}," for name in ("eth_dst", "eth_src") if (mac := getattr(rule, name)))
    out = "IN_PORT" if rule.out_port == IN_PORT else f"output:{rule.out_port}"
    return f"cookie=0x{rule.cookie:x}, priority={rule.priority},{','.join(words)} actions={rewrite}{out}"
