"""The emulation engine: measured times against predictions, failed points, and what a machine has memory for."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.results.reader import load, open_run
from scenarios.engines import preflight
from scenarios.engines.emulation import (
    EmulationError,
    Reader,
    Task,
    WrongError,
    emulated,
    memory_bytes,
)
from scenarios.engines.prediction import PointPredictor
from scenarios.engines.preflight import at_a_time
from scenarios.testbed.platform import VIRTUAL
from scenarios.vm import CannotRunError, NoRoomError
from tests.conftest import PROJECT
from tests.fakes.commands import FakeTestbeds, row, run, scenario, testbeds  # noqa: F401
from tests.fakes.runs import answer, measured, rows
from topologies.fabric.fabric import FabricSpec, build_fabric

RECORDED = Path(__file__).with_name("nanoseconds.json")
PAPER = str(PROJECT / "scenarios" / "paper.toml")
NEAR = {"median": 0.0005, "p99": 0.002}


# Measured in VMs


@pytest.fixture(scope="module")
def four_modes(tmp_path_factory):
    """Run every mode, with a re-embedding before the last collective; return the run folder and the JSON answer."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    wanted = ("--modes", "base,wan,ccl,joint", "--collectives", "4", "--seed", "3")
    return folder, measured(folder, *wanted, sets=["collective.reembed_every=3"], collectives=16, **NEAR)


def test_measured_and_predicted_gains_agree_in_every_mode(four_modes):
    points = four_modes[1]["points"]
    gains = {(point["engine"], point["mode"]): point["gain_vs_base"] for point in points}
    for mode in ("ccl", "wan", "joint"):
        assert abs(gains["emulation", mode] - gains["model", mode]) <= 0.01


def test_completion_times_rings_and_paths_equal_the_recorded_ones_in_every_mode(four_modes):
    """`nanoseconds.json` holds the first 3 collectives; record it again after an intended change of times."""
    found = rows(four_modes[0])
    found = found[(found.engine == "emulation") & (found.collective < 3)]
    taken = {
        (row["mode"], row.collective): [round(row.completion_s * 1e9), list(row.ring), list(row.paths), row.drops]
        for _, row in found.iterrows()
    }
    assert taken == {
        (row["mode"], row["collective"]): [row[name] for name in ("completion_ns", "ring", "paths", "drops")]
        for row in json.loads(RECORDED.read_text())
    }
    # The lower bound depends on the conditions only, which all modes share, and no mode is faster.
    assert found.groupby("collective").bound_s.nunique().to_list() == [1, 1, 1]
    assert (found.bound_s > 0).all() and (found.completion_s > found.bound_s).all()


def test_stored_tables_agree_with_each_other_and_provenance_describes_the_vm(four_modes):
    folder, _ = four_modes
    run = open_run(folder)
    ends = run.transfers.groupby(["mode", "collective"]).agg(sent=("chunk", "size"), last_s=("end_s", "max"))
    assert set(ends.sent) == {8 * 7}  # in each of seven steps every GPU sends one chunk
    stored = rows(folder)
    measured = stored[stored.engine == "emulation"].set_index(["mode", "collective"]).completion_s
    assert (ends.last_s - measured).abs().max() < 1e-8
    links = run.settings[0]["fabric"]["links"]
    assert len(run.conditions) == 4 * len(links)
    wan = run.conditions[run.conditions.link.isin([link["index"] for link in links if link["kind"] == "wan"])]
    assert wan.rate_bps.between(10e9, 100e9).all() and set(wan.delay_s) == {10e-6}
    vm = run.provenance["vm"]
    assert vm["kernel"].startswith("Linux 6.") and vm["openvswitch"].startswith("3.")
    for moment in ("before", "after"):
        assert sum(" netem " in line and " delay " in line for line in vm[moment]["qdiscs"]) >= 8  # the WAN's links
        assert vm[moment]["sysctls"]["net.ipv4.tcp_congestion_control"] == "cubic"


