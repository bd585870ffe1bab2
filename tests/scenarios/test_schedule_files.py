"""Schedules read from a file and exported to one, and files that change before a run is resumed."""

import json

import pytest

from analysis.results.reader import ResultsError, load_jobs
from analysis.statistics.bandwidth import busbw_factor
from hosts.collectives import msccl, schedule_files
from hosts.collectives.kinds import ALGORITHMS, blocks
from hosts.collectives.schedule import Flow
from scenarios import api
from scenarios.engines.model import Model
from scenarios.engines.prediction import plan_of
from scenarios.experiment import command
from scenarios.experiment.run_files import RunFiles, recorded
from scenarios.experiment.run_folder import RunFolder
from scenarios.spec import ScenarioError
from scenarios.spec.load import load_scenario, resolved, scenario_of
from tests.conftest import PROJECT
from tests.fakes.commands import times
from tests.fakes.msccl_programs import one_pass, pass_on
from tests.fakes.runs import answer, ended
from tests.fakes.teccl_outputs import alltoall
from tests.hosts.test_chakra import ASTRA_SIM_NS, COMP, all_reduce, file_of, node, trace

DATA = PROJECT / "tests" / "data"


def scenario(tmp_path, text, *, gpus=8):
    path = tmp_path / "a.toml"
    run = "" if "[run]" in text else '[run]\nmodes = ["base"]\n'
    path.write_text(f"[fabric]\ngpus = {gpus}\n{run}[collective]\ncount = 3\n{text}")
    return load_scenario(str(path))


def test_a_schedule_file_is_found_relative_to_the_scenario(tmp_path):
    (tmp_path / "it.goal").write_bytes((DATA / "goal/allreduce_ring_calc.goal").read_bytes())
    found = scenario(tmp_path, 'kind = "messages"\nschedule = "it.goal"', gpus=4).workload
    assert (found.kind, found.algorithm, found.slot_bytes) == ("messages", "it.goal", 1)
    assert found.largest_message_bytes == 100_000  # an AllReduce of 400,000 bytes in 4 parts
    assert found.initial_contents == [[]] * 4


def test_a_rate_scale_shrinks_messages_and_keeps_the_length_of_computations(tmp_path):
    found = scenario(
        tmp_path,
        f'kind = "messages"\nschedule = "{DATA / "goal/allreduce_ring_calc.goal"}"\n'
        '[run]\nmodes = ["base"]\nclock = "wall"\nrate_scale = "1/1000"',
        gpus=4,
    )
    for whole, carried in zip(
        found.workload.schedule.transfers, found.carried_workload.schedule.transfers, strict=True
    ):
        is_flow = isinstance(found.workload.schedule.flows[whole.flow], Flow)
        assert carried.size == (100 if is_flow else whole.size)
    assert {round(whole.size, 9) for whole in found.workload.schedule.transfers} == {
        100_000,
        5e-6,
        0,
    }  # 5e-6 s of computation, and joins of length 0


def test_a_rate_scale_that_makes_messages_smaller_than_a_byte_is_refused(tmp_path):
    file = DATA / "goal/allreduce_ring_calc.goal"
    with pytest.raises(
        ScenarioError,
        match=r"a chunk of 100 kB at the rate scale 1/1000000 is less than a byte; allowed: 500 kB or more",
    ):
        scenario(
            tmp_path,
            f'kind = "messages"\nschedule = "{file}"\n'
            '[run]\nmodes = ["base"]\nclock = "wall"\nrate_scale = "1/1000000"',
            gpus=4,
        )


@pytest.mark.parametrize(
    ("size", "slot_bytes"),
    # `size` is the whole buffer, 4 slots here, and `chunk` is one slot; slots are rounded up to whole words of the sum.
    [('size = "1 MB"', 250_000), ('chunk = "1 MB"', 1_000_000), ('size = "999999 B"', 250_000)],
)
def test_the_collectives_size_is_divided_over_the_slots_of_the_schedule_file(tmp_path, size, slot_bytes):
    file = DATA / "msccl/allreduce_hierarchical.xml"
    found = scenario(tmp_path, f'kind = "allreduce"\nschedule = "{file}"\n{size}', gpus=4).workload
    assert found.slot_bytes == slot_bytes and found.unit_bytes == 4


