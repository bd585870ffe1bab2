"""The GPU whose time a torch script takes, as far as it needs no torch: models, tables, streams, keys."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.program import gpu_accounts
from scenarios.program.rank import longhaul_gpu
from scenarios.program.rank.longhaul_gpu import kernels, models
from scenarios.program.rank.longhaul_gpu.accounting import Accounts
from scenarios.program.rank.longhaul_gpu.streams import Deferred, Device
from scenarios.spec import ScenarioError
from scenarios.spec.gpu import GPU
from scenarios.spec.load import Override, load_scenario, resolved, scenario_of
from scenarios.spec.program import gpu_variables
from scenarios.spec.scenario import from_json, to_json

TABLE = """operation,shapes,dtype,us
aten::mm,"[[4, 8], [8, 2]]",bfloat16,10
mm,"[[4, 8], [8, 2]]",,20
mm,,bfloat16,30
aten::mm,,,40
aten::addmm,"[[2], [4, 8], [8, 2], [], []]",torch.float32,50
"""


def scenario(**program):
    given = {"program.command": "true"} | {f"program.{key}": value for key, value in program.items()}
    return load_scenario("paper", [Override(key, value, key) for key, value in given.items()])


def test_a_kernel_takes_the_longer_of_computing_and_moving_and_its_launch():
    gpu = models.Gpu(
        flops=(("float32", 1e12), ("bfloat16", 4e12)),
        bandwidth_bps=1e10,
        launch_s=1e-6,
        efficiency=0.5,
        memory_efficiency=0.8,
    )
    assert gpu.seconds(1e9, 8, "float32") == pytest.approx(2e-3 + 1e-6)
    assert gpu.seconds(1e9, 8, "bfloat16") == pytest.approx(0.5e-3 + 1e-6)
    assert gpu.seconds(1e9, 8, "int64") == gpu.seconds(1e9, 8, "float32")
    assert gpu.seconds(8, 8e9, "bfloat16") == pytest.approx(1 + 1e-6)


def test_models_have_the_peaks_of_their_data_sheets_in_their_order():
    """Tensor cores: twice the TF32 for 16 bits, twice that for FP8 on NVIDIA's, as each data sheet says."""
    for name in ("a100", "h100", "h200", "b200", "l40s"):
        peaks = dict(models.MODELS[name].flops)
        assert peaks["bfloat16"] == peaks["float16"] == pytest.approx(2 * peaks["tf32"], rel=0.015), name
        assert peaks.get("float8", 2 * peaks["bfloat16"]) == pytest.approx(2 * peaks["bfloat16"], rel=0.015), name
    by_bandwidth = sorted(models.MODELS, key=lambda name: models.MODELS[name].bandwidth_bps)
    assert by_bandwidth == ["l40s", "v100", "a100", "h100", "h200", "mi300x", "b200"]
    # A GEMM of 8192 in bfloat16 and the weights of 7 B parameters read once, from the sheets by hand.
    h100 = models.MODELS["h100"]
    assert h100.seconds(2 * 8192**3, 3 * 8192**2 * 2, "bfloat16") == pytest.approx(1.3838e-3, rel=0.01)
    assert h100.seconds(0, 14e9, "bfloat16") == pytest.approx(4.975e-3, rel=0.01)


def test_a_dtype_without_a_peak_has_that_of_float32():
    v100 = models.MODELS["v100"]
    assert v100.peak("bfloat16") == v100.peak("tf32") == v100.peak("float32") == 15.7e12
    assert models.MODELS["h100"].peak("float8_e4m3fn") == 1979e12


@pytest.mark.parametrize("name", models.MODELS)
def test_a_gpu_reaches_a_rank_as_it_is(name):
    gpu = models.MODELS[name]
    assert models.of_text(name) == models.of_text(gpu.as_json()) == gpu


@pytest.mark.parametrize("text", ["h10", "{", "[]", '{"flops": 1}', '{"flops": {}, "capability": [1], "x": 2}'])
def test_a_variable_that_is_no_gpu_is_refused_with_what_is_allowed(text):
    with pytest.raises(ValueError, match="is not a GPU; allowed: a100, h100"):
        models.of_text(text)


