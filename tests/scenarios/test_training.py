"""Training as a scenario: measured times and reported metrics, alone and beside other jobs, and refused keys."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from analysis.results.reader import load
from scenarios.engines.model import Model
from scenarios.engines.prediction import plan_of
from scenarios.experiment import command as experiment
from scenarios.spec.load import Override, ScenarioError, of_its_time, resolved, scenario_of
from tests.fakes.commands import times
from tests.fakes.runs import answer, ended, measured_as_recorded

TRAINING = "collective.kind=training", "run.modes=['base']"


def command(*values: str) -> list[str]:
    return [part for value in values for part in ("--set", value)]


def test_emulated_iterations_take_what_the_model_says_and_the_same_in_another_boot(tmp_path: Path) -> None:
    """Two replicas of four stages in different sites: activations, and gradients in two buckets; both are checked."""
    values = (
        *(*TRAINING, "training.micro_batches=4", "training.replicas=2", "training.across=data", "training.buckets=2"),
        *("training.gradients=hierarchical", "training.activations=1 MB", "training.gradient_size=4 MB"),
    )
    found = measured_as_recorded(tmp_path / "run", "--engine", "both", "--collectives", "2", sets=values, p99=0.01)
    model, emulation = found["points"]
    for point in (model, emulation):
        told = point["training"]
        assert told["bubble_ratio"] == pytest.approx(1 - 4 * 30e-3 / point["mean_s"], abs=1e-12)
        assert told["in_flight"] == [4, 3, 2, 1]
        assert min(told["exposed_data_s"], told["exposed_pipeline_s"]) > 0
    for what in ("pipeline", "data"):
        assert model["training"][f"measured_{what}_s"] is None
        assert told[f"measured_{what}_s"] == pytest.approx(told[f"exposed_{what}_s"], rel=0.01)
    exposed_s, measured_s = (told[f"{how}_pipeline_s"] + told[f"{how}_data_s"] for how in ("exposed", "measured"))
    completion_s = pq.read_table(tmp_path / "run" / "collectives.parquet").to_pandas().set_index("engine").completion_s
    assert 7 * 30e-3 + measured_s == pytest.approx(completion_s["emulation"].iloc[0], rel=1e-12)
    first_s = pq.read_table(tmp_path / "run" / "collectives.parquet")["predicted_s"][0].as_py()
    assert first_s == pytest.approx(7 * 30e-3 + exposed_s, rel=1e-9)


def test_emulated_streaming_diloco_takes_its_steps_and_what_overlap_does_not_hide_of_its_fragments(
    tmp_path: Path,
) -> None:
    """Two replicas in two sites with 1 Gbit/s between them: a round is four steps of 30 ms. The sum of a fragment of S
    bytes on the wire is an exchange of two halves, 2 (4 S / 1 Gbit/s + 10 ms), of which an overlap hides one step. With
    4 MB of 32 bits in 16, DiLoCo waits 36 ms, two fragments 28 ms each, and nothing if they overlap; 30 MB do not fit
    in a step."""
    values = (
        *(*TRAINING, "training.replicas=2", "training.across=data", "training.micro_batches=1", "training.every=4"),
        *("training.bits=16", "fabric.gpus=2", "conditions.wan_rate=1 Gbit/s", "conditions.wan_delay=10 ms"),
    )
    swept = {"training.overlap": "0,1", "training.gradient_size": "4 MB,30 MB", "training.fragments": "1,2"}
    sweeps = (part for key, wanted in swept.items() for part in ("--sweep", f"{key}={wanted}"))
    told = answer(tmp_path / "run", "--engine", "both", "--collectives", "2", *sweeps, sets=values)["points"]
    rows = load(tmp_path / "run").drop_duplicates("setting").set_index("setting")
    assert len(told) == 2 * len(rows) == 2 * 8
    for point in told:
        overlap, size, fragments = (int(rows[key][point["setting"]]) for key in swept)
        sum_s = 2 * (size / 2 / fragments / 2 * 8e-9 + 10e-3)
        exposed_s = fragments * max(0.0, sum_s - overlap * 30e-3)
        assert point["mean_s"] == pytest.approx(0.12 + exposed_s, rel=2e-3)
        assert point["training"]["bubble_ratio"] == pytest.approx(exposed_s / (0.12 + exposed_s), rel=0.02, abs=1e-4)
        how = "exposed" if point["engine"] == "model" else "measured"
        assert point["training"][f"{how}_data_s"] == pytest.approx(exposed_s / 4, rel=0.02, abs=1e-4)
        assert point["training"][f"{how}_pipeline_s"] == pytest.approx(0, abs=1e-9)


def test_an_emulated_bubble_without_transfer_times_is_the_closed_form(tmp_path: Path) -> None:
    values = (
        *(*TRAINING, "training.pipeline=interleaved", "training.chunks=2", "training.micro_batches=8"),
        *("training.forward=1 s", "training.backward=2 s", "training.activations=4 B", "conditions.wan_delay=1 us"),
    )
    (point,) = answer(tmp_path / "run", "--engine", "emulation", "--collectives", "1", sets=values)["points"]
    assert point["training"]["bubble_ratio"] == pytest.approx(7 / (2 * 8 + 7), rel=1e-4)


def scenario(text: str):
    return scenario_of(text)


def test_one_stage_training_takes_its_computation_plus_one_allreduce() -> None:
    """With one stage, all replicas finish computing at the same time, and then an AllReduce follows."""
    common = "[run]\nmodes = ['base']\n"
    count = "count = 50\n"
    trained = scenario(
        f"{common}[collective]\n{count}[training]\nreplicas = 8\nacross = 'data'\ngradient_size = '8 MB'\n"
    )
    alone = scenario(f"{common}[collective]\nkind = 'allreduce'\nsize = '8 MB'\n{count}")
    found_s = [times(one.configurations(), Model())[0, "base"] for one in (trained, alone)]
    assert found_s[0] == pytest.approx(8 * 30e-3 + found_s[1], rel=1e-12)


def test_a_job_that_runs_while_training_computes_takes_exactly_its_time_alone(tmp_path: Path) -> None:
    """The AllReduce runs while all stages compute, so that no messages overlap. Its time is the same to the nanosecond,
    although the messages of the training are twice as large."""
    large = ("training.activations=1 MB", "training.gradient_size=16 MB", "training.replicas=2", "training.across=data")
    more = (*large, "training.micro_batches=2", "training.forward=100 ms")
    train, other = "{kind='training', name='train'}", "{kind='allreduce', name='sum', size='16 MB', start='2 ms'}"
    found = {}
    for out, jobs in (("both", (f"job=[{train}, {other}]", *more)), ("alone", (f"job=[{other}]",))):
        arguments = ("--engine", "emulation", "--collectives", "2", "--gpus", "4")
        (point,) = answer(tmp_path / out, *arguments, sets=("run.modes=['base']", *jobs))["points"]
        rows = pq.read_table(tmp_path / out / "jobs.parquet").to_pandas()
        found[out] = {job["name"]: job for job in point["jobs"]}, rows[rows["job"] == "sum"].completion_s.to_list()
    assert found["both"][1] == found["alone"][1]
    trained, plain = found["both"][0]["train"], found["both"][0]["sum"]
    assert trained["iteration_s"] == trained["mean_s"] and "bubble_ratio" not in plain
    assert trained["bubble_ratio"] == pytest.approx(1 - 2 * 120e-3 / trained["mean_s"], abs=1e-12)
    said = ended("--resume", tmp_path / "both", "--no-report", cwd=tmp_path)[0]
    assert f"bubble {trained['bubble_ratio']:.2%}" in said


def test_a_training_job_reports_the_same_metrics_as_the_same_training_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three training collectives in a row, each of two iterations with one gradient sum: exposed times are those of the
    first, and the iteration time is the mean of all six iterations."""
    monkeypatch.chdir(tmp_path)
    small = ("training.replicas=2", "training.across=data", "training.every=2", "training.memory=40 MB")
    base = ("--engine", "model", "--no-report", "--collectives", "1", *command("run.modes=['base']", *small))
    assert experiment.run([*base, "--json", "--out", "run", *command("collective.kind=training")]) == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    alone = point["training"] | {"link_bytes": point["link_bytes"]}
    jobs = command("job=[{kind='training', name='train', count=3, start='1 ms'}]")
    assert experiment.run([*base, "--json", "--out", "jobs", *jobs]) == 0
    ((job,),) = (one["jobs"] for one in json.loads(capsys.readouterr().out)["points"])
    assert job["iteration_s"] == job["mean_s"] / 6 <= alone["iteration_s"] * (1 + 1e-9)
    assert job["bubble_ratio"] == pytest.approx(1 - 8 * 30e-3 / job["iteration_s"], rel=1e-12)
    assert (job["in_flight"], job["room"]) == ([4, 3, 2, 1], 5) and len(job["link_bytes"]) > 8
    # An iteration computes for the time of 8 micro-batches and of the 3 before them in the other stages.
    exposed_s = alone["exposed_pipeline_s"] + alone["exposed_data_s"]
    assert alone["iteration_s"] == pytest.approx((8 + 3) * 30e-3 + exposed_s, rel=1e-9)
    for what in ("exposed_pipeline_s", "exposed_data_s"):
        assert job[what] == pytest.approx(alone[what], rel=1e-9) and job[what] > 0
    for what in ("in_flight", "more", "room", "link_bytes"):
        assert job[what] == alone[what]
    assert {"job.train.bubble_ratio", "job.train.in_flight"} <= {*Path("jobs/summary.csv").read_text().split(",")}
    assert experiment.run(["--resume", "jobs", "--no-report"]) == 0
    said = capsys.readouterr().out
    told = f", train: {1e3 * job['iteration_s']:,.3f} ms on average in a round of 2, bubble"
    assert told in said and "stage: 4 3 2 1 of 5" in said and "train (3 times) 2,122.969 ms" in said