@pytest.mark.parametrize(
    ("text", "gpus", "words"),
    [
        ('kind = "messages"', 8, "allowed: one as collective.schedule"),
        ('kind = "messages"\nschedule = "none.goal"', 8, r"none\.goal: it cannot be read: No such file"),
        ('kind = "messages"\nschedule = "GOAL"', 6, "allowed: the kind messages and 8 GPUs"),
        ('schedule = "GOAL"', 8, "asked for as allgather between 8; allowed: the kind messages"),
        ('kind = "messages"\nschedule = "GOAL"\nalgorithm = "ring"', 8, "has its own algorithm, channels and pieces"),
        ('kind = "messages"\nschedule = "GOAL"\npieces = 2', 8, "has its own algorithm, channels and pieces"),
        ('kind = "trace"', 8, "trace needs Chakra's files, and none is given"),
        ('kind = "trace"\nschedule = "GOAL"', 8, r"allowed: a name with one \* for the rank"),
        (
            'kind = "trace"\nschedule = "TRACE"',
            8,
            r"4 files for 8 GPUs; allowed: one .*, or a \[\[job\]\] with 4 ranks",
        ),
        (
            'kind = "trace"\nschedule = "TRACE"\nalgorithm = "direct"\npieces = 2',
            4,
            "allowed: a trace with an algorithm",
        ),
        ('schedule = "TRACE"', 4, "which the kind allgather cannot read; allowed: trace"),
    ],
)
def test_a_schedule_file_that_does_not_fit_the_scenario_is_refused_at_its_key(tmp_path, text, gpus, words):
    with pytest.raises(ScenarioError, match=words) as refused:
        places = {"GOAL": "goal/allreduce_ring.goal", "TRACE": "chakra/step.*.et"}
        for name, path in places.items():
            text = text.replace(name, str(DATA / path))
        scenario(tmp_path, text, gpus=gpus)
    (sentence,) = refused.value.mistakes
    key = next(key for key in ("size", "schedule", "kind") if key in text)
    assert f"collective.{key}: " in sentence and "\n" not in sentence


def test_a_chakra_trace_takes_the_same_time_alone_and_as_a_job_and_survives_writing(tmp_path):
    for rank in range(4):
        (tmp_path / f"it.{rank}.et").write_bytes((DATA / f"chakra/step.{rank}.et").read_bytes())
    whole = 'kind = "trace"\nschedule = "it.*.et"\ntflops = 312.5'
    alone = scenario(tmp_path, whole, gpus=4)
    assert (alone.workload.kind, alone.workload.algorithm) == ("trace", "it.*.et")
    assert load_scenario(str(tmp_path / "a.toml")) == scenario_of(resolved(alone))
    job = '[[job]]\nkind = "trace"\nschedule = "it.*.et"\n'
    (one_s, job_s) = (
        times(one.configurations(), Model())[0, "base"] for one in (alone, scenario(tmp_path, job, gpus=4))
    )
    assert job_s == pytest.approx(one_s, rel=1e-12)
    ring, chain = (
        scenario(tmp_path, f'{job}algorithm = "{name}"\n', gpus=4).workload.schedule for name in ("ring", "chain")
    )
    assert max(one.size for _, one in ring.sends() if one.adds) == 4_000_000  # half of the 8 MB that two ranks sum
    assert max(one.size for _, one in chain.sends() if one.adds) == 8_000_000
    files = RunFiles.begun(RunFolder.new(tmp_path / "run"), alone, engines=["model"], command=["run.py"])
    (tmp_path / "it.2.et").write_bytes(b"")
    with pytest.raises(ResultsError, match=f"{tmp_path / 'it.2.et'} has changed since the run began"):
        recorded(files.path)


def test_an_emulated_chakra_trace_matches_the_model_and_astra_sim(tmp_path):
    """Links as on ASTRA-sim's switch, 5 GB/s and 1 us each way, and a WAN that four such flows do not saturate."""
    rates = ("conditions.intra_rate=42949672960 bit/s", "conditions.wan_rate=171798691840 bit/s")
    delays = ("conditions.intra_delay=500 ns", "conditions.wan_delay=10 ns")
    file = f"collective.schedule={DATA / 'chakra/layers.*.et'}"
    arguments = ("--engine", "both", "--gpus", "4", "--modes", "base", "--collectives", "1")
    found = answer(tmp_path / "run", *arguments, sets=(*rates, *delays, "collective.kind=trace", file))
    assert found["fidelity"]["drops"] == 0 and abs(found["fidelity"]["median_ratio"] - 1) <= 0.002
    for point in found["points"]:
        assert 1e9 * point["mean_s"] == pytest.approx(ASTRA_SIM_NS["layers"], rel=0.05)