@pytest.mark.parametrize(
    ("collectives", "arguments"),
    [
        (4, '--modes joint --set fabric.wan="five-router" --set fabric.gpus=[3,5] --wan-delay 1ms'),
        (1, "--modes wan --gpus 32 --chunk 1MB"),
        pytest.param(1, "--modes wan --gpus 64 --chunk 1MB", marks=pytest.mark.slow),
        (
            1,
            "--modes joint --set fabric.gpus=[2,2,2] --set fabric.wan=topohub:topozoo/Abilene "
            '--set fabric.sites=["Sunnyvale","NewYork","Houston"]',
        ),
    ],
    ids=["unequal sites on a WAN with transit routers", "32 GPUs", "64 GPUs", "three sites on a map"],
)
def test_measured_times_equal_predictions_on_other_fabrics(tmp_path, collectives, arguments):
    wanted = ("--engine", "emulation", "--collectives", str(collectives), *arguments.split())
    measured(tmp_path / "run", *wanted, collectives=collectives, **NEAR)


# A map of the other collection is measured above against the model, whose delays test_maps computes by hand.
@pytest.mark.parametrize(
    ("name", "sites", "round_trip_ms"),
    [
        ("sndlib/nobel-us", ("Palo Alto", "Princeton"), 40.3),
        pytest.param("topozoo/Abilene", ("Sunnyvale", "New York"), 44.4, marks=pytest.mark.slow),
    ],
)
def test_ping_over_a_map_takes_the_round_trip_time_of_its_link_lengths(name, sites, round_trip_ms, tmp_path):
    wan = [f"fabric.wan=topohub:{name}", f"fabric.sites={json.dumps(sites)}", "fabric.gpus=[2, 2]"]
    command = [sys.executable, str(PROJECT / "scenarios" / "run.py"), "--cli", *(f"--set={one}" for one in wan)]
    line = "g0 ping -c 3 -i 0.2 g2\n"
    done = subprocess.run(command, cwd=tmp_path, input=line, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    least, mean, most = map(
        float, re.search(r"rtt min/avg/max/mdev = ([0-9.]+)/([0-9.]+)/([0-9.]+)/", done.stdout).groups()
    )
    assert all(abs(one / round_trip_ms - 1) < 0.001 for one in (least, mean, most))


def test_without_line_rate_the_first_collective_shows_tcp_slow_start(tmp_path):
    wanted = ("--engine", "emulation", "--modes", "base", "--collectives", "2", "--wan-delay", "10 ms")
    answer(tmp_path / "run", *wanted, sets=["transport.line_rate=false"])
    first = rows(tmp_path / "run").iloc[0]
    assert first.completion_s / first.predicted_s > 1.2  # slow start over 20 ms of round trip


def test_slow_start_of_pieces_on_shared_links_is_over_after_the_first_collective(tmp_path):
    """Four pieces of a message, for each of which a receiver whose window held one would wait a round trip."""
    wanted = ("--engine", "emulation", "--modes", "base", "--collectives", "2", "--wan-delay", "10 ms")
    shared = ["fabric.gpus=[3, 3]", "collective.kind=allreduce", "collective.algorithm=hierarchical-direct"]
    answer(tmp_path / "run", *wanted, sets=["transport.line_rate=false", "collective.pieces=4", *shared])
    ratios = rows(tmp_path / "run").completion_s / rows(tmp_path / "run").predicted_s
    assert ratios[0] > 2 and ratios[1] == pytest.approx(1, abs=1e-3)


@pytest.fixture(scope="module")
def testbed_report(module_vm):
    """Return what the guest script of a testbed prints in a VM."""
    return module_vm.report("testbed", PAPER, "joint")


def test_bytes_cross_exactly_the_chosen_wan_links(testbed_report):
    seen = testbed_report["bytes"]
    assert len(seen) == 4
    assert len({tuple(collective["chosen"]) for collective in seen}) > 1  # the paths did change
    for collective in seen:
        assert sorted(collective["busy"]) == collective["chosen"]
        for sent in collective["busy"].values():
            assert 7 * 8e6 < sent < 7 * 8e6 * 1.02  # seven chunks and their headers, and nothing twice


def test_an_experiment_completes_after_processes_and_a_switch_have_died(testbed_report):
    """The switch is a border router, which paths avoid. In the sentence collectives count from 1."""
    assert testbed_report["collectives"] == list(range(10))
    assert testbed_report["outcomes"] == [
        "the controller has died: recovered, 0 lost",
        "collective 7 failed: the process of GPU 7 died: recovered, 1 lost",
    ]


# One point, with made-up output of a VM


@pytest.mark.parametrize("name", ["placement", "path"])
@pytest.mark.parametrize("faults", [(), (0,)], ids=["whole", "with a link down"])
def test_a_placement_or_a_path_that_differs_from_the_plan_ends_the_point(name, faults):
    down = {"fault": [{"at": "collective 0", "what": "link s0b0-s1b0 down"}]} if faults else {}
    task = Task(0, scenario(collective__count=3, **down), "wan")
    planned, took = row(PointPredictor(task.config, task.mode).of(0, faults), 0, faults), []
    Reader(task, took.append).write(json.dumps(planned).encode() + b"\n")
    assert len(took) == 1
    paths, between = planned["path"], build_fabric(FabricSpec()).paths_between[0, 1]
    crossing = next(edge for edge, path in enumerate(paths) if path >= 0)
    another = between[(paths[crossing] + 1) % 4].index
    changed = {"placement": planned["placement"][::-1], "path": [*paths[:crossing], another, *paths[crossing + 1 :]]}
    with pytest.raises(WrongError, match=rf"wan, collective 0: the {name} "):
        Reader(task, took.append).write(json.dumps(planned | {name: changed[name]}).encode() + b"\n")
    assert len(took) == 1


# Points that fail


def test_a_failed_point_is_retried_without_duplicate_rows_but_not_after_a_wrong_result(testbeds, capsys):
    used = testbeds(FakeTestbeds(failing=("wan",), times=1))
    run("--engine", "emulation", "--collectives", "5", "--jobs", "2", "--no-report", "--out", "run")
    assert used.tries.count((0, "wan")) == 2
    assert load("run").groupby("mode").size().to_dict() == dict.fromkeys(["base", "ccl", "joint", "wan"], 5)
    assert open_run("run").complete
    point = "emulation, 8 GPUs, 8 MB blocks, 64 MB buffer, 10 us, ring slowest edge, wan"
    again = f"tried once more: {point}, after 2 collectives: the switch fell over\n"
    assert again in capsys.readouterr().err and again in (Path("run") / "log.txt").read_text()
    wrong = testbeds(FakeTestbeds(failing=("wan",), times=1, error=WrongError))  # a retry could hide a wrong result
    run("--engine", "emulation", "--modes", "wan", "--collectives", "5", "--no-report", "--out", "wrong", status=1)
    assert wrong.tries == [(0, "wan")]


def test_a_point_that_fails_twice_is_reported_the_others_complete_and_resume_runs_it(testbeds, capsys):
    used = testbeds(FakeTestbeds(failing=("wan",)))
    run("--engine", "both", "--collectives", "5", "--seed", "1,2", "--jobs", "2", "--out", "run", status=1)
    out, err = capsys.readouterr()
    label = "8 GPUs, 8 MB blocks, 64 MB buffer, 10 us, ring slowest edge"
    sentence = f"emulation, {label}, seed 1, wan, after 2 collectives: the switch fell over"
    assert f"run.py: failed: {sentence}\n" in err and err.endswith("resume with --resume run\n")
    assert re.search(f"^emulation +{label}, seed 2 +joint", out, re.MULTILINE)
    found = open_run("run")
    assert [failed["why"] for failed in found.provenance["failed"]] == [sentence, sentence.replace("seed 1", "seed 2")]
    sizes = found.collectives.groupby(["engine", "mode", "setting"]).size()
    assert not found.complete and set(sizes["model"]) == {5}
    assert {sizes["emulation"][mode, place] for mode in ("base", "ccl", "joint") for place in (0, 1)} == {5}
    assert (Path("run") / "summary.csv").exists() and (Path("run") / "figures").exists()
    assert used.tries.count((0, "wan")) == 2 and used.tries.count((0, "base")) == 1
    again = testbeds(FakeTestbeds())
    run("--resume", "run", "--no-report")
    assert sorted(again.tries) == [(0, "wan"), (1, "wan")]
    assert open_run("run").complete and open_run("run").provenance["failed"] == []
    assert set(load("run").groupby(["engine", "mode", "setting"]).size()) == {5}


# What this machine can run


def no_kernel(**_):
    raise CannotRunError("there is no kernel", remedy="build one")


@pytest.mark.parametrize("asked", [("--engine", "both"), ("--engine", "emulation"), ("--clock", "wall")])
def test_a_machine_without_a_vm_refuses_a_measurement_before_anything_runs(testbeds, monkeypatch, capsys, asked):
    used = testbeds(FakeTestbeds())
    monkeypatch.setattr(preflight, "platform", lambda _: VIRTUAL)  # even if its own kernel could run the wall clock
    monkeypatch.setattr(preflight.vm, "check", no_kernel)
    run(*asked, "--out", "run", status=3)
    assert capsys.readouterr().err == "run.py: there is no kernel: build one (to predict only: --engine model)\n"
    assert used.tries == [] and not Path("run").exists()


def test_without_a_vm_and_without_a_chosen_engine_only_the_model_runs(testbeds, monkeypatch, capsys):
    testbeds(FakeTestbeds())
    with monkeypatch.context() as machine:
        machine.setattr(preflight.vm, "check", no_kernel)
        run("--collectives", "5", "--json", "--out", "run", status=3)
        out, err = capsys.readouterr()
        answer = json.loads(out)
        assert {point["engine"] for point in answer["points"]} == {"model"} and len(answer["points"]) == 4
        assert answer["unmeasured"] == "there is no kernel: build one" and "fidelity" not in answer
        assert "nothing was measured: there is no kernel: build one" in err
        assert (Path("run") / "summary.csv").exists() and (Path("run") / "report.html").exists()
        run("--resume", "run", "--no-report", status=3)  # only the measurement is left
    used = testbeds(FakeTestbeds())
    run("--resume", "run", "--no-report")  # now the machine has a VM
    assert len(used.tries) == 4 and open_run("run").complete
    assert load("run").groupby("engine").size().to_dict() == {"emulation": 20, "model": 20}


@pytest.mark.parametrize("gpus", ["[24, 24]", "[6, 40]"])
def test_where_memory_is_short_the_refusal_names_the_most_gpus_that_fit(testbeds, monkeypatch, capsys, gpus):
    def room(**_):
        raise NoRoomError("no room", room_bytes=10**9)

    monkeypatch.setattr(preflight.vm, "check", room)
    wanted = ("--modes", "base", "--chunk", "4 MB", "--set", f"fabric.gpus={gpus}")
    run("--engine", "emulation", *wanted, "--out", "run", status=3)
    (most,) = re.findall(r"room for (\d+) \(", capsys.readouterr().err)
    smaller, largest = json.loads(gpus)
    fits = int(most) - smaller if int(most) > 2 * smaller else int(most) // 2
    assert memory_bytes(four_mb(min(fits, smaller), fits)) <= 10**9
    assert all(memory_bytes(four_mb(min(n, smaller), n)) > 10**9 for n in (fits + 1, fits + 2, largest))
    assert not Path("run").exists()


def four_mb(*gpus):
    return scenario(fabric__gpus=list(gpus), collective__chunk="4 MB", run__modes=["base"])


def test_captures_have_memory_for_what_tcpdump_buffers():
    """In the logical grain a WAN link is shaped at one port; a tcpdump takes 64 MiB when it starts."""
    links = [f"s{x}b{a}>s{1 - x}b{b}" for x in (0, 1) for a in (0, 1) for b in (0, 1)]
    plain, captured = scenario(), scenario(program__capture=links)
    assert memory_bytes(captured) - memory_bytes(plain) == len(links) * 64 * 2**20
    physical = {"fabric__grain": "physical"}
    more = memory_bytes(scenario(program__capture=links, **physical)) - memory_bytes(scenario(**physical))
    assert more >= len(links) * 64 * 2**20


def test_a_run_without_results_leaves_no_captures(testbeds, tmp_path, capsys):
    def broken(found, mode):
        Path("out/captures/base").mkdir(parents=True, exist_ok=True)
        Path("out/captures/base/s0b0-s1b0.pcap").touch()
        raise EmulationError("the VM ran out of memory")

    testbeds(FakeTestbeds(changes=broken))
    options = ("--engine", "emulation", "--modes", "base", "--collectives", "2", "--capture", "s0b0>s1b0")
    run(*options, "--out", "out", status=1)
    assert "there are no results; out was removed" in capsys.readouterr().err
    assert not Path("out").exists(), sorted(Path("out").rglob("*"))


def test_no_more_vms_run_at_a_time_than_fit_into_memory(testbeds, monkeypatch, capsys):
    small, large = scenario(collective__chunk="8 MB"), scenario(collective__chunk="64 MB")
    assert memory_bytes(large) - memory_bytes(small) >= 8 * 2 * 56e6
    room = 2 * memory_bytes(large) + 10

    def check(*, memory_bytes):
        if memory_bytes > room:
            raise CannotRunError("no room")

    monkeypatch.setattr(preflight.vm, "check", check)
    assert at_a_time([large, small], 8) == 2
    assert at_a_time([small], 2) == 2
    assert at_a_time([small], 1) == 1
    used = testbeds(FakeTestbeds())
    run("--engine", "emulation", "--chunk", "64 MB", "--jobs", "3", "--out", "run", status=3)
    assert "not for 3; allowed: --jobs 2" in capsys.readouterr().err
    assert used.tries == [] and not Path("run").exists()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3)))
    run("--engine", "emulation", "--chunk", "64 MB", "--collectives", "1", "--no-report", "--out", "run")
    assert "2 VMs at a time, so at most that many run" in capsys.readouterr().err


