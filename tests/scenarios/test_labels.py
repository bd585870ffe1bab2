"""Labels of configurations: two with different keys never have one; the baseline of a comparison."""

import csv
import json
import re
from pathlib import Path

import pytest

from analysis.figures.run_points import words
from analysis.statistics.contests import differing_words
from analysis.statistics.jobs_in_words import words_of
from scenarios.spec import ScenarioError, file_notes
from scenarios.spec.keys import KEYS
from scenarios.spec.labels import conditions_of_all, labels_in_table
from scenarios.spec.load import Override, load_scenario, scenario_of
from scenarios.spec.scenario import DEFAULTS
from tests.fakes.commands import run, scenario
from tests.scenarios.test_key_ends import LONG, REFUSED, configuration
from topologies.fabric.fabric import FabricSpec, build_fabric

UNTOLD = {"collective.count", "collective.emulated", "collective.budget", "program.deadline"}
UNTOLD |= {"run.search", "run.machines"}
UNTOLD |= {f"program.{name}" for name in ("sample", "memory", "processes", "output", "files", "capture")}
"""Keys of a run's length and limits, which change no time that a label stands beside."""


def label(**values):
    (one,) = load_scenario("paper", [Override(key, value, key) for key, value in values.items()]).configurations()
    return one.label


@pytest.mark.parametrize("key", [key for key in KEYS.values() if key.kind.ends and key.name not in UNTOLD])
def test_both_ends_of_every_numeric_key_have_labels_of_their_own(tmp_path, monkeypatch, key):
    monkeypatch.chdir(tmp_path)
    links = build_fabric(FabricSpec(gpus_per_site=(2, 2))).links
    Path("trace.csv").write_text("time,link,rate\n" + "".join(f"0,{link.name},10 Gbit/s\n" for link in links))
    ends = [end for end in key.kind.ends if (key.name, end) not in (*REFUSED, *LONG)]
    labels = {configuration(key.name, end).label for end in ends}
    assert len(labels) == len(ends), labels


FIFO = {"transport.queue": "fifo"}
TABLE = {"kind": "transfer", "ranks": [0, 4], "deadline": "1 s"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"conditions.sampler": "ar1"}, {"conditions.sampler": "markov"}),
        ({"collective.pieces": 2, "collective.kind": "broadcast"}, {"collective.kind": "broadcast"}),
        ({"fabric.routing": "ecmp"}, {"fabric.routing": "spray"}),
        ({**FIFO, "transport.congestion_control": "bbr"}, {**FIFO, "transport.congestion_control": "cubic"}),
        (
            {**FIFO, "transport.congestion_control": {"wan": "bbr"}},
            {**FIFO, "transport.congestion_control": {"intra": "bbr"}},
        ),
        ({"run.seed": 2}, {"run.seed": 3}),
        ({"fault": [{"at": "collective 3", "what": "link s0b0-s1b0 down"}]}, {}),
        ({"job": [TABLE | {"size": "1 MB"}]}, {"job": [TABLE | {"size": "2 MB"}]}),
        ({"conditions.links": {"wan": {"delay": "1 ms"}}}, {"conditions.links": {"wan": {"delay": "2 ms"}}}),
        ({"conditions.links": {"wan": {"rate": "10 Gbit/s"}}}, {"conditions.links": {"wan": {"rate": "20 Gbit/s"}}}),
        (
            {"fabric.wan": {"links": [["s0b0", "s1b0"], ["s0b1", "s1b1"], ["s0b0", "s1b1"]]}},
            {"fabric.wan": {"links": [["s0b0", "s1b0"], ["s0b1", "s1b1"], ["s0b1", "s1b0"]]}},
        ),
    ],
)
def test_values_that_differ_have_labels_that_differ(one, other):
    shared = {"fabric.routing": "spray"} if "job" in one else {}
    assert label(**shared | one) != label(**shared | other)


def test_a_label_has_no_value_as_a_language_writes_it_and_no_comma_within_a_part() -> None:
    """Commands for several ranks are told as --exec has them."""
    roles = [
        {"command": "mpirun -n 4 ./mine", "on": "g0, g1"},
        {"name": "clients", "command": "iperf3 -c g0", "on": [2, 3], "start": "50 ms", "until": "server"},
        {"name": "server", "command": "sshd", "env": {"A": "1"}},
    ]
    told = label(**{"program.role": roles, "program.env": {"B": "x", "C": "2"}, "program.preload": ["json", "csv"]})
    parts = told.split(", ")
    assert not re.search(r"[\[\]{}']", told), told
    assert {"g0,g1: mpirun -n 4 ./mine", "server A=1: sshd", "env B=x C=2"} <= {*parts}
    assert "clients on g2,g3 from 50 ms until server: iperf3 -c g0" in parts