JOBS = """
[fabric]
gpus = [2, 2]
border_routers = 1
[conditions]
intra_rate = "100 Gbit/s"
wan_rate = "10 Gbit/s"
wan_delay = "1 ms"
[collective]
count = 1
emulated = 1
chunk = "100 kB"
[[job]]
name = "goal"
kind = "messages"
schedule = "empty.goal"
[[job]]
name = "of-two"
kind = "messages"
schedule = "two.goal"
ranks = [0, 2]
start = "20 ms"
[[job]]
name = "one-pass"
kind = "allreduce"
schedule = "one-pass.xml"
start = "40 ms"
[[job]]
name = "custom"
kind = "messages"
schedule = "custom.xml"
ranks = [0, 3, 1]
start = "60 ms"
[[job]]
name = "trace"
kind = "trace"
schedule = "t.*.et"
start = "80 ms"
[[job]]
name = "fractions"
kind = "alltoall"
schedule = "teccl.json"
start = "100 ms"
[run]
modes = ["base"]
"""
EMPTY_RING = "num_ranks 4\n" + "".join(
    f"rank {rank} {{\nr: recv 0b from {(rank - 1) % 4}\ns: send 0b to {(rank + 1) % 4}\n{order}\n}}\n"
    for rank, order in enumerate(["r requires s", *["s requires r"] * 3])
)


def test_a_file_of_each_format_takes_the_predicted_time_in_the_emulation_and_says_what_it_leaves_out(tmp_path):
    """Empty messages and collectives, fewer ranks than GPUs, a one-pass AllReduce, a custom program, and fractions."""
    (tmp_path / "jobs.toml").write_text(JOBS)
    (tmp_path / "empty.goal").write_text(EMPTY_RING)
    (tmp_path / "two.goal").write_text("num_ranks 2\nrank 0 {\nsend 80b to 1\n}\nrank 1 {\nrecv 90b from 0\n}\n")
    (tmp_path / "one-pass.xml").write_text(one_pass(4).text)
    (tmp_path / "custom.xml").write_text(pass_on(3).text)
    (tmp_path / "teccl.json").write_text(alltoall({1: [2, 3], 2: [1, 4], 3: [1, 4], 4: [3, 2]}, volumes=(0.25, 0.75)))
    trace(tmp_path, *[file_of(all_reduce(1, 0), node(2, COMP, data=[1], us=1000), all_reduce(3, 4000, data=[2]))] * 4)
    out, said = ended("jobs.toml", "--engine", "both", "--json", "--no-report", "--out", "run", cwd=tmp_path)
    fidelity = json.loads(out)["fidelity"]
    assert fidelity["drops"] == 0 and fidelity["p99_abs_error"] <= 0.002
    jobs = load_jobs(tmp_path / "run").set_index(["engine", "job"]).completion_s
    for engine in ("model", "emulation"):
        # Four empty messages one after the other, two of them over the WAN; and one over the WAN.
        assert jobs[engine, "goal"] == pytest.approx(2e-3 + 6 * 0.7e-6, rel=1e-4)
        assert jobs[engine, "of-two"] == pytest.approx(1e-3 + 1.4e-6, rel=1e-3)
    notes = [line.removeprefix("run.py: ") for line in said.splitlines() if ".goal: " in line or "1 is GPU 0" in line]
    assert notes == [
        "two.goal: 1 receives have another size than their message, which has the size of its send",
        "teccl.json: GPUs are numbered without gaps: the file's node 1 is GPU 0, 2 is GPU 1, 3 is GPU 2 and 1 more",
    ]
    assert "one-pass.xml: its steps are proven to do its allreduce, but its messages are carried without" in said
    assert "custom.xml: its messages carry no contents, and what they do (coll 'custom') is not proven" in said