def test_a_chunk_for_which_this_machine_has_no_memory_is_refused_with_its_key(monkeypatch):
    def room(**_):
        raise NoRoomError("no room", room_bytes=10**6, remedy="free some")

    monkeypatch.setattr(preflight.vm, "check", room)
    with pytest.raises(NoRoomError, match=r"or use a smaller collective\.chunk"):
        preflight.check_vm([scenario(collective__chunk="1 GB")])
    with pytest.raises(NoRoomError, match=r"or use a smaller collective\.size"):
        preflight.check_vm([scenario(collective__kind="allreduce", collective__size="1 GB")])


@pytest.mark.slow
def test_a_gradient_of_1_gb_is_summed_though_a_connection_carries_more_than_a_socket_takes(tmp_path):
    """Each connection carries 1.75 GB in a collective, and a socket's buffer takes 1.7 GB. It takes a minute."""
    wanted = ("--engine", "emulation", "--modes", "base", "--collectives", "1")
    measured(tmp_path / "run", *wanted, sets=("collective.kind=allreduce", "collective.size=1 GB"), collectives=1)


MEASURED_MB = [  # in the VM: free memory before the agents minus the least free memory, with one slower link
    (8, "allgather", "ring", 8, 187),
    (8, "allgather", "ring", 48, 1222),
    (8, "allreduce", "ring", 8, 280),
    (8, "allreduce", "ring", 48, 1164),
    (8, "allreduce", "hierarchical", 32, 1474),
    (8, "alltoall", "direct", 8, 516),
    (16, "alltoall", "direct", 4, 1091),
    (16, "allgather", "halving-doubling", 4, 1022),
    (16, "allreduce", "halving-doubling", 4, 1222),
    (16, "allreduce", "double-tree", 4, 1183),
    (16, "allreduce", "hierarchical", 32, 3260),
]