def test_a_note_names_a_trace_as_the_label_does(tmp_path: Path) -> None:
    names = [one.name for one in build_fabric(FabricSpec()).links if one.kind == "wan"]
    rows = "".join(f"2026-01-01T00:00:00Z,{name},1e9\n" for name in names)
    (tmp_path / "t.csv").write_text(f"time,link,rate\n{rows}")
    text = f'[collective]\ncount = 1\n[conditions]\nsampler = "trace"\ntrace = "{tmp_path}/t.csv"\n'
    (config,) = scenario_of(text).configurations()
    (in_label,) = [part for part in config.label.split(", ") if part.endswith("t.csv")]
    (in_note,) = {note.partition(":")[0] for note in file_notes.notes_on([config]) if "t.csv" in note}
    assert in_note == f"the {in_label}"


@pytest.mark.parametrize(
    ("key", "values", "differing"),
    [
        (
            "job",
            [
                [{"name": "train", "size": "64 MB", "ranks": [0, 4]}],
                [{"name": "train", "size": "64 MB", "ranks": [0, 4]}, {"name": "infer", "size": "8 MB"}],
                [{"name": "train", "size": "64 MB", "ranks": [0, 4]}, {"name": "infer", "size": "9 MB"}],
            ],
            ["1 job", "2 jobs, infer 8 MB", "2 jobs, infer 9 MB"],
        ),
        (
            "fault",
            [
                [{"at": "collective 3", "what": "link s0b0-s1b0 down"}],
                [{"at": "collective 4", "what": "link s0b0-s1b0 down"}],
                [],
            ],
            ["link s0b0-s1b0 down at collective 3", "link s0b0-s1b0 down at collective 4", "without faults"],
        ),
        (
            "conditions.links",
            [{"s0b0>*": {"delay": "40 ms"}}, {"s0b0>*": {"delay": "40 ms"}, "s0b1>*": {"rate": "1 Gbit/s"}}],
            None,
        ),
    ],
)
def test_labels_of_tables_that_differ_say_in_words_what_differs(key, values, differing):
    configs = load_scenario("paper", [Override(f"sweep.{key}", values, "")]).configurations()
    labels = [one.label for one in configs]
    assert len({*labels}) == len(values) and not any("#" in one for one in labels)
    if differing is not None:
        assert differing_words(labels) == differing


def test_a_table_with_many_entries_has_a_number_besides_the_first_ones():
    jobs = [{"name": f"j{number}", "ranks": [0, 4]} for number in range(6)]
    one, other = label(job=jobs), label(job=[*jobs[:5], jobs[5] | {"start": "1 ms"}])
    assert "6 jobs, j0 on GPUs 0,4, j1 on GPUs 0,4, j2 on GPUs 0,4, and 3 more (#" in one
    assert one != other


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        (["40 Gbit/s", "500 Mbit/s"], "own WAN s0b0-s1b0 (2 parallel links) 40/0.5 Gbit/s, 10 us"),
        (["40 Gbit/s", "40 Gbit/s"], "own WAN s0b0-s1b0 (2 parallel links) 40 Gbit/s, 10 us"),
        (["40 Gbit/s", None, "10 Gbit/s"], "own WAN s0b0-s1b0 (3 parallel links) (#"),
        (["40 Gbit/s"] * 5, "own WAN of 5 links (#"),
    ],
)
def test_a_wan_of_a_few_links_with_rates_is_named_by_them(rates, words):
    links = [["s0b0", "s1b0", *([{"rate": rate}] if rate else [])] for rate in rates]
    assert words in label(**{"fabric.border_routers": 1, "fabric.wan": {"links": links}})


@pytest.mark.parametrize(
    ("delays", "words"),
    [
        (["5 ms", "8 ms", "15 ms"], ["own WAN s0b0-s1b0 (3 parallel links) 5/8/15 ms"]),
        (["500 us", "2 ms"], ["own WAN s0b0-s1b0 (2 parallel links) 500 us/2 ms"]),
        (["5 ms", "5 ms"], ["own WAN s0b0-s1b0 (2 parallel links) 5 ms"]),
        (["5 ms", None], ["own WAN s0b0-s1b0 (2 parallel links) (#", "WAN 10 us to 5 ms"]),
    ],
)
def test_each_of_a_few_links_has_its_name_and_its_delay_once(delays, words):
    links = [["s0b0", "s1b0", *([{"delay": delay}] if delay else [])] for delay in delays]
    found = label(**{"fabric.border_routers": 1, "fabric.wan": {"links": links}})
    assert all(one in found for one in words) and found.count(" to ") == len(words) - 1