@pytest.mark.parametrize("form", ["goal", "msccl"])
@pytest.mark.parametrize("kind", ALGORITHMS)
def test_an_exported_schedule_of_every_algorithm_can_be_read_again(tmp_path, kind, form):
    for algorithm in ALGORITHMS[kind]:
        keys = [f"collective.kind={kind}", f"collective.algorithm={algorithm}", "collective.chunk=1 MB"]
        asked = [word for key in keys for word in ("--set", key)]
        out = tmp_path / f"{algorithm}.{form}"
        has_name = form == "goal" or kind in msccl.KINDS.values()
        assert command.run(["paper", "--modes", "base", *asked, "--export", form, str(out)]) == (0 if has_name else 2)
        if not has_name:
            continue
        found = schedule_files.read(out, kind=kind if form == "msccl" else "messages", gpus=8)
        if form == "msccl":
            continue
        # The busiest rank sends or receives at least the bytes that nccl-tests counts for the bus bandwidth.
        sent = received = [0.0] * 8
        for flow, transfer in found.sends():
            sent = [total + transfer.size * (rank == flow.src) for rank, total in enumerate(sent)]
            received = [total + transfer.size * (rank == flow.dst) for rank, total in enumerate(received)]
        size = 1_000_000 * blocks(kind, 8)
        assert max(*sent, *received) >= size * busbw_factor(kind, 8)


def test_an_exported_chakra_trace_takes_the_time_of_its_collective(tmp_path):
    asked = ["--gpus", "4", "--modes", "base", "--set", "collective.kind=allreduce", "--set", "collective.pieces=3"]
    assert command.run(["paper", *asked, "--export", "chakra", str(tmp_path / "ring.*.et")]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"ring.{rank}.et" for rank in range(4)]
    given = {"fabric.gpus": 4, "run.modes": ["base"], "collective.count": 3}
    ring = {**given, "collective.kind": "allreduce", "collective.pieces": 3}
    trace = {**given, "collective.kind": "trace", "collective.schedule": str(tmp_path / "ring.*.et")}
    wanted, found = (api.run(api.scenario("paper", values)).completion_s for values in (ring, trace))
    assert list(found) == pytest.approx(list(wanted), rel=1e-6)  # sizes of messages are whole bytes


def test_an_exported_ring_is_the_planned_ring_of_the_first_mode(tmp_path, capsys):
    out = tmp_path / "a.goal"
    arguments = ["paper", "--seed", "3", "--set", "fabric.gpus=[3, 3]"]
    assert command.run([*arguments, "--modes", "joint,base", "--export", "goal", str(out)]) == 0
    (setting,) = load_scenario("paper", []).with_values({"run.seed": 3, "fabric.gpus": (3, 3)}).configurations()
    ring = [int(rank) for rank in plan_of(setting, "joint").decisions.placement[0]]
    assert ring != list(range(6))
    assert command.run([*arguments, "--modes", "joint,base", "--export", "goal", "-"]) == 0
    assert capsys.readouterr().out == out.read_text()
    flows = schedule_files.read(out, kind="messages", gpus=6).flows
    assert {(flow.src, flow.dst) for flow in flows if isinstance(flow, Flow)} == {
        (ring[place], ring[(place + 1) % 6]) for place in range(6)
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--export", "xml", "a"], "is not a format; allowed: goal, msccl, chakra"),
        (["--export", "goal", "a", "--json"], "--json cannot be combined with --export"),
        (["--export", "goal", "a", "--gpus", "4,8"], "has 2 configurations; allowed: one"),
        (["--export", "goal", "no/such/a"], "no/such/a cannot be written: No such file"),
        (["--export", "chakra", "-"], '"-" for a file of each rank; allowed: a name with one * for the rank'),
        (["--export", "chakra", "a.*.et", "--set", "collective.kind=training"], "allowed: schedules that only send"),
    ],
)
def test_an_impossible_export_is_refused_and_writes_no_file(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert command.run(["paper", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_schedule_file_has_changed_cannot_be_resumed(tmp_path):
    file = tmp_path / "it.xml"
    file.write_bytes((DATA / "msccl/allreduce_ring.xml").read_bytes())
    found = scenario(tmp_path, 'kind = "allreduce"\nschedule = "it.xml"', gpus=4)
    files = RunFiles.begun(RunFolder.new(tmp_path / "run"), found, engines=["model"], command=["run.py"])
    before = recorded(files.path)
    assert list(before.differences(found, None)) == []
    file.write_bytes((DATA / "msccl/allreduce_hierarchical.xml").read_bytes())
    (sentence,) = before.differences(found, None)
    assert f"{file} has changed since the run began" in sentence
