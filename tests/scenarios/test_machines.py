"""One network on several machines: `run.machines`."""

import csv
import json
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios import api
from scenarios.engines.emulation import emulated, links_between_machines, memory_bytes
from scenarios.engines.machines import with_machines
from scenarios.spec import ScenarioError
from scenarios.spec.load import Override, load_scenario
from scenarios.spec.scenario import to_json
from scenarios.testbed import launch
from tests.conftest import PROJECT
from tests.fakes.processes import await_that
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.fabric.machines import Share

MODES = ("base", "wan", "ccl", "joint")
FAULTS = [
    {"at": "collective 1", "what": "link s0b0-s1b0 down", "for": "2 collectives"},  # between the machines
    {"at": "collective 2", "what": "link s1b0-s2b0 down", "for": "2 collectives"},  # unknown to the first machine
    {"at": "collective 4", "what": "switch s2b1 down"},
    {"at": "collective 4", "what": "agent 5 slow 3x"},
]


def records(mode: str, machines: int, values: dict[str, object], captures: Path | None = None) -> list[dict[str, Any]]:
    """Run a point in so many machines; return the records of its collectives."""
    given = values | {"run.machines": machines, "run.modes": [mode]}
    config = emulated(api.scenario("paper", given).configurations()[0])
    config = config if captures is None else config.capturing(captures)
    stdout, stderr = BytesIO(), BytesIO()
    status = launch.testbed(
        [to_json(config), mode, launch.words_of(config.collective.numbers)],
        memory_bytes=memory_bytes(config) // machines,
        links=links_between_machines(config),
        stdout=stdout,
        stderr=stderr,
    )
    assert status == 0, stderr.getvalue().decode()
    return [line for line in map(json.loads, stdout.getvalue().splitlines()) if "collective" in line]


def times(record: dict[str, Any]) -> list[float]:
    """Take the times out of a record, and return them in ns."""
    lists = (record.pop(name) for name in ("start_ns", "sent_ns", "arrived_ns"))
    probed = (ns for probe in record.pop("probes", ()) for ns in probe[3:])
    alone = (record.pop(name) * 1e9 for name in ("completion_s", "reconfigure_s") if name in record)
    return [*(ns for each in lists for ns in each), *probed, *alone]


@pytest.mark.parametrize("mode", MODES)
def test_every_message_takes_the_nanoseconds_of_one_machine(mode: str) -> None:
    """The default figures' points at 8 GPUs, a choice of rings and paths included."""
    count = 11 if mode == "joint" else 3
    values: dict[str, object] = {"collective.count": count, "collective.emulated": count}
    one, two = records(mode, 1, values), records(mode, 2, values)
    for alone, shared in zip(one, two, strict=True):
        took_s = [record.pop("reconfigure_s", None) for record in (alone, shared)]
        assert took_s[1] == pytest.approx(took_s[0], abs=20e-9)  # each wait between the machines ends a few ns later
        assert shared == alone


@pytest.mark.parametrize(
    ("mode", "machines", "values"),
    [
        ("joint", 3, {"fabric.gpus": [2, 3, 3], "conditions.wan_delay": "3 ms", "collective.count": 11}),
        ("ccl", 2, {"control.counted": True, "control.delay": ["1 ms", "8 ms"], "conditions.wan_delay": "3 ms"}),
        ("wan", 2, {"control.knowledge": "probed", "conditions.wan_delay": "3 ms"}),
        ("wan", 2, {"fabric.gpus": [2, 3, 3], "collective.count": 6, "fault": FAULTS, "conditions.wan_delay": "3 ms"}),
        ("base", 2, {"collective.count": 1, "transport.queue": "fifo", "fabric.buffer": "1 MB"}),
    ],
)
def test_other_features_take_the_times_of_one_machine(mode: str, machines: int, values: dict[str, object]) -> None:
    """All of a record: choices, times of reconfigurations, probes, messages of the controllers, drops. Messages that
    arrive at one instant may take turns in another order, some ns apart."""
    measured = {"collective.count": 2} | values
    measured["collective.emulated"] = measured["collective.count"]
    one, some = (records(mode, number, measured) for number in (1, machines))
    for alone, shared in zip(one, some, strict=True):
        assert times(shared) == pytest.approx(times(alone), abs=50)
        assert shared == alone