def test_a_link_of_its_own_delay_beside_a_wan_of_delays_is_not_lost():
    links = [["s0b0", "s1b0", {"delay": "5 ms"}], ["s0b0", "s1b0", {"delay": "8 ms"}]]
    wan = {"fabric.border_routers": 1, "fabric.wan": {"links": links}}
    assert "WAN 8 ms to 9 ms" in label(**wan, **{"conditions.links": {"s0b0-s1b0": {"delay": "9 ms"}}})


def test_two_traces_of_one_name_have_labels_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    links = build_fabric(FabricSpec(gpus_per_site=(4, 4))).links
    for folder in ("a", "b"):
        Path(folder).mkdir()
        text = "".join(f"0,{link.name},10 Gbit/s\n" for link in links)
        Path(folder, "trace.csv").write_text("time,link,rate\n" + text)
    sampled = {"conditions.sampler": "trace", "collective.count": 1}
    assert label(**sampled | {"conditions.trace": "a/trace.csv"}) != label(
        **sampled | {"conditions.trace": "b/trace.csv"}
    )


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ({"s0b0>*": {"delay": "40 ms"}, "s0b1>*": {"delay": "100 ms"}}, "WAN 10 us to 100 ms"),
        ({"wan": {"delay": "20 ms"}}, "WAN 20 ms"),
    ],
)
def test_delays_of_single_links_are_told_instead_of_the_delay_of_all(links, words):
    assert words in label(**{"conditions.links": links}).split(", ")


SWEPT = ("--engine", "model", "--collectives", "200", "--modes", "base,wan,joint", "--set", "run.seed=4")
ALGORITHMS = ("--engine", "model", "--collectives", "100", "--modes", "base", "--set", "collective.kind=allreduce")
ALGORITHMS = *ALGORITHMS, "--sweep", "collective.algorithm=hierarchical,ring"


@pytest.mark.parametrize(
    ("options", "baseline", "named"),
    [(SWEPT, "mode=wan", "wan"), (SWEPT, "mode=joint", "joint"), (ALGORITHMS, "algorithm=ring", "ring")],
)
def test_sentence_table_json_figure_and_report_take_the_same_baseline(
    tmp_path, monkeypatch, capsys, options, baseline, named
):
    monkeypatch.chdir(tmp_path)
    run(*options, "--baseline", baseline, "--out", "out")
    text = capsys.readouterr().out
    assert f"gain over {named}" in text
    sentence, told = text.partition("\n")[0], re.search(r"([\d.]+) % (below|longer)", text)
    assert (f" below {named}" in sentence) is (told[2] == "below")
    signed = f"{'-' * (told[2] == 'longer')}{told[1]}%"
    assert signed in text, "the table has another number"
    run("--resume", "out", "--json")
    points = json.loads(capsys.readouterr().out)["points"]
    means_s = [point["mean_s"] for point in points]
    (index,) = [index for index, point in enumerate(points) if point["baseline"] is None]
    for point, mean_s in zip(points, means_s, strict=True):
        assert point["baseline"] in (None, named)
        assert point["gain"] is None or point["gain"] == pytest.approx(1 - mean_s / means_s[index])
    (path,) = (path for path in Path("out", "figures").glob("*.csv") if path.stem in ("paper", "run"))
    with path.open() as file:
        drawn = [float(row["gain"]) for row in csv.DictReader(file) if row["gain"]]
    assert drawn == pytest.approx([point["gain"] for point in points if point["baseline"] is not None])
    assert f"gain over {named}" in (Path("out") / "report.html").read_text().lower()


@pytest.mark.parametrize(
    ("baseline", "says"),
    [
        ("mode=fast", '"fast" is not a mode of this run; allowed: base, ccl, wan, joint'),
        ("algorithm=ring", "'algorithm' is not swept; allowed: mode"),
        ("wan", 'text such as "mode=wan" or "algorithm=ring"'),
    ],
)
def test_a_baseline_that_is_not_in_the_run_is_refused_with_what_is(baseline, says):
    with pytest.raises(ScenarioError) as error:
        load_scenario("paper", [Override("run.baseline", [baseline], "--baseline")])
    assert says in str(error.value)