@pytest.mark.parametrize(("gpus", "kind", "algorithm", "chunk_mb", "measured_mb"), MEASURED_MB)
def test_the_memory_of_a_vm_is_between_1_and_1_6_times_what_its_collective_takes(
    gpus, kind, algorithm, chunk_mb, measured_mb
):
    asked = {"collective__kind": kind, "collective__algorithm": algorithm, "collective__chunk": f"{chunk_mb} MB"}
    room_mb = (memory_bytes(scenario(fabric__gpus=gpus, **asked)) - 512 * 2**20) / 10**6  # less that of the system
    assert measured_mb <= room_mb < 1.6 * measured_mb


def test_the_emulation_measures_the_first_collectives_only_and_refuses_faults_after_them(testbeds, capsys):
    assert emulated(scenario(collective__count=100_000)).collective.count == 20
    assert emulated(scenario(collective__count=5)).collective.count == 5
    testbeds(FakeTestbeds())
    Path("late.toml").write_text('[collective]\ncount = 30\n[[fault]]\nat = "collective 20"\nwhat = "agent 3 killed"\n')
    run("late.toml", "--engine", "both", "--modes", "base", "--out", "run", status=2)
    err = capsys.readouterr().err
    assert err.startswith("fault[1].at: collective 20 ") and err.endswith("allowed: 0 to 19\n")
    assert not Path("run").exists()
    run("late.toml", "--engine", "model", "--modes", "base", "--no-report", "--out", "run", status=2)
    assert "agent 3 killed has no effect in the model" in capsys.readouterr().err
