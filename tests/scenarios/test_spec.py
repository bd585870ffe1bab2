"""The scenario language: reading, error messages that name the wrong key, and round trips without loss through TOML,
JSON and the stored run folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.experiment.stored_settings import settings_as_json
from scenarios.spec import ScenarioError
from scenarios.spec.keys import KEYS, MAX_CONFIGURATIONS
from scenarios.spec.load import (
    MAX_BYTES,
    Override,
    assignment,
    axis,
    load_scenario,
    of_its_time,
    resolved,
    scenario_of,
    toml_or_text,
)
from scenarios.spec.reference import reference
from scenarios.spec.scenario import DEFAULTS, configuration, from_json, plain_values, to_json, values_of
from tests.conftest import PROJECT
from topologies.fabric.fabric import FabricSpec, build_fabric


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return a function that loads a scenario from the text of its file, with assignments as by --set."""
    monkeypatch.chdir(tmp_path)

    def load(text, *assignments):
        Path("my.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_scenario("my.toml", [assignment(a) for a in assignments])

    return load


def mistakes(load, text, *assignments):
    with pytest.raises(ScenarioError) as refusal:
        load(text, *assignments)
    assert all("\n" not in line for line in refusal.value.mistakes)
    return list(refusal.value.mistakes)


# --- reading and writing --------------------------------------------------------------------------------------------


def test_an_empty_scenario_equals_the_paper_except_for_its_name_ring_objective_and_pieces(load):
    empty, paper = values_of(load("")), values_of(load_scenario("paper"))
    assert empty.pop("name") == "my"
    assert paper.pop("name") == "paper"
    assert (empty.pop("collective.ring"), paper.pop("collective.ring")) == ("cycle time", "slowest edge")
    assert (empty.pop("collective.pieces"), paper.pop("collective.pieces")) == (None, 1)
    assert empty == paper


@pytest.mark.parametrize(
    ("names", "key", "values"),
    [
        (("fig4a", "fig5a"), "collective.chunk", [8_000_000, 16_000_000, 32_000_000, 64_000_000]),
        (("fig4b", "fig5b"), "conditions.wan_delay", [10e-6, 100e-6, 1e-3, 10e-3]),
    ],
)
def test_the_bundled_figure_scenarios_have_the_papers_parameters(names, key, values):
    for name, gpus in zip(names, (8, 16), strict=True):
        scenario = load_scenario(name)
        assert (scenario.gpus, scenario.collective.count) == (gpus, 100_000)
        assert [setting.value(key) for setting in scenario.configurations()] == values
        first = scenario.configurations()[0]
        assert first.collective.chunk_bytes == (64_000_000 if key == "conditions.wan_delay" else 8_000_000)
        assert first.conditions.wan_delay_s == 10e-6


WAN = 'wan = { routers = ["A"], links = [["s0b0", "A"], ["A", "s1b0"]] }'
TEXTS = [
    '[fabric]\ngpus = [3, 5]\nleaves = [1, 2]\nwan = "five-router"',
    f"[fabric]\nborder_routers = 1\n{WAN}",
    "[fabric]\ngpus = [2, 3, 4]",
    '[conditions]\nsampler = "gaussian"\nmean = 0.4\ndeviation = 1',
    '[conditions]\nsampler = "markov"\nmean_stay = 3',
    '[conditions]\nsampler = "ar1"\ncoefficient = 0.999999',
    '[conditions]\nevery = "100 ms"\ninterval = "0.5 ms"',
    '[sweep]\n"conditions.every" = ["1 us", "1000 s"]\n"conditions.interval" = ["3 s", "2 ms"]',
    '[conditions.links]\nwan = {rate = "1-2 Gbit/s"}\n"g0>*" = {delay = "0 s", rate = "5 kbit/s"}',
    '[sweep]\n"conditions.links" = [{}, {wan = {delay = "5 ms"}, "s0b0>s1b0" = {rate = "1-2 kbit/s"}}]',
    '[conditions]\nintra_rate = "40 Gbit/s"\nwan_delay = "1.5 ms"',
    '[sweep]\n"fabric.gpus" = [4, [2, 3], 8]\n"collective.chunk" = ["1 B", "1 MiB"]',
    '[sweep]\ncollective.chunk = ["1 MB"]\nconditions.wan_delay = ["1 us", "2 us"]',
    '[sweep]\n"fabric.wan" = ["mesh", "five-router"]\n"run.seed" = [1, 2]',
    '[sweep]\nfault = [[], [{at = "collective 3", what = "agent 1 slow 2.5x", for = "1 collective"}]]',
    '[conditions]\nmean = 0.25\n[sweep]\n"conditions.sampler" = ["uniform", "gaussian"]',
    '[run]\nclock = "wall"\nrate_scale = "1/1000"\n[transport]\nline_rate = false',
    '[[fault]]\nat = "40 ms into collective 12"\nwhat = "agent 3 killed"\n'
    '[[fault]]\nat = "collective 1"\nwhat = "link s0b0-s1b0 loss 1 %"\nfor = "1 collective"',
    '[fabric]\nbuffer = "1 MB"\n[transport]\nqueue = "fifo"\ncongestion_control = "dctcp"\necn_threshold = "65 kB"',
    '[transport]\ncongestion_control = { intra = "reno", wan = "bbr" }',
    '[sweep]\n"transport.congestion_control" = ["bbr", { wan = "bbr" }, { intra = "dctcp", wan = "cubic" }]',
    '[transport]\nqueue = "fifo"\n[sweep]\n"fabric.buffer" = ["9014 B", "64 KiB", "2 GB"]',
    '[fabric]\nbuffer = "1 MB"\n[transport]\nqueue = "fifo"\n[sweep]\n"fabric.wan_loss" = [0, 1e-9, 0.1]',
    'name = "a-b_c.d"\n[run]\nmodes = ["joint"]\nseed = 9223372036854775807',
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_scenario_survives_being_written_as_toml_sent_as_json_and_stored(load, text):
    scenario = load(text)
    Path("again.toml").write_text(resolved(scenario))
    assert load_scenario("again.toml") == scenario
    stored = json.loads(json.dumps(settings_as_json(scenario)))
    for setting, kept in zip(scenario.configurations(), stored, strict=True):
        for again in (from_json(to_json(setting)), configuration(kept["values"], kept["swept"])):
            assert (again, again.at, again.label) == (setting, setting.at, kept["label"])


def test_a_stored_configuration_without_newer_keys_gets_their_defaults():
    (stored,) = settings_as_json(load_scenario("paper", [assignment("run.seed=7")]))
    older = {key: value for key, value in stored["values"].items() if not key.startswith(("transport.", "run.clock"))}
    assert configuration(older) == load_scenario("paper", [assignment("run.seed=7")])


def test_configurations_are_built_once_and_their_labels_name_the_swept_values(load):
    scenario = load('[sweep]\n"fabric.gpus" = [8, [3, 5]]\n"conditions.intra_delay" = ["1 us"]\n"run.seed" = [1, 2]')
    first, *_, last = scenario.configurations()
    assert len(scenario.configurations()) == 4 and scenario.configurations()[0] is first
    assert (first.label, last.label) == (
        "8 GPUs, 8 MB blocks, 64 MB buffer, 10 us, intra delay 1 us, seed 1",
        "3+5 GPUs, 8 MB blocks, 64 MB buffer, 10 us, intra delay 1 us, seed 2",
    )
    assert last.columns == {"conditions.intra_delay_s": 1e-6}
    assert (last.fabric.gpus_per_site, last.run.seed, last.sweep) == ((3, 5), 2, ())


def trace_text(links, times=(0, 5)):
    return "time,link,rate\n" + "".join(f"{t},{link},40 Gbit/s\n" for t in times for link in links)


LINKS = [link.name for link in build_fabric(FabricSpec(gpus_per_site=(2, 2), border_routers=1)).links]
TRACE = """
[fabric]
gpus = 4
border_routers = 1
[conditions]
trace = "t.csv"
[collective]
count = 6
"""


@pytest.mark.parametrize("samplers", ['conditions.sampler="trace"', 'sweep.conditions.sampler=["uniform", "trace"]'])
def test_a_trace_path_is_relative_to_its_scenario_and_is_written_as_an_absolute_path(load, tmp_path, samplers):
    (tmp_path / "t.csv").write_text(trace_text(LINKS))
    scenario = load(TRACE, samplers)
    traces = {s.conditions.sampler: s.conditions.trace for s in scenario.configurations()}
    assert traces.pop("trace") == tmp_path / "t.csv" and not any(traces.values())
    assert load(resolved(scenario)) == scenario
    assert [from_json(to_json(setting)) for setting in scenario.configurations()] == list(scenario.configurations())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("", "t.csv"),
        ("time,link\n", "t.csv"),
        (trace_text(LINKS[1:]), "no rate at time 0"),
        (b"time,link,rate\n\xff\xfe", "t.csv"),
        (trace_text(LINKS) + "6,g0>g9,40 Gbit/s\n", "g0>g9"),
        (
            trace_text(LINKS, times=(0, 3)),
            "sampler=trace: collective.count: 6 is too large: the trace covers 4",
        ),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_refused(load, tmp_path, content, says):
    if content is not None:
        (tmp_path / "t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert says in "\n".join(mistakes(load, TRACE, "conditions.sampler=trace"))


# --- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("[fabrik]\ngpus = 8", "fabrik", "did you mean [fabric]?"),
        ("fabric = 8", "fabric", "fabric.gpus"),
        ("[fabric]\ngpu = 8", "fabric.gpu", "unknown key of [fabric]"),
        ("[fabric]\ngpus = true", "fabric.gpus", "true is a boolean"),
        ("[fabric]\ngpus = [4, true]", "fabric.gpus", "true is a boolean"),
        ("[fabric]\ngpus = -8", "fabric.gpus", "-8 is too small"),
        ("[fabric]\ngpus = 7", "fabric.gpus", "7 GPUs do not divide over 2 sites"),
        ("[fabric]\ngpus = [1]", "fabric.gpus", "1 GPU alone has nothing to send to; allowed: 2 or more in all"),
        ("[fabric]\ngpus = {a = 1}", "fabric.gpus", "{a = 1} is a table"),
        ("[fabric]\ngpus = 0x" + "f" * 20_000, "fabric.gpus", "a number of 80000 bits is too large"),
        ("[fabric]\ngpus = " + "9" * 20_000, None, "TOML"),
        ("[fabric]\nleaves = [1, 2, 3]", "fabric.leaves", "[1, 2, 3] has 3 for 2 sites; allowed: one number, or 2"),
        ("[fabric.wan]\nrouters = []", "fabric.wan", "links is missing"),
        ('[fabric.wan]\nlinks = [["s0b0", "s1b0"]]', "fabric.wan.links", "the WAN is not connected"),
        ('[fabric.wan]\nlinks = [["s0b0", "s1b9"]]', "fabric.wan.links", "s1b9"),
        ('[fabric.wan]\nrouters = ["A", "A"]\nlinks = [["s0b0", "A"]]', "fabric.wan.routers", "named twice"),
        ("[fabric.wan]\nlinks = 3\nkind = 1", "fabric.wan", 'unknown key "kind"'),
        ('[conditions]\nwan_rate = "10-100 GB"', "conditions.wan_rate", "wrong unit for a rate"),
        ('[conditions]\nwan_delay = "-1 us"', "conditions.wan_delay", "greater than zero"),
        ("[conditions]\nwan_delay = 1979-05-27", "conditions.wan_delay", "a date or a time"),
        ('[conditions]\nsampler = "gaussian"\nmean = nan', "conditions.mean", "not finite"),
        ('[conditions]\nsampler = "markov"\nmean_stay = 0.5', "conditions.mean_stay", "0.5"),
        ('[conditions.links]\nwna = {delay = "1 s"}', "conditions.links.wna", "did you mean wan"),
        ('[conditions]\nlinks = "wan"', "conditions.links", "a table of links"),
        ('[conditions]\nsampler = "ar1"\ncoefficient = 1', "conditions.coefficient", "0.999999"),
        ('[conditions]\nsampler = "trace"', "conditions.trace", "names no CSV file"),
        ('[collective]\nkind = "allreduced"', "collective.kind", "allowed: allgather, reducescatter"),
        ('[collective]\nchunk = "8 Mb"', "collective.chunk", "did you mean MB?"),
        ("[collective]\ncount = 0", "collective.count", "0 is too small"),
        ("[run]\nmodes = []", "run.modes", "the list is empty"),
        ('[run]\nmodes = ["base", 3]', "run.modes", "3 is a number"),
        ('[run]\nclock = "wall"\nrate_scale = "2"', "run.rate_scale", '"2"'),
        (
            '[fabric]\nbuffer = "1 MB"',
            "fabric.buffer",
            'transport.queue "fair": only a fifo queue has a size; allowed: transport.queue "fifo"',
        ),
        (
            '[fabric]\nbuffer = "9013 B"',
            "fabric.buffer",
            '"9013 B" is too small: a size must be between 9.014 kB and 2 GB',
        ),
        ('[fabric]\nbuffer = "2001 MB"', "fabric.buffer", '"2001 MB" is too large'),
        (
            '[transport]\ncongestion_control = "dctcp"\necn_threshold = "65 kB"',
            "transport.ecn_threshold",
            "65 kB needs a fabric.buffer",
        ),
        (
            '[fabric]\nbuffer = "65 kB"\n'
            '[transport]\nqueue = "fifo"\ncongestion_control = "dctcp"\necn_threshold = "65 kB"',
            "transport.ecn_threshold",
            "65 kB is not below the 65 kB of fabric.buffer; allowed: a threshold below",
        ),
        (
            '[transport]\ncongestion_control = { intra = "dctpc" }',
            "transport.congestion_control.intra",
            '"dctpc" is not known; allowed: cubic, reno, bbr, dctcp (did you mean dctcp?)',
        ),
        (
            '[transport.congestion_control]\nwam = "bbr"',
            "transport.congestion_control.wam",
            "unknown part of a congestion control, allowed: intra, wan (did you mean wan?)",
        ),
        ("[transport.congestion_control]", "transport.congestion_control", "is empty; allowed: the keys intra, wan"),
        (
            '[fabric]\ngpus = [4]\n[transport]\ncongestion_control = { wan = "bbr" }',
            "transport.congestion_control",
            "cubic within sites and bbr between them, but fabric.gpus has one site; allowed: one name",
        ),
        ("[fabric]\nwan_loss = 1e-5", "fabric.wan_loss", "1e-05 needs a fabric.buffer; allowed: both or 0"),
        ("[fabric]\nwan_loss = 1e-10", "fabric.wan_loss", "too small; allowed: 0, or a number from 1e-09 to 0.1"),
        ("[fabric]\nwan_loss = 1", "fabric.wan_loss", "1 is too large; allowed: 0, or a number"),
        ("[fabric]\nwan_loss = nan", "fabric.wan_loss", "nan is not finite"),
        ('[fabric]\nwan_loss = "1 %"', "fabric.wan_loss", "is not a number; allowed: 0, or a number"),
        ('name = "../etc"', "name", '"../etc"'),
        ('name = ".x"', "name", "the first a letter or digit"),
        ('[control]\ndelay = "0 s"', "control.delay", "between 1 ns and 1 s"),
        ('[conditions]\nwan_rate = "40"', "conditions.wan_rate", "or one rate"),
        ('[run]\nmodes = [""]', "run.modes", "allowed: base, ccl, wan, joint, or the name of a policy"),
        ('[[class]]\nname = "a"\npriority = 0\nceiling = 0', "class[1].ceiling", "0 is not allowed; allowed: a number"),
        (
            '[[class]]\nname = "a"\npriority = 0\nceiling = nan',
            "class[1].ceiling",
            "nan is not allowed; allowed: a number",
        ),
        ('[sweep]\nrun.seed = [1, 2]\n"run.seed" = [3]', "sweep.run.seed", "is given twice; allowed: once"),
        ('[sweep]\n"run.modes" = [["base"], ["joint"]]', "sweep.run.modes", "cannot be swept"),
        ('[sweep]\n"fabric.gpu" = [4]', "sweep.fabric.gpu", "unknown key of [fabric]"),
        ("[sweep]\nfabric = [4]", "sweep.fabric", "is a table and not a key"),
        ('[sweep]\n"collective.chunk" = ["8 MB", "8 MB"]', "sweep.collective.chunk", "twice"),
        ('[sweep]\n"fabric.gpus" = [8, 9]', "sweep.fabric.gpus", "9 GPUs do not divide"),
        ('[sweep]\nfault = [[{at = "collective 3", what = "agent 9 killed"}]]', "sweep.fault[1].what", "agent 9"),
        ('[collective]\nchunk = "8 MB"\n[sweep]\n"collective.chunk" = ["8 MB"]', "collective.chunk", "given twice"),
        ("[fabric]\ngpus = 8\n[fabric]", None, "TOML"),
        ("x = " + "[" * 5000, None, "nested too deeply"),
        (b"\xff[fabric]", None, "UTF-8"),
        ("#" * (MAX_BYTES + 1), None, "too large"),
        ("a." * 2000 + "b = 1", "a", "unknown"),
    ],
)
def test_an_invalid_scenario_is_refused_with_the_key_and_the_allowed_values(load, text, place, says):
    start = "my.toml: " if place is None else f"my.toml: {place}: "
    assert any(line.startswith(start) and says in line for line in mistakes(load, text)), mistakes(load, text)


def test_only_a_misspelt_key_of_a_sweep_has_another_one_suggested(load):
    for key, suggested in (("fabric.grain", False), ("fabric.rail", True)):
        (line,) = mistakes(load, f'[sweep]\n"{key}" = ["logical", "physical"]')
        assert ("did you mean" in line) == suggested, line


def test_a_sweep_over_the_limit_is_refused_without_building_its_configurations(load):
    sizes = ", ".join(f'"{n} MB"' for n in range(1, 51))
    delays = ", ".join(f'"{n} us"' for n in range(1, 51))
    sweep = f'[sweep]\n"collective.chunk" = [{sizes}]\n"conditions.wan_delay" = [{delays}]'
    (line,) = mistakes(load, sweep)
    assert "2,500" in line and f"{MAX_CONFIGURATIONS:,}" in line
    seeds = list(range(100))
    (line,) = mistakes(load, f'{sweep}\n"run.seed" = {seeds}\n"collective.emulated" = {[seed + 1 for seed in seeds]}')
    assert "25,000,000" in line  # counted without building the configurations


@pytest.mark.parametrize(
    ("text", "places"),
    [
        (
            '[fabric]\ngpus = 7\nwan = "star"\n[conditions]\nwan_rate = "2-1 Gbit/s"\n[run]\nseed = "x"\nsede = 1\n',
            ["run.sede", "fabric.gpus", "fabric.wan", "conditions.wan_rate", "run.seed"],
        ),
        (
            '[fabric]\nwan = "five-router"\ngpus = [2, 2, 2]\n[conditions]\nsampler = "trace"\n[run]\nmodes = ["bse"]',
            ["run.modes", "fabric.wan", "conditions.trace"],
        ),
    ],
)
def test_all_mistakes_of_a_file_are_reported_together(load, text, places):
    assert [line.split(": ")[1] for line in mistakes(load, text)] == places


def test_an_unreadable_or_irregular_scenario_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    for path, says in (
        (tmp_path / "none.toml", "cannot be read"),
        (tmp_path, "is a folder; allowed: a TOML file"),
        (tmp_path / "pipe.toml", "not a regular file"),
        (Path("/dev/zero"), "not a regular file"),
        (tmp_path / ("n" * 300 + ".toml"), "cannot be read"),
        (Path("a\x00b/c.toml"), "a\\x00b"),
        (Path("papr"), "did you mean paper?"),
    ):
        with pytest.raises(ScenarioError) as refusal:
            load_scenario(str(path))
        assert says in str(refusal.value)


# --- options --------------------------------------------------------------------------------------------------------


def test_the_value_of_an_assignment_is_toml_or_else_plain_text():
    assert assignment("run.seed=3").value == 3
    assert assignment("collective.chunk=8 MB").value == assignment('collective.chunk="8 MB"').value == "8 MB"
    assert assignment(' run.modes = ["base"] ').value == ["base"]
    assert assignment('sweep."collective.chunk"=["8 MB"]').key == "sweep.collective.chunk"
    assert toml_or_text("1\nc = 2") == "1\nc = 2"
    assert toml_or_text("[" * 10_000) == "[" * 10_000
    for read in (assignment, axis):
        with pytest.raises(ScenarioError, match=r"run\.seed:3"):
            read("run.seed:3")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("run.seed=1,2", [1, 2]),
        ("collective.chunk=8 MB, 16 MB", ["8 MB", "16 MB"]),
        ("fabric.gpus=[3, 5],8", [[3, 5], 8]),
        ("transport.line_rate=true,false", [True, False]),
        ('conditions.trace="a,b.csv"', ["a,b.csv"]),
        ("conditions.mean=", [""]),
    ],
)
def test_the_values_of_a_sweep_option_are_separated_by_commas(text, values):
    assert (axis(text).key, axis(text).value) == ("sweep." + text.partition("=")[0], values)