@pytest.mark.parametrize("key", ["run.seed", "fabric.hash_seed"])
def test_a_seed_is_no_baseline(key):
    name, values = key.partition(".")[2], {"fabric.routing": "ecmp", f"sweep.{key}": [1, 2]}
    with pytest.raises(ScenarioError, match=rf"'{name}' has no baseline, as seeds are repetitions; allowed: mode$"):
        load_scenario(
            "paper",
            [
                Override("run.baseline", [f"{name}=1"], "--baseline"),
                *(Override(key, value, "") for key, value in values.items()),
            ],
        )


def test_a_value_of_a_swept_key_that_is_not_in_the_run_is_refused():
    values = {"run.baseline": ["chunk=3 MB"], "sweep.collective.chunk": ["1 MB", "8 MB"]}
    with pytest.raises(
        ScenarioError, match=r"3 MB.* is not a value of collective.chunk in this run; allowed: 1 MB blocks, 8 MB blocks"
    ):
        load_scenario("paper", [Override(key, value, key) for key, value in values.items()])


@pytest.mark.parametrize(("key", "is_quantity"), [("run.seed", False), ("fabric.hash_seed", False),
                                                  ("collective.pieces", True)])  # fmt: skip
def test_the_answer_tells_how_the_mean_goes_along_a_quantity_but_not_along_seeds(
    tmp_path, monkeypatch, capsys, key, is_quantity
):
    monkeypatch.chdir(tmp_path)
    values = ["--set", "collective.kind=broadcast", "--set", "fabric.routing=ecmp", "--set", "fabric.border_routers=2"]
    run("--engine", "model", "--modes", "base", "--collectives", 40, *values, "--sweep", f"{key}=1,2,9", "--no-report")
    assert ("the mean rises" in (out := capsys.readouterr().out) or "the mean falls" in out) is is_quantity


@pytest.mark.parametrize(
    ("modes", "is_told"), [(("base",), False), (("base", "wan"), False), (("base", "ccl"), True), (("joint",), True)]
)
def test_the_objective_of_a_ring_is_told_where_a_mode_chooses_rings(modes, is_told):
    (config,) = scenario_of(f"[collective]\nring = 'slowest edge'\n[run]\nmodes = {[*modes]}\n").configurations()
    assert ("ring slowest edge" in config.label) is is_told


def test_a_label_names_no_key_that_its_configuration_does_not_use():
    """Those of tunnels have no effect where the routing has none, a hash seed none but for ECMP."""
    values = {
        **{"sweep.fabric.routing": ["single", "ecmp", "te"], "te.every": 3, "te.pieces": 8, "te.demand": "measured"},
        **{"fabric.hash_seed": 7, "run.modes": ["base"]},
    }
    overrides = [Override(key, value, key) for key, value in values.items()]
    labels = {dict(one.at)["fabric.routing"]: one.label for one in load_scenario("paper", overrides).configurations()}
    assert {routing: "te every 3" in label for routing, label in labels.items()} == {
        "single": False, "ecmp": False, "te": True,
    }  # fmt: skip
    assert [" te " in f" {labels[routing]} " for routing in ("single", "ecmp")] == [False, False]
    assert {routing for routing, label in labels.items() if "hash seed 7" in label} == {"ecmp"}
    assert "te pieces 8" in labels["te"] and "te demand measured" in labels["te"]
    (routed,) = load_scenario("paper", [*overrides[1:], Override("fabric.routing", "te", "--set"),
                                        Override("run.modes", ["wan"], "--modes")]).configurations()  # fmt: skip
    assert "te every" not in routed.label  # a mode that chooses the paths itself


def test_swept_jobs_are_told_once_beside_a_table_and_by_what_differs_in_its_rows():
    train, infer = {"name": "train", "ranks": [0, 1, 4, 5]}, {"name": "infer", "ranks": [2, 6], "kind": "sendrecv"}
    jobs = [[train], [train, infer | {"size": "1 MB"}], [train | {"count": 2}, infer | {"size": "8 MB"}]]
    configs = load_scenario("paper", [Override("sweep.job", jobs, "")]).configurations()
    common, own = labels_in_table(configs)
    assert own == [
        "1 job, train once",
        "2 jobs, train once, infer 1 MB",
        "2 jobs, train 2 times, infer 8 MB",
    ]
    assert common.endswith("train on GPUs 0,1,4,5, infer sendrecv on GPUs 2,6") and "8 GPUs" in common