def test_the_most_specific_row_of_a_table_of_kernels_counts():
    table = kernels.parse(TABLE.splitlines())
    shapes = ((4, 8), (8, 2))
    us = {
        (shapes, "bfloat16"): 10,
        (shapes, "float32"): 20,
        (((1, 1),), "bfloat16"): 30,
        (((1, 1),), "float32"): 40,
    }
    for (given, dtype), wanted in us.items():
        assert table.seconds("aten::mm", given, dtype) == pytest.approx(wanted * 1e-6)
    assert table.seconds("aten::addmm", ((2,), *shapes), "float32") == pytest.approx(50e-6)
    assert table.seconds("aten::addmm", ((2,), *shapes), "bfloat16") is None
    assert table.seconds("aten::bmm", shapes, "float32") is None and not table.has("aten::bmm")


def test_rows_that_differ_only_in_scalars_count_with_their_mean():
    rows = ("operation,shapes,dtype,us", 'sum,"[[4, 8], []]",,10', 'sum,"[[4, 8], [], []]",,30')
    assert kernels.parse(rows).seconds("aten::sum", ((4, 8),), "float32") == pytest.approx(20e-6)
    of_profiler = kernels.parse((rows[0], 'aten::cat,"[[], []]",float32,10', "aten::cat,,,20"))
    shapes = ((2, 2), (2, 2))
    assert of_profiler.seconds("aten::cat", shapes, "float32", unlisted=()) == pytest.approx(10e-6)
    assert of_profiler.seconds("aten::cat", shapes, "float16", unlisted=()) == pytest.approx(20e-6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1 is ''; allowed: the columns operation, shapes, dtype, us"),
        ("operation,shapes\n", "line 1 is 'operation,shapes'"),
        ("operation,shapes,dtype,us\n", "there is no row"),
        ("operation,shapes,dtype,us\nmm,[[4, 8], [8, 2]],,1\n", "line 2 has 7 values; allowed: 4, shapes in quotes"),
        ("operation,shapes,dtype,us\nmm,,,soon\n", "line 2 has the time 'soon'; allowed: a number of microseconds"),
        ("operation,shapes,dtype,us\nmm,,,-1\n", "line 2 has the time '-1'"),
        ("operation,shapes,dtype,us\nmm,,,nan\n", "line 2 has the time 'nan'"),
        ("operation,shapes,dtype,us\nmm,4x8,,1\n", "line 2 has the shapes '4x8'"),
        ("operation,shapes,dtype,us\nmm,7,,1\n", "line 2 has the shapes '7'"),
        ("operation,shapes,dtype,us\n,,,1\n", "line 2 has no operation"),
        ("operation,shapes,dtype,us\nmm,,,1\n\naten::mm,,,2\n", "line 4 repeats"),
    ],
)
def test_a_wrong_table_of_kernels_is_refused_with_its_line(tmp_path, text, words):
    with pytest.raises(ValueError) as refused:
        kernels.parse(text.splitlines())
    assert words in str(refused.value)
    (tmp_path / "kernels.csv").write_text(text)
    with pytest.raises(ScenarioError, match=r"kernels\.csv"):
        scenario(gpu="h100", kernels=str(tmp_path / "kernels.csv"))


class Clock:
    def __init__(self):
        self.ns = 5_000

    def sleep(self, seconds):
        self.ns += round(seconds * 1e9)


def test_operations_queue_on_their_streams_while_the_host_goes_on():
    clock = Clock()
    device = Device(lambda: clock.ns, clock.sleep)
    side = device.new()
    assert device.busy(1e-6) == 1_000 and device.busy(2e-6) == 2_000
    assert (clock.ns, device.current.end_ns) == (5_000, 8_000)
    device.current = side
    device.busy(10e-6)
    assert (side.end_ns, device.default.end_ns, device.end_ns) == (15_000, 8_000, 15_000)
    device.wait(device.default.end_ns)
    assert clock.ns == 8_000
    device.wait(device.end_ns)
    assert (clock.ns, device.waited_ns, device.waits) == (15_000, 10_000, 2)
    device.wait(device.default.end_ns)
    assert (clock.ns, device.waits) == (15_000, 2)
    device.current = device.default
    device.busy(1e-6)
    assert device.default.end_ns == 16_000  # an idle stream begins when it is given work
    clock.ns = 20_000
    device.join()
    assert device.default.end_ns == 20_000 and device.default.busy_ns == 4_000


class Collective:
    """A collective that ends at 50 us, if one waits for it."""

    def __init__(self, clock):
        self.clock, self.waits = clock, 0

    def ended(self):
        self.waits += 1
        self.clock.ns = max(self.clock.ns, 50_000)
        return 50_000, (7,)

    def is_completed(self):
        return self.clock.ns >= 50_000


