"""Scenario files: what is read, every mistake named where it was made, and never anything raised but ScenarioError."""

import os
from pathlib import Path

import pytest

from scenarios.spec.checks import MAX_SETTINGS
from scenarios.spec.document import MAX_BYTES, ScenarioError, scenario_names
from scenarios.spec.load import assignment, load_scenario, resolved
from scenarios.spec.scenario import values_of


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load a scenario from the text of its file, with assignments as --set would make them."""
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


def test_an_empty_file_is_the_defaults_which_the_paper_spells_out(load):
    empty, paper = values_of(load("")), values_of(load_scenario("paper"))
    assert empty.pop("name") == "my"
    assert paper.pop("name") == "paper"
    assert empty == paper


@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_that_comes_along_loads_and_resolves_to_itself(load, name):
    scenario = load_scenario(name)
    assert scenario.name == name
    assert load(resolved(scenario)) == scenario


def test_the_figures_are_the_papers():
    for name, gpus, axis, values in (
        ("fig4a", 8, "collective.chunk", (8_000_000, 16_000_000, 32_000_000, 64_000_000)),
        ("fig5a", 16, "collective.chunk", (8_000_000, 16_000_000, 32_000_000, 64_000_000)),
        ("fig4b", 8, "conditions.wan_delay", (10e-6, 100e-6, 1e-3, 10e-3)),
        ("fig5b", 16, "conditions.wan_delay", (10e-6, 100e-6, 1e-3, 10e-3)),
    ):
        scenario = load_scenario(name)
        assert (scenario.gpus, scenario.collective.count) == (gpus, 100_000)
        assert [(a.key, a.values) for a in scenario.sweep] == [(axis, values)]
        assert len(scenario.settings()) == 4
    assert {s.collective.chunk_bytes for s in load_scenario("fig4b").settings()} == {64_000_000}
    assert {s.conditions.wan_delay_s for s in load_scenario("fig5a").settings()} == {10e-6}


WAN = 'wan = { routers = ["A"], links = [["s0b0", "A"], ["A", "s1b0"]] }'


@pytest.mark.parametrize(
    "text",
    [
        '[fabric]\ngpus = [3, 5]\nleaves = [1, 2]\nwan = "five-router"',
        f"[fabric]\nborder_routers = 1\n{WAN}",
        "[fabric]\ngpus = [2, 3, 4]",
        '[conditions]\nsampler = "gaussian"\nmean = 0.4\ndeviation = 1',
        '[conditions]\nsampler = "markov"\nmean_stay = 3',
        '[conditions]\nintra_rate = "40 Gbit/s"\nwan_delay = "1.5 ms"',
        '[sweep]\n"fabric.gpus" = [4, [2, 3], 8]\n"collective.chunk" = ["1 B", "1 MiB"]',
        '[sweep]\ncollective.chunk = ["1 MB"]\nconditions.wan_delay = ["1 us", "2 us"]',
        'name = "a-b_c.d"\n[run]\nmodes = ["joint"]\nseed = 9223372036854775807',
    ],
)
def test_what_a_scenario_may_say_survives_being_written_out(load, text):
    scenario = load(text)
    again = load(resolved(scenario), 'name="my"' if "name" not in text else 'name="a-b_c.d"')
    assert again == scenario


def trace_text(links, times=(0, 5)):
    return "time,link,rate\n" + "".join(f"{t},{link},40 Gbit/s\n" for t in times for link in links)


def link_names():
    from topologies.fabric.fabric import FabricSpec, build_fabric

    return [link.name for link in build_fabric(FabricSpec(gpus_per_site=(2, 2), border_routers=1)).links]


TRACE = """
[fabric]
gpus = 4
border_routers = 1
[conditions]
sampler = "trace"
trace = "t.csv"
[collective]
count = 6
"""


def test_a_trace_lies_relative_to_its_scenario_and_is_resolved_to_a_whole_path(load, tmp_path):
    (tmp_path / "t.csv").write_text(trace_text(link_names()))
    scenario = load(TRACE)
    assert scenario.conditions.trace == tmp_path / "t.csv"
    assert load(resolved(scenario)) == scenario


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("", "t.csv"),
        ("time,link\n", "t.csv"),
        (trace_text(link_names()[1:]), "no rate at time 0"),
        (trace_text(link_names())[:-8], "t.csv"),
        (b"time,link,rate\n\xff\xfe", "t.csv"),
        (trace_text(link_names()) + "6,g0>g9,40 Gbit/s\n", "g0>g9"),
        (trace_text(link_names()) + "6,g0>g1,0 Gbit/s\n", "zero"),
        (trace_text(link_names(), times=(0, 3)), "my.toml: collective.count: 6 is too large: the trace covers 4"),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_refused(load, tmp_path, content, says):
    if content is not None:
        (tmp_path / "t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert says in "\n".join(mistakes(load, TRACE))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[fabrik]\ngpus = 8", "my.toml: fabrik: is no table of a scenario"),
        ("[fabrik]\ngpus = 8", "did you mean fabric?"),
        ("gpus = 8", "is no table of a scenario"),
        ("fabric = 8", "fabric: is a table and no key: allowed is a key in it, fabric.gpus"),
        ("[fabric]\ngpu = 8", "my.toml: fabric.gpu: is no key of [fabric]"),
        ("[run]\nmode = []", "did you mean modes?"),
        ("[fabric]\ngpus = true", "true is a boolean"),
        ("[fabric]\ngpus = 8.0", "8.0 is a float"),
        ('[fabric]\ngpus = "8"', '"8" is text'),
        ("[fabric]\ngpus = []", "the list is empty"),
        ("[fabric]\ngpus = [4, true]", "true is a boolean"),
        ("[fabric]\ngpus = 0", "0 is too small"),
        ("[fabric]\ngpus = -8", "-8 is too small"),
        ("[fabric]\ngpus = 7", "7 GPUs do not divide over 2 sites"),
        ("[fabric]\ngpus = [1, 7]", "my.toml: fabric.gpus: 1 gpus in a site"),
        ("[fabric]\ngpus = [8]", "a fabric has 2 to"),
        ("[fabric]\ngpus = 1000000000", "too large"),
        ("[fabric]\ngpus = 0x" + "f" * 20_000, "a number of 80000 bits is too large"),
        ("[fabric]\ngpus = " + "9" * 20_000, "is no valid TOML"),
        ("[fabric]\ngpus = [13, 4]", "too many for ccl and joint"),
        ("[fabric]\nleaves = 1000", "1000 leaves in a site"),
        ("[fabric]\nleaves = [1, 2, 3]", "3 numbers for 2 sites"),
        ('[fabric]\nwan = "mash"', "did you mean mesh?"),
        ("[fabric.wan]\nlinks = []", "links is missing"),
        ('[fabric.wan]\nlinks = [["s0b0"]]', "is no link"),
        ('[fabric.wan]\nlinks = [["s0b0", "s1b0"]]', "the WAN is in pieces"),
        ('[fabric.wan]\nlinks = [["s0b0", "s1b9"]]', "s1b9"),
        ('[fabric.wan]\nrouters = ["A", "A"]\nlinks = [["s0b0", "A"]]', "named twice"),
        ("[fabric.wan]\nlinks = 3\nkind = 1", '"kind" is no key'),
        ('[conditions]\nsampler = "unifrom"', "did you mean uniform?"),
        ('[conditions]\nwan_rate = "10-100 GB"', "wrong unit for a rate"),
        ('[conditions]\nwan_rate = "100-10 Gbit/s"', "upside down"),
        ('[conditions]\nwan_rate = "10-10 Gbit/s"', "empty range"),
        ('[conditions]\nwan_rate = "0-10 Gbit/s"', "zero"),
        ('[conditions]\nwan_rate = ""', "not a range"),
        ("[conditions]\nwan_rate = inf", "inf is a float"),
        ("[conditions]\nwan_delay = nan", "nan is a float"),
        ('[conditions]\nwan_delay = "-1 us"', "greater than zero"),
        ('[conditions]\nwan_delay = "inf us"', "finite"),
        ("[conditions]\nwan_delay = 1979-05-27", "a date or a time"),
        ('[conditions]\nsampler = "gaussian"\nmean = nan', "not finite"),
        ('[conditions]\nsampler = "gaussian"\nmean = -1', "conditions.mean"),
        ('[conditions]\nsampler = "markov"\nmean_stay = 0.5', "conditions.mean_stay"),
        ("[conditions]\nmean = 0.5", "does nothing with the sampler uniform"),
        ('[conditions]\nsampler = "trace"', "names no CSV file"),
        ('[collective]\nkind = "allreduce"', "allowed is allgather"),
        ("[collective]\nchunk = 8", 'allowed is text with a unit, such as "8 MB"'),
        ('[collective]\nchunk = "8 Mb"', "did you mean MB?"),
        ("[collective]\ncount = 0", "0 is too small"),
        ("[collective]\ncount = true", "true is a boolean"),
        ("[collective]\nreembed_every = 0", "0 is too small"),
        ("[run]\nseed = 1.5", "1.5 is a float"),
        ("[run]\nseed = -1", "-1 is too small"),
        ("[run]\nmodes = []", "no list of modes"),
        ('[run]\nmodes = "base"', "no list of modes"),
        ('[run]\nmodes = ["base", "base"]', '"base" is listed twice'),
        ('[run]\nmodes = ["base", 3]', "3 is not known"),
        ('name = "../etc"', "is no name"),
        ('[sweep]\n"run.modes" = [["base"], ["joint"]]', "sweep.run.modes: cannot be swept"),
        ('[sweep]\n"collective.chunk" = []', "is no axis"),
        ('[sweep]\n"collective.chunk" = ["8 MB", "8 MB"]', "lists a value twice"),
        ('[sweep]\n"collective.chunk" = ["8 MB", 3]', "3 is an integer"),
        ('[sweep]\n"fabric.gpus" = [8, 9]', "sweep.fabric.gpus: 9 GPUs do not divide"),
        ('[collective]\nchunk = "8 MB"\n[sweep]\n"collective.chunk" = ["8 MB"]', "is given twice"),
        ("[fabric", "is no valid TOML"),
        ("[fabric]\ngpus = 8\n[fabric]", "is no valid TOML"),
        ("gpus = 8 = 9", "is no valid TOML"),
        ("x = " + "[" * 5000, "nested too deeply"),
        (b"\xff\xfe[fabric]", "is no text in UTF-8"),
        ("#" * (MAX_BYTES + 1), "is too large"),
        ("a." * 2000 + "b = 1", "is no table"),
    ],
)
def test_a_mistake_names_its_place_and_what_is_allowed(load, text, says):
    assert any(says in line for line in mistakes(load, text)), mistakes(load, text)


def test_a_sweep_has_a_stated_limit(load):
    sizes = ", ".join(f'"{n} MB"' for n in range(1, 51))
    delays = ", ".join(f'"{n} us"' for n in range(1, 51))
    text = f'[sweep]\n"collective.chunk" = [{sizes}]\n"conditions.wan_delay" = [{delays}]'
    assert f"2,500 settings: allowed are {MAX_SETTINGS:,} at most" in mistakes(load, text)[0]


def test_every_mistake_of_a_file_is_told_at_once(load):
    text = '[fabric]\ngpus = 7\nwan = "star"\n[conditions]\nwan_rate = "2-1 Gbit/s"\n[run]\nseed = "x"\nsede = 1\n'
    places = [line.split(": ")[1] for line in mistakes(load, text)]
    assert places == ["run.sede", "fabric.wan", "conditions.wan_rate", "run.seed"]
    text = '[fabric]\ngpus = 7\n[conditions]\nsampler = "gaussian"\nmean = -1\ndeviation = -1\n'
    places = [line.split(": ")[1] for line in mistakes(load, text)]
    assert places == ["fabric.gpus", "conditions.mean", "conditions.deviation"]


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    for path, says in (
        (tmp_path / "none.toml", "cannot be read"),
        (tmp_path, "is no"),
        (tmp_path / "pipe.toml", "is no regular file"),
        (Path("/dev/zero"), "is no regular file"),
        (tmp_path / ("n" * 300 + ".toml"), "cannot be read"),
        (Path("a\x00b/c.toml"), "a\\x00b"),
    ):
        with pytest.raises(ScenarioError, match=r"is no|cannot be read|null") as refusal:
            load_scenario(str(path))
        assert says in str(refusal.value)


def test_an_assignment_is_toml_or_else_text():
    assert assignment("run.seed=3").value == 3
    assert assignment("collective.chunk=8 MB").value == "8 MB"
    assert assignment('collective.chunk="8 MB"').value == "8 MB"
    assert assignment(' run.modes = ["base"] ').value == ["base"]
    assert assignment('sweep."collective.chunk"=["8 MB"]').key == "sweep.collective.chunk"
    assert assignment("a.b=1\nc = 2").value == "1\nc = 2"
    assert assignment("a.b=" + "[" * 10_000).value == "[" * 10_000
    for text in ("", "run.seed", "run.seed:3"):
        with pytest.raises(ScenarioError, match=r"--set: .* is no assignment"):
            assignment(text)


def test_options_displace_what_the_file_says(load):
    axis = '[sweep]\n"collective.chunk" = ["8 MB", "9 MB"]'
    assert load(axis, "collective.chunk=1 MB").sweep == ()
    assert load('[collective]\nchunk = "1 MB"', 'sweep.collective.chunk=["2 MB"]').sweep[0].values == (2_000_000,)
    assert load("[run]\nseed = 4", "run.seed=5", "run.seed=6").run.seed == 6
    gaussian = load(
        '[conditions]\nsampler = "markov"\nmean_stay = 3', "conditions.mean=0.1", "conditions.sampler=gaussian"
    )
    assert (gaussian.conditions.sampler, gaussian.conditions.mean) == ("gaussian", 0.1)
    assert mistakes(load, "", "conditions.sampler=markov", "conditions.mean=0.1") == [
        "--set conditions.mean: does nothing with the sampler markov: allowed only with gaussian"
    ]