def test_a_stored_run_without_a_ring_objective_is_read_with_the_slowest_edge_objective(load):
    before = load("").with_values({"collective.ring": "slowest edge"})
    without = resolved(before).replace('ring = "slowest edge"\n', "")
    assert "ring" not in without
    assert scenario_of(of_its_time(without)).collective.ring == "slowest edge"
    assert of_its_time("ring = [") == "ring = ["
    for ring in ("cycle time", "sum"):
        assert scenario_of(of_its_time(resolved(load("", f"collective.ring={ring}")))).collective.ring == ring
    swept = load("", 'sweep.collective.ring=["sum", "cycle time"]')
    assert scenario_of(of_its_time(resolved(swept))) == swept
    values = plain_values(before)
    del values["collective.ring"]
    assert configuration(values).collective.ring == "slowest edge"


def test_options_override_the_values_of_the_scenario_file(load):
    swept = '[sweep]\n"collective.chunk" = ["8 MB", "9 MB"]'
    assert load(swept, "collective.chunk=1 MB").sweep == ()
    assert load('[collective]\nchunk = "1 MB"', 'sweep.collective.chunk=["2 MB"]').sweep[0].values == (2_000_000,)
    assert load("[run]\nseed = 4", "run.seed=5", "run.seed=6").run.seed == 6
    gaussian = load(
        '[conditions]\nsampler = "markov"\nmean_stay = 3', "conditions.mean=0.1", "conditions.sampler=gaussian"
    )
    assert (gaussian.conditions.sampler, gaussian.conditions.mean) == ("gaussian", 0.1)