def test_jobs_that_all_rows_have_are_not_shortened():
    jobs = [{"name": "train", "ranks": [0, 1, 4, 5]}, {"name": "infer", "ranks": [2, 6]}]
    swept = [Override("job", jobs, ""), Override("sweep.run.seed", [1, 2], "")]
    configs = load_scenario("paper", swept).configurations()
    common, own = labels_in_table(configs)
    assert common == "" and all("train on GPUs 0,1,4,5" in one for one in own)


def test_each_group_of_parallel_links_is_told_wherever_it_is_in_the_table():
    cables = [["s0b0", "s1b0"], ["s0b1", "s1b1"], ["s1b0", "s0b0"]]
    links = " (2 parallel links) ".join(["s0b0-s1b0", "s0b1-s1b1"])
    assert f"own WAN {links}, 10 us" in label(**{"fabric.wan": {"links": [cables[0], *cables[:2]]}})
    assert "own WAN s0b0-s1b0 s0b1-s1b1 s1b0-s0b0#2 (parallel), " in label(**{"fabric.wan": {"links": cables}})


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"fabric.border_routers": 1, "fabric.wan": {"links": [["s0b0", "s1b0"]] * 2}},
            ["s0b0-s1b0 (2 parallel links)"],
        ),
        ({"fabric.wan": "five-router"}, ["five-router"]),
        ({}, []),
        ({"fabric.gpus": [8]}, []),
        ({"sweep.fabric.wan": ["mesh", "five-router"]}, []),  # as the axis or the lines have it
    ],
)
def test_titles_of_figures_have_the_wan_where_it_is_not_the_default(keys, told):
    one, *_ = scenario(**keys).configurations()
    found = conditions_of_all(one, DEFAULTS)
    assert [words.removeprefix("own WAN ") for words in found if words.startswith(("own", "five", "mesh"))] == told


def test_a_trace_is_named_by_its_path_from_where_the_command_runs(tmp_path: Path, monkeypatch) -> None:
    """In the label, the note, the figure and messages alike; in a label from elsewhere by its folder and name."""
    folder = tmp_path / "mine"
    (folder / "traces").mkdir(parents=True)
    links = build_fabric(FabricSpec(gpus_per_site=(2, 2))).links
    rows = "".join(f"2026-03-02T06:00:00Z,{link.name},10 Gbit/s\n" for link in links)
    (folder / "traces/t.csv").write_text(f"time,link,rate\n{rows}")
    keys = {"conditions.sampler": "trace", "collective.count": 1, "fabric.gpus": 4}
    text = '[fabric]\ngpus = 4\n[collective]\ncount = 1\n[conditions]\nsampler = "trace"\ntrace = "{}"\n'
    (folder / "s.toml").write_text(text.format("traces/t.csv"))
    (folder / "near.toml").write_text(text.format("t.csv"))
    (folder / "traces/near.toml").write_text(text.format("t.csv"))
    for at, name, file, shown in (
        (folder, "s.toml", "traces/t.csv", "traces/t.csv"),
        (folder / "traces", "near.toml", "t.csv", "t.csv"),
        (tmp_path, "mine/s.toml", "mine/traces/t.csv", "mine/traces/t.csv"),
        (Path("/"), str(folder / "s.toml")[1:], str(folder / "traces/t.csv")[1:], str(folder / "traces/t.csv")[1:]),
        (Path(__file__).parent, str(folder / "s.toml"), str(folder / "traces/t.csv"), "traces/t.csv"),
    ):
        monkeypatch.chdir(at)
        configs = load_scenario(name).configurations()
        assert f", trace {shown}" in configs[0].label and configs[0].trace.path == Path.cwd() / file
        (note,) = file_notes.notes_on(configs)
        assert note.startswith(f"the trace {shown}: it begins at")
        assert words("conditions.trace", str(configs[0].trace.path)) == shown
        assert words_of({"name": "load", "trace": str(configs[0].trace.path)}) == f"load of {shown}"
    monkeypatch.chdir(folder)
    (folder / "traces/t.csv").write_text("time,link,rate\n0,none,1\n")
    with pytest.raises(ScenarioError, match=r"conditions\.trace: traces/t\.csv:2: "):
        load_scenario("s.toml", [Override(key, value, key) for key, value in keys.items()])