def test_training_is_no_faster_beside_another_job_and_changes_under_faults() -> None:
    base = (
        "[run]\nmodes = ['base']\n[collective]\ncount = 20\n[training]\nmicro_batches = 4\nactivations = '64 MB'\n"
        "[fabric]\ngrain = 'physical'\n"
    )
    alone = times(scenario(base).configurations(), Model())[0, "base"]
    job = "[[job]]\nname = 'training'\nkind = 'training'\n"
    other = "[[job]]\nname = 'other'\nkind = 'alltoall'\nsize = '512 MB'\ncount = 4\n"
    one = times(scenario(base + job).configurations(), Model())[0, "base"]
    assert one == pytest.approx(alone, rel=1e-12)
    both = times(scenario(base + job + other).configurations(), Model())[0, "base"]
    assert (both >= alone * (1 - 1e-12)).all() and both.mean() > alone.mean()
    fault = "[[fault]]\nat = 'collective 3'\nwhat = 'link s0b0-s1b0 down'\nfor = '2 collectives'\n"
    struck = times(scenario(base + fault).configurations(), Model())[0, "base"]
    assert (struck != alone).any() and np.isfinite(struck).all()


@pytest.mark.parametrize("job", ["", "[[job]]\nkind = 'training'\n"])
def test_re_embedding_permutes_replicas_but_never_pipeline_stages(job: str) -> None:
    text = f"[run]\nmodes = ['ccl']\n{job}[training]\n"
    placement = plan_of(
        scenario(f"{text}replicas = 4\n[collective]\ncount = 40\nreembed_every = 1\n"), "ccl"
    ).decisions.placement
    assert (np.sort(placement[:, :4]) == np.arange(4)).all() and len(np.unique(placement, axis=0)) > 1
    placement = plan_of(scenario(f"{text}replicas = 1\n[collective]\ncount = 40\n"), "ccl").decisions.placement
    assert (placement == np.arange(8)).all()