def test_an_option_that_invalidates_another_key_is_named_as_it_was_typed(load):
    text = '[collective]\nkind = "allgather"\n'
    (line,) = mistakes(load, text, "collective.count=9", "collective.algorithm=tree")
    assert line.startswith('--set collective.algorithm: "tree" is not an algorithm of allgather; allowed: ring')
    (line,) = mistakes(load, text, "training.replicas=3", "collective.kind=training")
    assert line.startswith("--set training.replicas=3, --set collective.kind=training: training.pipeline: 3 replicas")
    (line,) = mistakes(load, text + 'algorithm = "tree"\n', "collective.count=9")
    assert line.startswith('my.toml: collective.algorithm: "tree" is not an algorithm')
    with pytest.raises(ScenarioError, match=r"--set collective\.size: is given together with --chunk; allowed"):
        load_scenario("paper", [Override("collective.chunk", "8 MB", "--chunk"), assignment("collective.size=8 MB")])


# --- the reference of all keys --------------------------------------------------------------------------------------


def test_the_reference_lists_every_key_with_its_allowed_values_and_default():
    ended = subprocess.run(
        [sys.executable, "-m", "scenarios.spec.reference"], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert ended.stdout == reference()
    cells = [line.split(" | ") for line in reference().splitlines() if line.startswith("| `")]
    rows = {row[0].strip("|` "): row for row in cells if len(row) == 5}
    assert list(rows) == list(KEYS)
    for key, (_, meaning, _, allowed, default) in rows.items():
        assert meaning.endswith(".") and allowed
        if default.strip(" |") == "none":
            assert not load_scenario("paper").value(key)
        elif key != "name":
            assert KEYS[key].kind.read(toml_or_text(default.strip(" |`"))) == DEFAULTS.value(key)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_scenario_may_have_a_byte_order_mark_and_the_line_ends_of_windows(tmp_path, encoding, ends):
    text = 'name = "Zürich"\n[collective]\nchunk = "1.5e-3 GB"\ncount = 1e3\n[conditions]\nwan_rate = "1_000 Mbit/s"\n'
    path = tmp_path / "marked.toml"
    path.write_bytes(text.replace("Zürich", "Zurich").replace("\n", ends).encode(encoding))
    found = load_scenario(str(path))
    assert found.name == "Zurich" and found.collective.chunk_bytes == 1_500_000
    assert found.collective.count == 1000 and isinstance(found.collective.count, int)
    assert found.conditions.wan_rate_bps == (10**9, 10**9) and found.notes == ()


def test_a_rate_or_size_that_is_rounded_is_told_with_its_key(tmp_path):
    path = tmp_path / "rounded.toml"
    path.write_text('[collective]\nchunk = "1.5 B"\n[conditions.links]\nwan = { rate = "1-1.0000000016 Gbit/s" }\n')
    found = load_scenario(str(path), [Override("conditions.intra_rate", "9043348420.68 bit/s", "--set")])
    chunk, links, rate = found.notes
    assert f'{path}: collective.chunk: "1.5 B" is rounded to whole bytes' == chunk
    assert links.endswith('conditions.links: "1-1.0000000016 Gbit/s" is rounded to whole bit/s')
    assert rate == '--set: "9043348420.68 bit/s" is rounded to whole bit/s'
    assert found.conditions.intra_rate_bps == (9_043_348_421, 9_043_348_421)