def test_a_side_stream_waits_for_a_collective_in_place_of_the_host_and_what_it_computes_is_done_later():
    clock = Clock()
    device = Device(lambda: clock.ns, clock.sleep)
    collective, side, done = Collective(clock), device.new(), []
    assert not device.defer(collective)  # the default stream, on which the host may read what comes
    device.current = side
    assert device.defer(collective) and device.defer(collective)
    Deferred(device, lambda: (done.append("first"), device.busy(3e-6)))
    Deferred(device, lambda: (done.append("second"), device.busy(2e-6)))
    device.current = device.default
    device.busy(90e-6)
    assert (clock.ns, done, collective.waits) == (5_000, [], 0)
    side.follow(70_000, ())  # issued later, so that it delays none of both
    device.follow(device.default, side.end_ns, side.after, side.due)
    assert (done, collective.waits, clock.ns) == (["first", "second"], 1, 50_000)
    assert (device.default.end_ns, device.settled_ns(side), device.current) == (95_000, 70_000, device.default)
    assert side.busy_ns == 5_000
    device.current = side
    third = Deferred(device, lambda: device.busy(1e-6))
    assert third.ended() == (71_000, (7,)) and third.is_completed()
    clock.ns = 200_000
    assert third.ended()[0] == 71_000 and device.settled_ns(side) == 71_000


def test_operations_of_unknown_cost_are_told_and_marked_above_a_share(capsys, tmp_path):
    clock = Clock()
    accounts = Accounts(Device(lambda: clock.ns, clock.sleep))
    accounts.add("aten::mm", 96_000, 1e6, 10)
    assert accounts.sentences() == []
    accounts.add("mine::kernel", 4_000, 0, 10)
    accounts.unknown.add("mine::kernel")
    (told,) = accounts.sentences()
    assert "mine::kernel (1), 4.0% of the GPU's time" in told and "more than" not in told
    accounts.add("mine::kernel", 4_000, 0, 10)
    accounts.end(str(tmp_path / "gpu-0.json"))
    assert "mine::kernel (2), 7.7% of the GPU's time. That is more than 5%" in capsys.readouterr().err
    written = json.loads((tmp_path / "gpu-0.json").read_text())
    assert written["charged_s"] == pytest.approx(104e-6) and written["unknown"] == ["mine::kernel"]
    assert [*written["operations"]] == ["aten::mm", "mine::kernel"]
    accounts.end(str(tmp_path / "missing" / "gpu-0.json"))
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given",
    [
        "h100",
        {"model": "a100", "efficiency": 0.5, "launch": "2 us"},
        {"model": "h100", "flops": {"float32": 1e12, "tf32": 2e12}, "memory": "96 GB"},
        {"flops": 1e14, "bandwidth": 2e12},
        {"flops": {"float32": 1e12, "bfloat16": 3e12}, "bandwidth": 1e12, "memory_efficiency": 1.0},
    ],
)
def test_a_gpu_by_name_or_by_numbers_is_written_as_it_was_read(given, tmp_path):
    read = scenario(gpu=given)
    gpu = read.program.gpu
    assert GPU.read(GPU.write(gpu)) == gpu
    (tmp_path / "again.toml").write_text(resolved(read))
    assert load_scenario(str(tmp_path / "again.toml")).program.gpu == gpu
    assert from_json(to_json(read.configurations()[0])).program.gpu == gpu
    if isinstance(given, dict) and "launch" in given:
        assert (gpu.launch_s, gpu.efficiency) == (2e-6, 0.5)
        assert gpu.bandwidth_bps == models.MODELS["a100"].bandwidth_bps


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("H100", r"\"H100\" is not known; allowed: a100, .*did you mean h100"),
        ({"flops": 1e14}, "has no bandwidth"),
        ({"model": "tpu"}, "its model: \"tpu\" is not known"),
        ({"model": "h100", "speed": 2}, "\"speed\" is no key of a GPU"),
        ({"model": "h100", "efficiency": 2}, "its efficiency: 2 is too large; allowed: a number from 0.01 to 1"),
        ({"model": "h100", "launch": 4}, "its launch: 4 has no unit"),
        ({"bandwidth": 1e12, "flops": {"bfloat16": 1e12}}, "its flops: there is no float32"),
        ({"bandwidth": 1e12, "flops": {"bf16": 1e12}}, "its flops: \"bf16\" is no dtype; allowed: float64"),
        (7, "7 is a number"),
    ],
)  # fmt: skip
def test_a_wrong_gpu_is_refused_with_what_is_allowed(given, words):
    with pytest.raises(ScenarioError, match=words):
        scenario(gpu=given)