def test_captures_have_the_packets_of_one_machine(tmp_path: Path) -> None:
    values: dict[str, object] = {"collective.count": 2, "collective.emulated": 2, "collective.chunk": "1 MB"}
    values["program.capture"] = ["s0b0>s1b0", "s1b0>s0b0", "s1b1>s0b1"]
    packets = []
    for machines in (1, 2):
        folder = tmp_path / str(machines)
        folder.mkdir()
        records("base", machines, values, captures=folder)
        with (folder / "base/captured.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert all((folder / "base" / row["file"]).stat().st_size > 80 * int(row["packets"]) for row in rows)
        packets.append({row["link"]: int(row["packets"]) for row in rows})
    assert packets[0].keys() == packets[1].keys() == {"s0b0>s1b0", "s1b0>s0b0", "s1b1>s0b1"}
    assert packets[0]["s0b0>s1b0"] > 100
    assert packets[1] == pytest.approx(packets[0], abs=3)  # acknowledgements may be for one segment or for two


def test_a_machine_that_is_killed_ends_the_point_with_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "scenarios/run.py", "--engine", "emulation", "--modes", "base", "--gpus", "8"]
    command += ["--set", "run.machines=2", "--collectives", "1000", "--out", str(tmp_path / "out"), "--no-report"]
    pipes: dict[str, Any] = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=PROJECT, **pipes) as run, ExitStack() as stack:

        def kernels() -> list[psutil.Process]:
            with suppress(psutil.NoSuchProcess):  # one that has just ended
                children = psutil.Process(run.pid).children(recursive=True)
                reapers = [one for one in children if one.name() == "sh"]
                return [kernel for reaper in reapers for kernel in reaper.children()]
            return []

        stack.callback(run.terminate)
        await_that(lambda: len(kernels()) == 2, 60)
        kernels()[-1].send_signal(signal.SIGKILL)
        assert run.stderr is not None
        again = next(line for line in run.stderr if line.startswith("tried once more"))
        assert ": the VM" in again
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)
        assert run.returncode == 130


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"run.machines": 3}, "run.machines: 3 machines for 2 sites; allowed: up to one a site"),
        ({"run.machines": 2, "run.clock": "wall"}, "only virtual time can be the same in several machines"),
        ({"run.machines": 2, "collective.algorithm": "hierarchical"}, "whose flows share links: not emulated yet"),
        ({"run.machines": 2, "program.command": "true"}, "the hosts of a program in several machines"),
        ({"run.machines": 0}, "run.machines: 0"),
    ],
)
def test_what_one_machine_alone_can_do_is_refused(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ScenarioError, match=sentence):
        api.scenario("paper", values)


def test_a_prompt_has_one_machine_and_says_so() -> None:
    asked = load_scenario("paper", [Override("run.machines", 2, "--set run.machines")], at_prompt=True)
    assert asked.run.machines == 1
    assert any("unused: a prompt (--cli) has one VM" in note for note in asked.notes)


@given(st.lists(st.integers(1, 4), min_size=2, max_size=5), st.data())
def test_every_site_is_in_one_machine_and_cables_between_machines_are_those_of_the_wan(
    gpus: list[int], data: st.DataObject
) -> None:
    machines = data.draw(st.integers(2, len(gpus)))
    fabric = build_fabric(FabricSpec(gpus_per_site=tuple(gpus)))
    shares = [Share(fabric, number, machines) for number in range(machines)]
    assert sorted(rank for share in shares for rank in share.ranks) == list(range(sum(gpus)))
    assert all(share.ranks for share in shares)
    for site in range(len(gpus)):
        nodes = [node.name for node in (*fabric.gpus, *fabric.switches) if node.site == site]
        assert sum(all(map(share.has, nodes)) for share in shares) == 1
    for cable in fabric.cables:
        is_between = any(share.has(cable.a) != share.has(cable.b) for share in shares)
        assert (cable in shares[0].between) == is_between
        assert not is_between or {name[2] for name in (cable.a, cable.b)} == {"b"}  # border routers


@pytest.mark.parametrize(
    ("cores", "values", "machines"),
    [
        (2, {}, 2),
        (2, {"fabric.gpus": [4, 4]}, 1),  # too small to gain
        (8, {"fabric.gpus": [32, 32, 32]}, 3),  # one a site
        (8, {"run.modes": ["base", "ccl", "wan"]}, 2),
        (3, {"run.modes": ["base", "ccl"]}, 1),  # a core for each point
        (2, {"collective.algorithm": "hierarchical"}, 1),  # needs one VM
    ],
)
def test_auto_gives_a_point_the_cores_that_no_other_point_needs(
    cores: int, values: dict[str, object], machines: int
) -> None:
    given = {
        "fabric.gpus": [32, 32],
        "run.modes": ["base"],
        "run.machines": "auto",
        "collective.chunk": "1 MB",
    } | values
    configs = api.scenario("paper", given).configurations()
    assert [config.run.machines for config in with_machines(configs, cores)] == [machines]