@pytest.mark.parametrize(("delay_ms", "more"), [(10, 1), (100, 7), (300, 20)])
def test_as_many_forwards_run_early_as_hide_a_round_trip_to_the_next_site(delay_ms: int, more: int) -> None:
    """A forward and a backward take 30 ms together, and transfers take next to nothing."""
    text = (
        f"[conditions]\nwan_delay = '{delay_ms} ms'\n[collective]\nkind = 'training'\n[training]\nmicro_batches = 32\n"
        "pipeline = 'overlapped'\nmemory = '10 GB'\nactivations = '1 MB'\n"
    )
    (setting,) = scenario(text).configurations()
    assert more - 1 < 2 * delay_ms / 30 <= more
    assert setting.training_plan is not None and setting.training_plan.more(range(8)) == more


def test_a_training_scenario_survives_writing_and_reading() -> None:
    asked = scenario(
        "[training]\npipeline = 'overlapped'\nmemory = '80 MB'\n[sweep]\n'training.micro_batches' = [8, 16]\n"
    )
    assert scenario_of(resolved(asked)) == asked
    assert [one.collective.kind for one in asked.configurations()] == ["training"] * 2
    sweep = "[sweep]\n'training.pipeline' = ['1f1b', 'zero-bubble']\n"
    split = scenario(f"[training]\nweights = '5 ms'\n{sweep}[[job]]\nkind = 'training'\n")
    assert scenario_of(resolved(split)) == split and split.training.weights_s == 5e-3
    for one, name in zip(split.configurations(), ("1f1b", "zero-bubble"), strict=True):
        assert one.label.startswith("8 GPUs, 1 job, job1 training, ") and f", 10 us, pipeline {name}" in one.label
    assert "training" not in resolved(scenario(""))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[training]\npipeline = 'pipedream'\n", "training.pipeline: 'pipedream' is not known; allowed: 1f1b, gpipe"),
        ("[training]\nmicro_batches = 0\n", "training.micro_batches: 0 is too small"),
        ("[training]\nreplicas = 3\n", "3 replicas on 8 GPUs; allowed"),
        ("[training]\nmemory = '60 MB'\n", "keeps 64 MB of activations in stage 0; allowed: training.memory, 60 MB"),
    ],
)
def test_invalid_training_keys_are_refused_in_one_sentence(text: str, says: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        scenario(text)
    assert says.replace("'", '"') in str(refused.value).replace("'", '"')


def test_selecting_training_drops_the_files_chunk() -> None:
    """An option replaces the value in the file; the resolved scenario is the same when it is read again."""
    text = "[collective]\nkind = 'allgather'\nchunk = '64 MB'\n"
    for wanted in (Override("collective.kind", "training", ""), Override("job", [{"kind": "training"}], "")):
        found = scenario_of(text, [wanted])
        assert found.collective.chunk_bytes == scenario_of("").collective.chunk_bytes and found.notes == ()
        assert scenario_of(resolved(found)) == found and "\nchunk =" not in resolved(found)
    mixed = scenario_of(text, [Override("job", [{"kind": "training"}, {"kind": "allreduce"}], "")])
    assert mixed.collective.chunk_bytes == 64_000_000
    for kind, job in (("training", ""), ("allgather", "[[job]]\nkind = 'training'\n")):  # as stored by older runs
        old = f"[collective]\nkind = '{kind}'\nchunk = '64 MB'\n{job}"
        assert scenario_of(of_its_time(old), is_stored=True).collective.chunk_bytes == 8_000_000
    assert scenario_of(of_its_time(text), is_stored=True).collective.chunk_bytes == 64_000_000


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        (("collective.reembed_every=3", "training.buckets=2", "training.across=data"), 3),
        (("training.held=1 MB",), 1),
        (("collective.reembed_every=3", "training.replicas=4", "training.held=1 MB", "training.memory=80 MB"), 0),
        (("collective.reembed_every=3", "run.modes=['p']", "policy=[{name='p', reroute='every'}]"), 0),
        (("collective.reembed_every=3", "run.modes=['p']", "policy=[{name='p', reroute='every 2'}]"), 1),
    ],
)
def test_the_keys_that_a_training_does_not_use_are_told_before_it_runs(
    values: tuple[str, ...], keys: int, capsys: pytest.CaptureFixture[str]
) -> None:
    status = experiment.run(["--engine", "model", "--dry-run", *command(*values, "collective.kind=training")])
    told = [line for line in capsys.readouterr().err.splitlines() if ": unused: " in line]
    assert len(told) == keys and status == 0
    assert all(any(value.partition("=")[0] in one for one in told) for value in values[:keys])


def test_a_mistake_in_a_training_job_does_not_also_report_its_training_keys_as_unused() -> None:
    with pytest.raises(ScenarioError) as refused:
        scenario("[[job]]\nkind = 'training'\nstart = 'noon'\n[training]\nmicro_batches = 4\n")
    assert len(refused.value.mistakes) == 1 and "noon" in refused.value.mistakes[0]
