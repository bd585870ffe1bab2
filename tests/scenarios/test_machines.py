"""One network on several machines: `run.machines`."""

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
from scenarios.spec import ScenarioError
from scenarios.spec.load import Override, load_scenario
from scenarios.spec.scenario import to_json
from scenarios.testbed import launch
from tests.conftest import PROJECT
from tests.fakes.processes import await_that
from topologies.fabric.fabric import FabricSpec, build_fabric
from topologies.fabric.machines import Share

MODES = ("base", "wan", "ccl", "joint")


def records(mode: str, machines: int, values: dict[str, object]) -> list[dict[str, Any]]:
    """Run a point in so many machines; return the records of its collectives."""
    given = values | {"run.machines": machines, "run.modes": [mode]}
    config = emulated(api.scenario("paper", given).configurations()[0])
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


def outcome(record: dict[str, Any]) -> dict[str, Any]:
    """Return what a record tells of the collective itself; reconfiguring takes the time of the first machine."""
    return {name: value for name, value in record.items() if name not in ("reconfigure_s", "reconfigure_messages")}


@pytest.mark.parametrize("mode", MODES)
def test_every_message_takes_the_nanoseconds_of_one_machine(mode: str) -> None:
    """The default figures' points at 8 GPUs, a choice of rings and paths included."""
    count = 11 if mode == "joint" else 3
    values: dict[str, object] = {"collective.count": count, "collective.emulated": count}
    one, two = records(mode, 1, values), records(mode, 2, values)
    assert [outcome(each) for each in two] == [outcome(each) for each in one]


@pytest.mark.parametrize(
    ("machines", "values"),
    [
        (3, {"fabric.gpus": [2, 3, 3], "conditions.wan_delay": "3 ms"}),
        (2, {"fabric.grain": "physical", "collective.kind": "alltoall"}),
        (2, {"fabric.routing": "ecmp", "collective.kind": "allreduce", "transport.queue": "fifo"}),
    ],
)
def test_other_networks_take_the_predicted_times(machines: int, values: dict[str, object]) -> None:
    """The oracle is one machine; messages at one instant may take turns in another order, a nanosecond apart."""
    measured = {"collective.count": 2, "collective.emulated": 2}
    one, some = (records("base", number, values | measured) for number in (1, machines))
    for alone, shared in zip(one, some, strict=True):
        assert shared["path"] == alone["path"]
        assert shared["completion_s"] == pytest.approx(alone["completion_s"], rel=2e-5)
        assert shared["drops"] == alone["drops"]


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
        ({"run.machines": 2, "fabric.routing": "te"}, "tunnels that begin in one machine and end in another"),
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