def test_kernel_times_need_a_gpu_and_a_file(tmp_path):
    with pytest.raises(ScenarioError, match=r"program\.kernels: needs a GPU; allowed: program\.gpu"):
        scenario(kernels=str(tmp_path / "kernels.csv"))
    with pytest.raises(ScenarioError, match=r"kernels\.csv: it cannot be read: No such file"):
        scenario(gpu="h100", kernels=str(tmp_path / "kernels.csv"))


def test_fake_tensors_need_a_gpu_and_reach_the_ranks():
    with pytest.raises(
        ScenarioError, match=r"program\.tensors: fake tensors need a GPU; allowed: program\.gpu, one of"
    ):
        scenario(tensors="fake")
    with pytest.raises(ScenarioError, match=r"program\.tensors.*allowed: real, fake"):
        scenario(gpu="h100", tensors="none")
    assert gpu_variables(scenario(gpu="h100", tensors="fake").program, 0)["LONGHAUL_GPU_TENSORS"] == "fake"
    assert "LONGHAUL_GPU_TENSORS" not in gpu_variables(scenario(gpu="h100", tensors="real").program, 0)


def test_ranks_get_the_gpu_in_variables_and_nothing_without_one(tmp_path):
    assert gpu_variables(scenario().program, 0) == {}
    (tmp_path / "kernels.csv").write_text(TABLE)
    found = gpu_variables(scenario(gpu="l40s", kernels=str(tmp_path / "kernels.csv")).program, 3)
    assert models.of_text(found.pop("LONGHAUL_GPU_MODEL")) == models.MODELS["l40s"]
    assert found == {
        "LONGHAUL_GPU_KERNELS": str(tmp_path / "kernels.csv"),
        "LONGHAUL_GPU_REPORT": "gpu-3.json",
        "LONGHAUL_GPU_STEPS": "steps-3.json",
    }


def test_a_run_reads_the_accounts_of_its_ranks_and_notes_what_they_do_not_know(tmp_path):
    clock = Clock()
    assert "no rank was charged the time of program.gpu" in next(gpu_accounts.notes(gpu_accounts.read(tmp_path, 4)))
    for rank, unknown_ns in ((0, 4_000), (2, 10_000)):
        accounts = Accounts(Device(lambda: clock.ns, clock.sleep))
        accounts.add("aten::mm", 96_000, 1e6, 10)
        accounts.add("mine::kernel", unknown_ns, 0, 10)
        accounts.unknown.add("mine::kernel")
        accounts.end(str(tmp_path / f"gpu-{rank}.json"))
    (tmp_path / "gpu-1.json").write_text('{"charged_s": "the script\'s own"}')
    found = gpu_accounts.read(tmp_path, 4)
    assert [one["rank"] for one in found] == [0, 2]
    assert found[1]["charged_s"] == pytest.approx(106e-6) and found[0]["unknown"] == ["mine::kernel"]
    (note,) = gpu_accounts.notes(found)
    assert note.startswith("rank 2's GPU was charged 9.4% of its time") and "(mine::kernel)" in note
    assert list(gpu_accounts.notes(found[:1])) == []
    (note,) = gpu_accounts.notes([{**found[0], "fake_reads": 3.0}])
    assert "were read 3 times" in note and "mean nothing" in note


def test_without_the_variable_nothing_is_imported_and_a_collective_waits_for_nothing():
    """`import torch` of any rank calls `activate`."""
    code = "import sys, longhaul_gpu as g; before = set(sys.modules); g.activate(); g.joined()"
    code += "; print(g.ready_ns(), len(set(sys.modules) - before), 'torch' in sys.modules)"
    folder = Path(longhaul_gpu.__file__).parents[1]
    environment = {key: value for key, value in os.environ.items() if key != longhaul_gpu.MODEL}
    environment |= {"PYTHONPATH": str(folder)}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["0", "0", "False"]


def test_a_sweep_compares_real_and_fake_tensors() -> None:
    text = '[program]\ncommand = "true"\ngpu = "h100"\n[sweep]\n"program.tensors" = ["real", "fake"]\n'
    configs = scenario_of(text).configurations()
    assert [config.program.tensors for config in configs] == ["real", "fake"]
    assert [config.label.rpartition(", ")[2] for config in configs] == ["tensors real", "tensors fake"]
