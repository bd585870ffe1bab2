"""The command run.py with the model engine: its output, its files and its error messages."""

import csv
import html
import json
import re
import tomllib

import pytest

from analysis.results.reader import load, open_run
from scenarios.experiment import command

POINT_KEYS = ["engine", "mode", "gpus", "chunk_bytes", "pieces", "wan_delay_s", "collectives", "seed"]
POINT_KEYS += ["mean_s", "total_s"]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run the command in an empty folder and return its output; fail if the exit status differs from `status`."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, status=0):
        assert command.run(["--engine", "model", *map(str, arguments)]) == status
        return capsys.readouterr()

    return run


@pytest.fixture
def points(run):
    """Run the command and return the points of its JSON output."""
    return lambda *arguments: json.loads(run(*arguments, "--json").out)["points"]


def csv_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_without_a_scenario_the_command_runs_the_paper_and_writes_a_complete_run_folder(run, tmp_path):
    done = run()
    (folder,) = (tmp_path / "results").iterdir()
    assert folder.name.startswith("paper-20") and str(folder.relative_to(tmp_path)) in done.out
    modes = [line for line in done.out.splitlines() if line.startswith("model  ")]
    assert len(modes) == 4 and all(" 100,000 " in line for line in modes)
    assert "base > " in done.out and "(open)" not in done.out  # 100,000 collectives decide each of the paper's claims
    files = {"scenario.toml", "provenance.json", "settings.json", "collectives.parquet", "summary.csv", "log.txt"}
    files.add("sentences.json")
    assert {path.name for path in folder.iterdir()} == files | {"figures", "report.html"}
    figures = {path.stem for path in (folder / "figures").iterdir()}
    assert figures == {"paper", "paper-cdf", "paper-timeline", "paper-fabric"}
    lines = done.err.splitlines()  # one plain line per finished point, and one for slow drawing
    assert sum(", mean " in line for line in lines) == 4
    # On a busy machine, what takes longer than eight seconds is told meanwhile.
    assert all(line.startswith(("[", "report: ")) or line.endswith(" s so far") for line in lines)


def test_a_run_without_a_report_has_all_other_files_and_gets_its_report_on_resume(run, tmp_path):
    for out, options in (("with", ()), ("without", ("--no-report",))):
        run("--collectives", 4, "--modes", "base", *options, "--out", out)
    there, lacks = ({path.name for path in (tmp_path / out).iterdir()} for out in ("with", "without"))
    assert there - lacks == {"figures", "report.html"} and lacks < there
    run("--resume", "without")
    assert {path.name for path in (tmp_path / "without").iterdir()} == there


def test_a_sweep_may_mix_a_number_and_a_list(run, tmp_path):
    (tmp_path / "mixed.toml").write_text('[sweep]\n"fabric.leaves" = [2, [1, 2]]\n')
    run("mixed.toml", "--collectives", 30, "--modes", "base", "--out", "there")
    assert load(tmp_path / "there").groupby("setting")["fabric.leaves"].unique().str[0].to_list() == ["2", "[1, 2]"]


def test_with_json_stdout_is_exactly_one_object(run):
    answer = json.loads(run("--collectives", 30, "--json", "--no-report", "--out", "there").out)
    assert answer["answer"].startswith("base, ccl, wan and joint compared over 30 AllGathers each (timing model)")
    assert list(answer) == ["run", "answer", "points", "comparisons", "ecmp"] and answer["run"] == "there"
    assert [point["mode"] for point in answer["points"]] == ["base", "ccl", "wan", "joint"]
    assert all(list(point)[:13] == [*POINT_KEYS, "gain", "baseline", "gain_vs_base"] for point in answer["points"])
    base = answer["points"][0]
    assert base["gain_vs_base"] == 0 and base["total_s"] == pytest.approx(30 * base["mean_s"])
    for point in answer["points"]:
        assert point["gain"] == point["gain_vs_base"] == pytest.approx(1 - point["total_s"] / base["total_s"])
        assert point["baseline"] == (None if point is base else "base")


def test_running_the_resolved_scenario_reproduces_the_results(points, tmp_path):
    options = ("--gpus", "6,8", "--wan-delay", "1 ms", "--seed", 7, "--set", "conditions.sampler=markov")
    first = points(*options, "--collectives", 20, "--no-report", "--out", "first")
    assert points("first/scenario.toml", "--no-report", "--out", "again") == first
    for name in ("scenario.toml", "summary.csv"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_a_sweep_spans_every_combination_and_each_equals_its_single_run(run):
    model = ("--modes", "base,joint", "--collectives", "20", "--no-report")
    run("--seed", "3,4", "--gpus", "4,2+3", "--sweep", "conditions.sampler=uniform,markov", *model, "--out", "all")
    found = open_run("all")
    assert [tuple(setting["swept"].values()) for setting in found.settings] == [
        (gpus, sampler, seed) for gpus in ([2, 2], [2, 3]) for sampler in ("uniform", "markov") for seed in (3, 4)
    ]
    rows = found.collectives
    assert rows.groupby(["setting", "mode"]).size().to_list() == [20] * 16
    run("--seed", "4", "--gpus", "2+3", "--set", "conditions.sampler=markov", *model, "--out", "one")
    assert rows[rows.setting == 7].completion_s.to_list() == load("one").completion_s.to_list()


@pytest.mark.parametrize("modes", ["joint,base", "joint"])
def test_the_summary_and_the_figures_data_agree_with_the_json_output(points, tmp_path, modes):
    """This includes intervals, and the site sizes of fabrics with equally many GPUs; null is an empty field."""
    found = points("--gpus", "16,4+4+4+4", "--modes", modes, "--collectives", 200, "--out", "there")
    flat = [{name: value for name, value in point.items() if name != "critical_path"} for point in found]
    as_text = [{name: "" if value is None else str(value) for name, value in point.items()} for point in flat]
    assert as_text == csv_of(tmp_path / "there/summary.csv")
    assert {(point["setting"], point["gpus_per_site"]) for point in found} == {(0, "8+8"), (1, "4+4+4+4")}
    assert all(point["total_low_s"] < point["total_s"] < point["total_high_s"] for point in found)
    assert all((point["gain_vs_base"] is None) == (point["gain_low"] is None) == (modes == "joint") for point in found)
    assert {
        (row["gpus"], row["mode"], float(row["total_s"])) for row in csv_of(tmp_path / "there/figures/run.csv")
    } == {(p["gpus_per_site"].replace("8+8", "16"), p["mode"], p["total_s"]) for p in found}


@pytest.mark.parametrize("kind", ["allgather", "alltoall"])
def test_the_critical_path_in_json_adds_up_to_the_first_collectives_completion_time(points, kind):
    found = points("--set", f"collective.kind={kind}", "--collectives", 30, "--no-report", "--out", "there")
    rows = load("there").query("collective == 0").set_index("mode")
    links = {f"{link['src']}>{link['dst']}" for link in open_run("there").settings[0]["fabric"]["links"]}
    for point in found:
        path = point["critical_path"]
        assert path.keys() <= links
        assert list(path.values()) == sorted(path.values(), reverse=True)
        assert sum(path.values()) == pytest.approx(rows.completion_s[point["mode"]], rel=1e-12)


@pytest.mark.parametrize("chunk", ["8 MB", "1 MB"])
def test_the_papers_claims_are_checked_only_for_the_papers_own_configurations(run, tmp_path, chunk):
    done = run("--collectives", 12, "--chunk", chunk, "--out", "there")
    assert ("paper's claims" in done.out) == (chunk == "8 MB")
    report = html.unescape((tmp_path / "there/report.html").read_text())
    assert ("paper's claims" in report) == (chunk == "8 MB")
    assert "base" in done.out.split("\n\n")[1]  # the order of the modes is printed in either case


@pytest.mark.parametrize("count", [1, 500])
def test_constant_times_and_series_too_short_for_an_interval_give_results_without_nan(points, tmp_path, count):
    """Constant times are exact, however few they are; those of drawn conditions are not."""
    steady = ("--set", "conditions.wan_rate=40 Gbit/s", "--set", "conditions.intra_rate=40 Gbit/s")
    found = points(*steady, "--collectives", count, "--out", "there")
    # Seven steps of 1.6 ms each, whatever the ring, plus the accumulated delays.
    assert all(point["mean_s"] == pytest.approx(7 * 1.6e-3, rel=0.02) for point in found)
    assert all(point["gain_vs_base"] == pytest.approx(0, abs=0.01) for point in found)
    points("--collectives", count, "--out", "drawn")
    for where, is_exact in (("there", True), ("drawn", False)):
        text = (tmp_path / where / "summary.csv").read_text()
        figures = [*(tmp_path / where / "figures").glob("*.csv")]
        assert figures and not [one for one in figures if "nan" in one.read_text()] and "nan" not in text
        assert ("too few collectives for an interval" in text) == (count < 60 and not is_exact)


def test_a_dry_run_prints_the_plan_and_writes_nothing(run, tmp_path):
    done = run("fig5a", "--dry-run")
    assert tomllib.loads(done.out)["collective"]["count"] == 100_000  # the output is a runnable scenario
    assert "1,600,000 collectives" in done.out
    answer = json.loads(run("fig5a", "--dry-run", "--json").out)
    assert answer["run"] is None
    assert [point["mean_s"] for point in answer["points"]] == [None] * 16
    (links,) = answer["links"]
    assert links["settings"] == [0, 1, 2, 3]
    # Two sites with 8 GPUs and 2 border routers: 8 * 7 + 2 * 8 * 2 links each, plus 2 * 2 between them, both ways.
    assert len(set(links["names"])) == 2 * (56 + 32) + 8
    for name in ("s0b1>s1b0", "g15>g14", "g0>s0b1", "s1b1>g8"):
        assert name in links["names"] and re.search(rf"\b{name}\b", done.out)
    assert list(tmp_path.iterdir()) == []


def test_a_wan_link_that_flows_can_share_is_named_before_the_run_and_in_the_results(run, tmp_path):
    links = '[["s0b0","X"],["s2b0","X"],["X","Y"],["Y","s1b0"],["Y","s3b0"]]'
    wan = f'wan = {{routers = ["X", "Y"], links = {links}}}'
    (tmp_path / "four.toml").write_text(f"[fabric]\ngpus = [2, 2, 2, 2]\nborder_routers = 1\n{wan}\n")
    planned = run("four.toml", "--modes", "base,wan", "--dry-run", "--json")
    assert "run.py: in base and wan flows can share the links X>Y" in planned.err and "X>Y" in planned.err
    assert [p["shared_links"] for p in json.loads(planned.out)["points"]] == [["X>Y", "Y>X"]] * 2
    done = run("four.toml", "--modes", "base,wan", "--collectives", 200, "--json", "--out", "there")
    assert done.err.startswith(planned.err)
    assert [p["shared_links"] for p in json.loads(done.out)["points"]] == [["X>Y", "Y>X"]] * 2
    assert [row["shared_links"] for row in csv_of(tmp_path / "there/summary.csv")] == ["X>Y Y>X"] * 2
    (setting,) = json.loads((tmp_path / "there/settings.json").read_text())
    assert setting["shared_links"] == {"base": ["X>Y", "Y>X"], "wan": ["X>Y", "Y>X"]}
    assert "X&gt;Y" in (tmp_path / "there/report.html").read_text().partition("<h2>Figures")[0]
    other = run("--dry-run", "--json")  # the paper's two crossings have opposite directions
    assert "can share" not in other.err and "shared_links" not in other.out


def test_a_greedy_path_choice_is_announced_when_there_are_too_many_paths_to_compare(run):
    few = run("--dry-run", "--gpus", "4", "--set", "collective.kind=alltoall")
    assert "greedily" not in few.err
    many = run("--dry-run", "--gpus", "4,8", "--set", "collective.kind=alltoall")
    (line,) = [line for line in many.err.splitlines() if "greedily" in line]
    assert line.startswith("run.py: 8 GPUs") and "in wan and joint" in line and "1,024" in line


def test_a_heuristic_ring_search_in_large_sites_is_announced_with_its_gap_to_the_bound(capsys):
    arguments = ["fig4a", "--engine", "model", "--dry-run", "--chunk", "8 MB"]
    assert command.run([*arguments, "--gpus", "26"]) == 0
    said = capsys.readouterr().err
    found = re.search(r"26 GPUs.*rings of ccl and joint are searched for.* slowest edge is at most ([^ ]+) %", said)
    assert found and float(found[1]) < 5
    for others in (["--gpus", "24"], ["--gpus", "26", "--modes", "base,wan"]):
        assert command.run([*arguments, *others]) == 0
        assert "searched" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--collectives", "1.5"], "--collectives: 1.5 is not a whole number"),
        (["--seed", "1,x"], '--seed: "x" is not a number'),
        (["--modes", "base,jont"], "did you mean joint?"),
        (["--modes", ""], '--modes: "" is not allowed; allowed: base, ccl, wan, joint, or'),
        (["--gpus", "3+5,9"], "--gpus: 9 GPUs do not divide over 2 sites"),
        (["--gpus", "8,"], '--gpus: element 2 of the list "8," is empty; allowed: 8'),
        (["--chunk", "8 MB,0 MB"], "zero"),
        (["--wan-delay", "nan us"], "finite"),
        (["--set", "fabric.gpu=8"], "did you mean gpus?"),
        (["--set", "fabric"], "--set: "),
        (["--set", "transport=1"], "--set transport: "),
        (["--set", 'fault=[{at="collective 3", what="agent 9 killed"}]'], "--set fault[1].what: "),
        (["--sweep", "fabric.gpus=8,8"], "--sweep fabric.gpus: "),
        (["--jobs", "0"], "--jobs: 0 is not allowed"),
        (["--engine", "simulation"], "allowed: model, emulation, both"),
        (["--colectives", "3"], "did you mean --collectives?"),
        (["--clock", "wall", "--jobs", "2"], "one at a time"),
        (["--clock", "wall", "--rate-scale", "1/900000", "--chunk", "1kB"], "less than a byte"),
        (["fig4"], "fig4a, fig4b, fig5a, fig5b, geopipe, nobel-us, paper"),
        (["nowhere.toml"], "nowhere.toml: it cannot be read"),
        (["--out", "full"], "--out: full is not empty"),
        (["--out", "full/file"], "--out: full/file is not a folder"),
        (["--out", "full/file/below"], "--out: "),
        (["--out", "/proc/here"], "--out: "),
        (["--out", "x" * 300], "--out: "),
        (["--out", "a\udcff"], "--out: "),
        (["--out", "a\nb"], "--out: "),
        (["a\udcff.toml"], "cannot be read"),
        (["--set", "a\udcff=1"], "unknown table"),
        (["--set", "conditions.sampler=trace", "--set", "conditions.trace=a\udcff"], "printable"),
    ],
)
def test_invalid_usage_ends_with_one_sentence_and_status_2_before_anything_runs(
    tmp_path, monkeypatch, capsys, arguments, says
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    try:
        status = command.run(arguments)
    except SystemExit as error:
        status = error.code
    said = capsys.readouterr()
    assert status == 2
    assert says in said.err
    assert len(said.err.splitlines()) == 1
    assert said.out == ""
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "full"]


def test_all_mistakes_in_file_and_options_are_reported_together(run, tmp_path):
    (tmp_path / "my.toml").write_text(
        '[fabric]\ngpus = 7\nleafs = 2\n[run]\nseed = true\n[collective]\nchunk = "8 XB"\n'
    )
    done = run("my.toml", "--collectives", "-3", "--jobs", "none", "--set", "x.y=1", status=2)
    wrong = ["my.toml: fabric.leafs:", "--set x.y:", "my.toml: fabric.gpus:", "my.toml: collective.chunk:"]
    wrong += ["--collectives:", "my.toml: run.seed:", "--jobs:"]
    assert [next((w for w in wrong if line.startswith(w)), line) for line in done.err.splitlines()] == wrong
